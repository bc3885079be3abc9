// SPDX-License-Identifier: Apache-2.0
// Dot products of weight rows, each computed by kRowThreads adjacent threads.

#pragma once

#include "cuda/device.h"
#include "cuda/launch_plan.h"

namespace edgernn::cuda {

// Four floats, loaded at once.
struct Float4 {
  float x, y, z, w;
};

EDGERNN_DEVICE Float4 LoadFloat4(const float* from) {
#ifdef __CUDA_ARCH__
  const float4 a = *reinterpret_cast<const float4*>(from);
  return {a.x, a.y, a.z, a.w};
#else
  return {from[0], from[1], from[2], from[3]};
#endif
}

constexpr unsigned kAllGates = ~0u;

// Accumulates weights (gates, columns) times factors (kTile, stride) into the sums of the gates in
// both bit masks. The weights have rows for all gates in kGates.
template <unsigned kGates, unsigned kRead = kAllGates, int kCount, int kTile>
EDGERNN_DEVICE void Accumulate(int lane, const float* weights, const float* factors, int stride,
                               int columns, float (&sums)[kCount][kTile]) {
  if constexpr ((kGates & kRead) != 0) {
    for (int i = 4 * lane; i < columns; i += 4 * kRowThreads) {
      Float4 factor[kTile];
#pragma unroll
      for (int r = 0; r < kTile; ++r) factor[r] = LoadFloat4(factors + r * stride + i);
      int offset = i;
#pragma unroll
      for (int g = 0; g < kCount; ++g) {
        if ((kGates >> g & 1) == 0) continue;
        const float* const from = weights + offset;
        offset += columns;
        if ((kRead >> g & 1) == 0) continue;
        const Float4 weight = LoadFloat4(from);
#pragma unroll
        for (int r = 0; r < kTile; ++r) {
          sums[g][r] += weight.x * factor[r].x + weight.y * factor[r].y + weight.z * factor[r].z +
                        weight.w * factor[r].w;
        }
      }
    }
  }
}

// The bit mask of a list of gates.
constexpr unsigned GateBits(const GateList& list) {
  unsigned bits = 0;
  for (int i = 0; i < list.count; ++i) bits |= 1u << list.at[i];
  return bits;
}

// The bit mask of the place of a gate in a list; 0 if it is not there.
constexpr unsigned BitOf(const GateList& list, int gate) {
  for (int i = 0; i < list.count; ++i) {
    if (list.at[i] == gate) return 1u << i;
  }
  return 0;
}

// A group of a cell's gates as compile-time constants, for loops that the compiler unrolls.
template <class Cell, unsigned kWith, unsigned kWithout>
struct CellGateGroup {
  static constexpr GateGroup kGroup = MakeGroup(MakeCellTable<Cell>(), kWith, kWithout);
  static constexpr int kCount = kGroup.all.count;
  static constexpr int kSlots = kCount > 0 ? kCount : 1;
  static constexpr unsigned kXGates = GateBits(kGroup.x);
  static constexpr unsigned kHGates = GateBits(kGroup.h);
  static constexpr unsigned kCGates = GateBits(kGroup.c);
  static constexpr unsigned kMGates = GateBits(kGroup.m);
  // the gate that a rule of the kind kGate reads, as a bit mask
  static constexpr unsigned kUpdateGate = BitOf(kGroup.all, kUpdateGateOf<Cell>.gate);
};

}  // namespace edgernn::cuda
