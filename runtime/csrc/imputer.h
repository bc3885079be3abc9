// SPDX-License-Identifier: Apache-2.0
// What an imputer does before each step of a cell. Knows no cell and no rule.

#ifndef EDGERNN_IMPUTER_H_
#define EDGERNN_IMPUTER_H_

#include "kernel.h"

namespace edgernn {

// F, of an op with an imputer: the cell reads 2F.
inline std::int64_t Features(const Sizes& sizes) { return sizes.input / 2; }

// An imputer, for one instruction set.
struct Imputer {
  std::size_t (*packed_bytes)(const Sizes&);
  void (*pack)(const Sizes&, const Weights&, void* packed);
  std::size_t (*scratch_bytes)(const Sizes&, std::int64_t batch);
  // x (B, 3F) gives what the cell reads, inputs (B, 2F); h (B, H) decays in place; seen (B, F),
  // where the imputer has that memory, moves on
  void (*step)(const Sizes&, const void* packed, const float* x, std::int64_t batch, float* h,
               float* seen, float* inputs, void* scratch);
  // multiply-adds of a step
  std::int64_t (*macs)(const Sizes&);
};

// A kernel behind an imputer: all sequences go step by step, each through the imputer and then
// through the kernel. These have the kernel's signatures.
std::size_t ImputedPackedBytes(const Imputer&, const Kernel&, const Sizes&);
void PackImputed(const Imputer&, const Kernel&, const Sizes&, const Weights&, void* packed);
std::size_t ImputedScratchBytes(const Imputer&, const Kernel&, const Sizes&, std::int64_t batch);
void RunImputed(const Imputer&, const Kernel&, const Sizes&, const void* packed, const Call&,
                void* scratch);

}  // namespace edgernn

#endif  // EDGERNN_IMPUTER_H_
