// SPDX-License-Identifier: Apache-2.0
// A linear map of a batch: the head of a model, and maps of residual blocks.

#pragma once

#include "cpu/state_copy.h"

namespace edgernn::EDGERNN_ISA {

struct LinearMap {
  struct Packed {
    float* w;
    float* b;  // (padded O,)
    std::uint64_t bytes;

    Packed(std::int64_t depth, std::int64_t outputs, void* base) {
      Arena arena(base);
      w = arena.Allocate<float>(PadToLanes(outputs) * depth);
      b = arena.Allocate<float>(PadToLanes(outputs));
      bytes = arena.used();
    }
  };

  static std::uint64_t PackedBytes(std::int64_t depth, std::int64_t outputs) {
    return Packed(depth, outputs, nullptr).bytes;
  }

  static void Pack(const Values& w, const Values& b, std::int64_t depth, std::int64_t outputs,
                   void* packed) {
    const Packed to(depth, outputs, packed);
    PackMatrix(w, outputs, depth, LargestPanel(1), to.w);
    PackMatrix(b, outputs, 1, 1, to.b);
  }

  static std::uint64_t ScratchBytes(std::int64_t outputs, std::int64_t batch) {
    return Bytes(batch * PadToLanes(outputs));
  }

  static void Run(const void* packed, std::int64_t depth, std::int64_t outputs, const float* a,
                  std::int64_t batch, float* y, void* scratch) {
    const Packed from(depth, outputs, const_cast<void*>(packed));
    float* const padded = static_cast<float*>(scratch);
    Multiply(a, batch, depth, from.w, from.b, Blocks(outputs), padded);
    WriteState(padded, batch, outputs, y);
  }
};

}  // namespace edgernn::EDGERNN_ISA
