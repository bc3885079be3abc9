// SPDX-License-Identifier: Apache-2.0
// A cell's own parameters: packed once, mapped, as whole vectors.

#ifndef EDGERNN_PARAMS_H_
#define EDGERNN_PARAMS_H_

#include "gemm.h"

namespace edgernn::EDGERNN_ISA {

// At least one, so that arrays of them exist for every cell.
template <class Cell>
constexpr int kParamSlots = ParamsOf<Cell>::kCount > 0 ? ParamsOf<Cell>::kCount : 1;

// The first `count` values, mapped in place, and what pads them.
[[gnu::noinline]] inline void MapVector(Map map, float* values, std::int64_t count) {
  for (std::int64_t j = 0; j < count; j += kLanes) {
    const Vec a = Load(values + j);
    if (map == Map::kSigmoid) Store(values + j, Sigmoid(a));
    if (map == Map::kTanh) Store(values + j, Tanh(a));
  }
}

template <class Cell>
struct PackedParams {
  using Own = ParamsOf<Cell>;

  float* at[kParamSlots<Cell>];  // (padded H,), (padded I,) or (lanes,) each
  float steps;                   // of the call, see ForCall

  static std::int64_t Count(const Sizes& sizes, int i) {
    switch (Own::kList[i].extent) {
      case Extent::kHidden:
        return sizes.hidden;
      case Extent::kInput:
        return sizes.input;
      default:
        return 1;
    }
  }

  void Carve(const Sizes& sizes, Carver* carver) {
    for (int i = 0; i < Own::kCount; ++i) at[i] = carver->Take<float>(Padded(Count(sizes, i)));
  }

  void Pack(const Sizes& sizes, const Weights& from) const {
    for (int i = 0; i < Own::kCount; ++i) {
      const bool one = Own::kList[i].extent == Extent::kOne;
      const std::int64_t count = Count(sizes, i);
      for (std::int64_t j = 0; j < Padded(count); ++j) {
        at[i][j] = one ? from.own[i][0] : j < count ? from.own[i][j] : 0.0f;
      }
      MapVector(Own::kList[i].map, at[i], count);
    }
  }

  // To be called once a sequence, before the first LoadAt.
  void ForCall(std::int64_t call_steps) { steps = static_cast<float>(call_steps); }

  // The parameters of size kExtent from row `row` on, and the scalars; 0 for the others. I is H in
  // a square cell, so there they are all read at `row`.
  template <Extent kExtent>
  [[gnu::always_inline]] void LoadAt(std::int64_t row, Vec* q) const {
#pragma GCC unroll 4
    for (int i = 0; i < Own::kCount; ++i) {
      const Extent extent = Own::kList[i].extent;
      if (Own::kList[i].map == Map::kLength) {
        q[i] = Fill(*at[i] == 0.0f ? steps : *at[i]);
      } else if (extent == Extent::kOne) {
        q[i] = Load(at[i]);
      } else {
        q[i] = extent == kExtent || kSquare<Cell> ? Load(at[i] + row) : Zero();
      }
    }
  }
};

// One vector of m, from row `row` of M on; x and the states are read at `at`, each if the cell's m
// has its size.
template <class Cell>
[[gnu::always_inline]] inline Vec RunMid(const PackedParams<Cell>& params, const Vec* p,
                                         std::int64_t row, const float* x, float* const* state,
                                         std::int64_t at) {
  Vec q[kParamSlots<Cell>];
  params.template LoadAt<MidExtentOf<Cell>::kExtent>(row, q);
  Vec now[kStateCount<Cell>];
  for (int s = 0; s < kStateCount<Cell>; ++s) {
    now[s] = kMidIsInput<Cell> && !kSquare<Cell> ? Zero() : Load(state[s] + at);
  }
  return Cell::Mid(p, q, kReadsInput<Cell> ? Load(x + at) : Zero(), now);
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_PARAMS_H_
