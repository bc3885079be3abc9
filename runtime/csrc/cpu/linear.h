// SPDX-License-Identifier: Apache-2.0
// The packed weights of a linear map.

#pragma once

#include "cpu/gemm.h"

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
};

}  // namespace edgernn::EDGERNN_ISA
