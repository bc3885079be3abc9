// SPDX-License-Identifier: Apache-2.0
// The point-wise part of a step: a cell's Update and Mid, applied to vectors of neurons.

#pragma once

#include "cpu/simd.h"
#include "kernel/cell_kernel.h"

namespace edgernn::EDGERNN_ISA {

// Loads a cell's parameters at element `at`: those of extent kRead and scalars; the others are 0.
// A square cell reads all of them, as its I is H.
template <class Cell, Extent kRead>
[[gnu::always_inline]] inline void LoadParams(const PointwiseArgs& args, std::int64_t at, Vec* q) {
  using Params = ParamsOf<Cell>;
#pragma GCC unroll 4
  for (int i = 0; i < Params::kCount; ++i) {
    const Extent extent = Params::kList[i].extent;
    if (extent == Extent::kOne) {
      q[i] = Load(args.params[i]);
    } else {
      q[i] = extent == kRead || kSquare<Cell> ? Load(args.params[i] + at) : Zero();
    }
  }
}

// The number of parameters, or 1, as an array may not be empty.
template <class Cell>
constexpr int kParamSlots = ParamsOf<Cell>::kCount > 0 ? ParamsOf<Cell>::kCount : 1;

// Loads the pre-activations of the gates of a group.
template <class Set>
[[gnu::always_inline]] inline void LoadGates(const PointwiseArgs& args, std::int64_t i, Vec* p) {
#pragma GCC unroll 8
  for (int g = 0; g < Set::kCount; ++g) {
    p[Set::kList.at[g]] = Load(args.sums + i * args.stride + g * args.gate_stride);
  }
}

template <class Cell>
[[gnu::flatten]] void RunUpdate(const PointwiseArgs& args) {
  constexpr int kStates = kStateCount<Cell>;
  for (std::int64_t i = 0; i < args.count; ++i) {
    const std::int64_t at = args.first + i * kLanes;
    Vec p[kUpdateInputs<Cell>], q[kParamSlots<Cell>], state[kStates];
    LoadGates<GateSet<Cell, 0, kMid>>(args, i, p);
    if constexpr (kSquare<Cell>) p[kGateCount<Cell>] = Load(args.x + at);
    LoadParams<Cell, Extent::kHidden>(args, at, q);
#pragma GCC unroll 4
    for (int s = 0; s < kStates; ++s) state[s] = Load(args.state[s] + at);
    Cell::Update(p, q, state);
#pragma GCC unroll 4
    for (int s = 0; s < kStates; ++s) Store(args.to[s] + at, state[s]);
  }
}

template <class Cell>
[[gnu::flatten]] void RunMid(const PointwiseArgs& args) {
  constexpr bool kReadsStates = !kMidIsInput<Cell> || kSquare<Cell>;
  for (std::int64_t i = 0; i < args.count; ++i) {
    const std::int64_t at = args.first + i * kLanes;
    Vec p[kUpdateInputs<Cell>], q[kParamSlots<Cell>], state[kStateCount<Cell>];
    LoadGates<GateSet<Cell, kMid>>(args, i, p);
    LoadParams<Cell, MidExtentOf<Cell>::kExtent>(args, at, q);
#pragma GCC unroll 4
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      state[s] = kReadsStates ? Load(args.state[s] + at) : Zero();
    }
    const Vec x = kReadsInput<Cell> ? Load(args.x + at) : Zero();
    Store(args.to[0] + at, Cell::Mid(p, q, x, state));
  }
}

}  // namespace edgernn::EDGERNN_ISA
