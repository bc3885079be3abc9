// SPDX-License-Identifier: Apache-2.0
// A cell's own parameters: packed once, mapped, as whole vectors.

#ifndef EDGERNN_PARAMS_H_
#define EDGERNN_PARAMS_H_

#include "gemm.h"

namespace edgernn::EDGERNN_ISA {

// At least one, so that arrays of them exist for every cell.
template <class Cell>
constexpr int kParamSlots = ParamsOf<Cell>::kCount > 0 ? ParamsOf<Cell>::kCount : 1;

template <class Cell>
struct PackedParams {
  using Own = ParamsOf<Cell>;

  float* at[kParamSlots<Cell>];  // (padded H,), (padded I,) or (lanes,) each

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
      if (Own::kList[i].map == Map::kIdentity) continue;
      for (std::int64_t j = 0; j < Padded(count); j += kLanes) {
        Store(at[i] + j, Sigmoid(Load(at[i] + j)));
      }
    }
  }

  // The parameters of size kExtent from row `row` on, and the scalars; 0 for the others.
  template <Extent kExtent>
  [[gnu::always_inline]] void LoadAt(std::int64_t row, Vec* q) const {
#pragma GCC unroll 4
    for (int i = 0; i < Own::kCount; ++i) {
      const Extent extent = Own::kList[i].extent;
      q[i] = extent == kExtent ? Load(at[i] + row) : extent == Extent::kOne ? Load(at[i]) : Zero();
    }
  }
};

// One vector of m, from row `row` of M on. Made with x if m has its size, else with the states;
// both are read at `at`.
template <class Cell>
[[gnu::always_inline]] inline Vec RunMid(const PackedParams<Cell>& params, const Vec* p,
                                         std::int64_t row, const float* x, float* const* state,
                                         std::int64_t at) {
  Vec q[kParamSlots<Cell>];
  if constexpr (kMidIsInput<Cell>) {
    params.template LoadAt<Extent::kInput>(row, q);
    const Vec now = Load(x + at);
    return Cell::Mid(p, q, &now);
  } else {
    params.template LoadAt<Extent::kHidden>(row, q);
    Vec now[kStateCount<Cell>];
    for (int s = 0; s < kStateCount<Cell>; ++s) now[s] = Load(state[s] + at);
    return Cell::Mid(p, q, now);
  }
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_PARAMS_H_
