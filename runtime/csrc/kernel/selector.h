// SPDX-License-Identifier: Apache-2.0
// The interface by which a rule tells the sparse driver which neurons to update. Independent of the
// cell.

#pragma once

#include "kernel/kernel.h"

namespace edgernn {

// The neurons that a rule updates in one sample at one step.
struct ActiveSet {
  std::int64_t count;                    // number of active neurons
  const std::int32_t* neurons;           // their indices, ascending; or null: see lanes
  std::int64_t macs;                     // multiply-adds of the decision itself
  const std::uint32_t* lanes = nullptr;  // per block of kLanes neurons, a bit for each active one
  std::int64_t blocks = 0;               // number of blocks with bits, if there are lanes
  const float* blend = nullptr;          // (count,), weight of the new state; null: 1
  const std::int32_t* starts = nullptr;  // (H,), first column of the states that a neuron reads
  std::int64_t unread = 0;               // columns that the active neurons skip, in total
  // masks (I,) of x and (H,) of the states, which are 0 from x_end and state_end on; or null
  const float* x_mask = nullptr;
  const float* state_mask = nullptr;
  std::int64_t x_end = 0;
  std::int64_t state_end = 0;
};

// The functions of a rule that selects neurons, for one instruction set and any cell.
struct Selector {
  // index of the rule's weight ranks (H,), which thins R and C: column j of neuron i is 0 where
  // ranks_j < ranks_i; -1: no thinning
  int ranks;
  bool masks;  // a selection masks x and the states that the cell reads
  std::uint64_t (*packed_bytes)(const LayerSizes&);
  void (*pack)(const LayerSizes&, const Weights&, void* packed);
  // bytes of scratch memory for this number of rows of x; it is zeroed at the start of a call
  std::uint64_t (*scratch_bytes)(const LayerSizes&, std::int64_t rows);
  // computes the terms of the scores that depend on x (rows, I) only
  void (*project)(const LayerSizes&, const void* packed, const float* x, std::int64_t rows,
                  void* scratch);
  // selects the neurons of a projected row, from the first state h (padded H,) and the rule's
  // memories (padded size,); the result is valid until the next call
  ActiveSet (*select)(const LayerSizes&, const void* packed, void* scratch, std::int64_t row,
                      const float* h, const float* const* memory);
  // advances the memories by the step of the last selection; `state` (padded H,) is the state that
  // Evidence reads, after the step
  void (*advance_memory)(const LayerSizes&, const void* packed, void* scratch, const float* state,
                         float* const* memory);
  // only for rules of the kind kGate, else null: completes a selection, of which `select` gave the
  // number of neurons alone, from the scores (padded H,) of the update gate
  void (*select_largest)(const LayerSizes&, void* scratch, float* scores, ActiveSet*);
};

}  // namespace edgernn
