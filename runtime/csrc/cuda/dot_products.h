// SPDX-License-Identifier: Apache-2.0
// Rows of weights times factors, by kRowThreads threads side by side.

#ifndef EDGERNN_CUDA_DOT_PRODUCTS_H_
#define EDGERNN_CUDA_DOT_PRODUCTS_H_

#include "cuda/device.h"
#include "cuda/launch_plan.h"

namespace edgernn::cuda {

struct Four {
  float x, y, z, w;
};

EDGERNN_DEVICE Four LoadFour(const float* from) {
#ifdef __CUDA_ARCH__
  const float4 a = *reinterpret_cast<const float4*>(from);
  return {a.x, a.y, a.z, a.w};
#else
  return {from[0], from[1], from[2], from[3]};
#endif
}

// Adds to the sums of those gates that kGates has the bits of: weights (gates, columns) times
// factors (kTile, stride).
template <unsigned kGates, int kCount, int kTile>
EDGERNN_DEVICE void Accumulate(int lane, const float* weights, const float* factors, int stride,
                               int columns, float (&sums)[kCount][kTile]) {
  if constexpr (kGates != 0) {
    for (int i = 4 * lane; i < columns; i += 4 * kRowThreads) {
      Four factor[kTile];
#pragma unroll
      for (int r = 0; r < kTile; ++r) factor[r] = LoadFour(factors + r * stride + i);
      int place = i;
#pragma unroll
      for (int g = 0; g < kCount; ++g) {
        if ((kGates >> g & 1) == 0) continue;
        const Four weight = LoadFour(weights + place);
        place += columns;
#pragma unroll
        for (int r = 0; r < kTile; ++r) {
          sums[g][r] += weight.x * factor[r].x + weight.y * factor[r].y + weight.z * factor[r].z +
                        weight.w * factor[r].w;
        }
      }
    }
  }
}

constexpr unsigned Bits(const GateList& list) {
  unsigned bits = 0;
  for (int i = 0; i < list.count; ++i) bits |= 1u << list.at[i];
  return bits;
}

// A group of a cell's gates, for loops that the compiler unrolls.
template <class Cell, unsigned kWith, unsigned kWithout>
struct Group {
  static constexpr GateGroup kGroup = MakeGroup(MakeCellTable<Cell>(), kWith, kWithout);
  static constexpr int kCount = kGroup.all.count;
  static constexpr int kSlots = kCount > 0 ? kCount : 1;
  static constexpr unsigned kOfX = Bits(kGroup.x);
  static constexpr unsigned kOfH = Bits(kGroup.h);
  static constexpr unsigned kOfC = Bits(kGroup.c);
  static constexpr unsigned kOfM = Bits(kGroup.m);
};

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_DOT_PRODUCTS_H_
