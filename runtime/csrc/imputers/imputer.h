// SPDX-License-Identifier: Apache-2.0
// Imputers fill missing inputs before each step of a cell. They are independent of cell and rule.

#pragma once

#include "kernel/kernel.h"

namespace edgernn {

// The functions of an imputer, for one instruction set.
struct Imputer {
  std::uint64_t (*packed_bytes)(const LayerSizes&);
  void (*pack)(const LayerSizes&, const Weights&, void* packed);
  std::uint64_t (*scratch_bytes)(const LayerSizes&, std::int64_t batch);
  // computes the cell's inputs (B, 2F) from x (B, 3F); decays h (B, H) in place, and updates the
  // imputer's memory seen (B, F) in place if it has one
  void (*step)(const LayerSizes&, const void* packed, const float* x, std::int64_t batch, float* h,
               float* seen, float* inputs, void* scratch);
  // multiply-adds of a step of one sample
  std::int64_t (*macs)(const LayerSizes&);
};

// A kernel with an imputer: each step runs the imputer and then the kernel. These functions have
// the meaning of those of Kernel.
std::uint64_t ImputedPackedBytes(const Imputer&, const Kernel&, const LayerSizes&);
void PackImputed(const Imputer&, const Kernel&, const LayerSizes&, const Weights&, void* packed);
std::uint64_t ImputedScratchBytes(const Imputer&, const Kernel&, const LayerSizes&,
                                  std::int64_t batch);
void RunImputed(const Imputer&, const Kernel&, const LayerSizes&, const void* packed, const Call&,
                void* scratch);

}  // namespace edgernn
