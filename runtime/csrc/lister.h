// SPDX-License-Identifier: Apache-2.0
// What a rule tells the driver of rows.h: which neurons change. Knows no cell.

#ifndef EDGERNN_LISTER_H_
#define EDGERNN_LISTER_H_

#include "kernel.h"

namespace edgernn {

// A rule's decision for one sample at one step.
struct Listing {
  std::int64_t count;                    // so many neurons change:
  const std::int32_t* neurons;           // these, in ascending order
  std::int64_t macs;                     // multiply-adds of the decision itself
  const float* shares = nullptr;         // (count,), of the new state against the old; null: 1
  const std::int32_t* starts = nullptr;  // (H,), where a neuron starts to read states; null: 0
  std::int64_t unread = 0;               // so many columns the listed ones leave out before that
  // where the cell sees x and the states masked: factors (I,) and (H,), 0 from these ends on
  const float* x_mask = nullptr;
  const float* state_mask = nullptr;
  std::int64_t x_end = 0;
  std::int64_t state_end = 0;
};

// A rule of the kind kRows, for one instruction set. All of it is the same for every cell.
struct Lister {
  // which weight of the rule is (H,) and thins R and C, which are 0 where ranks_j < ranks_i; or -1
  int ranks;
  std::size_t (*packed_bytes)(const Sizes&);
  void (*pack)(const Sizes&, const Weights&, void* packed);
  // `scratch` is for so many rows of x, and 0 at the start of a call
  std::size_t (*scratch_bytes)(const Sizes&, std::int64_t rows);
  // what depends on x (rows, I) alone
  void (*project)(const Sizes&, const void* packed, const float* x, std::int64_t rows,
                  void* scratch);
  // decides for a row of what was projected, given the first state (padded H,) and the rule's
  // memory, which moves on; the listing holds until the next
  Listing (*list)(const Sizes&, const void* packed, void* scratch, std::int64_t row, const float* h,
                  float* memory);
};

}  // namespace edgernn

#endif  // EDGERNN_LISTER_H_
