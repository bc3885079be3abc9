// SPDX-License-Identifier: Apache-2.0
// Fills missing inputs before each step of a cell. Independent of cell and rule.

#ifndef EDGERNN_IMPUTERS_IMPUTER_H_
#define EDGERNN_IMPUTERS_IMPUTER_H_

#include "common/kernel.h"

namespace edgernn {

// An imputer, for one instruction set.
struct Imputer {
  std::size_t (*packed_bytes)(const LayerSizes&);
  void (*pack)(const LayerSizes&, const Weights&, void* packed);
  std::size_t (*scratch_bytes)(const LayerSizes&, std::int64_t batch);
  // x (B, 3F) gives what the cell reads, inputs (B, 2F); h (B, H) decays in place; seen (B, F),
  // where the imputer has that memory, moves on
  void (*step)(const LayerSizes&, const void* packed, const float* x, std::int64_t batch, float* h,
               float* seen, float* inputs, void* scratch);
  // multiply-adds of a step
  std::int64_t (*macs)(const LayerSizes&);
};

// A kernel behind an imputer: all sequences go step by step, each through the imputer and then
// through the kernel. These have the kernel's signatures.
std::size_t ImputedPackedBytes(const Imputer&, const Kernel&, const LayerSizes&);
void PackImputed(const Imputer&, const Kernel&, const LayerSizes&, const Weights&, void* packed);
std::size_t ImputedScratchBytes(const Imputer&, const Kernel&, const LayerSizes&,
                                std::int64_t batch);
void RunImputed(const Imputer&, const Kernel&, const LayerSizes&, const void* packed, const Call&,
                void* scratch);

}  // namespace edgernn

#endif  // EDGERNN_IMPUTERS_IMPUTER_H_
