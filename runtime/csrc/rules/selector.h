// SPDX-License-Identifier: Apache-2.0
// How a rule tells the sparse driver which neurons change. Independent of the cell.

#ifndef EDGERNN_RULES_SELECTOR_H_
#define EDGERNN_RULES_SELECTOR_H_

#include "common/kernel.h"

namespace edgernn {

// The neurons that a rule selects for one sample at one step.
struct ActiveSet {
  std::int64_t count;            // how many neurons change
  const std::int32_t* neurons;   // their indices, ascending
  std::int64_t macs;             // multiply-adds of the decision itself
  const float* blend = nullptr;  // (count,), weight of the new state against the old; null: 1
  const std::int32_t* starts = nullptr;  // (H,), where a neuron starts to read states; null: 0
  std::int64_t unread = 0;               // columns that the active neurons leave out before that
  // where the cell sees x and the states masked: factors (I,) and (H,), 0 from these ends on
  const float* x_mask = nullptr;
  const float* state_mask = nullptr;
  std::int64_t x_end = 0;
  std::int64_t state_end = 0;
};

// A rule that selects neurons, for one instruction set and every cell.
struct Selector {
  // which weight of the rule is (H,) and thins R and C, which are 0 where ranks_j < ranks_i; or -1
  int ranks;
  std::size_t (*packed_bytes)(const LayerSizes&);
  void (*pack)(const LayerSizes&, const Weights&, void* packed);
  // `scratch` is for so many rows of x, and 0 at the start of a call
  std::size_t (*scratch_bytes)(const LayerSizes&, std::int64_t rows);
  // what depends on x (rows, I) alone
  void (*project)(const LayerSizes&, const void* packed, const float* x, std::int64_t rows,
                  void* scratch);
  // decides for a row of what was projected, given the first state (padded H,) and the rule's
  // memories (padded size,); the result is valid until the next call
  ActiveSet (*select)(const LayerSizes&, const void* packed, void* scratch, std::int64_t row,
                      const float* h, const float* const* memory);
  // advances the memories over the step that it has decided for last; `state` (padded H,): the one
  // that evidence is read from, after the step
  void (*remember)(const LayerSizes&, const void* packed, void* scratch, const float* state,
                   float* const* memory);
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_SELECTOR_H_
