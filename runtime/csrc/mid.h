// SPDX-License-Identifier: Apache-2.0
// m of one sample, for the driver of rows.h: all of it, or its first rows from the first columns.

#ifndef EDGERNN_MID_H_
#define EDGERNN_MID_H_

#include "params.h"

namespace edgernn::EDGERNN_ISA {

template <class Cell>
struct MidGates {
  using All = GateSet<Cell, kMid>;
  using Input = GateSet<Cell, kMid | kX>;
  using Hidden = GateSet<Cell, kMid | kH>;
};

// Packed blocks; nothing for a cell without m.
template <class Cell>
struct MidWeights {
  using Gates = MidGates<Cell>;
  float* w;
  float* r;
  float* b;

  void Carve(const Sizes& sizes, Carver* carver) {
    const std::int64_t padded = Padded(MidSize<Cell>(sizes));
    w = carver->Take<float>(padded * sizes.input * Gates::Input::kCount);
    r = carver->Take<float>(padded * RecurrentColumns(sizes) * Gates::Hidden::kCount);
    b = carver->Take<float>(kHasMid<Cell> ? padded * kGateCount<Cell> : 0);
  }

  void Pack(const Sizes& sizes, const Weights& from) const {
    if constexpr (kHasMid<Cell>) {
      const std::int64_t size = MidSize<Cell>(sizes);
      PackBlocks<Cell, kX, typename Gates::Input>(sizes, from.w, size, sizes.input, w);
      PackBlocks<Cell, kH, typename Gates::Hidden>(sizes, from.r, size, RecurrentColumns(sizes), r);
      PackBias<Cell, typename Gates::All>(sizes, from.b, size, b);
    }
  }
};

template <class Cell>
struct MidStep {
  using Gates = MidGates<Cell>;
  static constexpr int kG = kGateCount<Cell>;

  const Sizes& sizes;
  const MidWeights<Cell>& weights;
  const PackedParams<Cell>& params;
  std::int64_t x_end;  // so many columns of x and of h are read; the rest is 0
  std::int64_t h_end;
  const float* x;       // (padded I,)
  const float* h;       // (padded H,), or Q h (padded rank,)
  float* const* state;  // (padded H,) each
  float* mid;           // (padded M,)

  // NB blocks, for TileBlocks.
  template <int MB, int NB>
  void Tile(std::int64_t, std::int64_t block) const {
    const std::int64_t row = block * kLanes;
    Vec p[1][NB][kG];
    for (int j = 0; j < NB; ++j) {
      const float* b = weights.b + (row + j * kLanes) * kG;
      for (int g = 0; g < kG; ++g) p[0][j][g] = Load(b + g * kLanes);
    }
    Add<typename Gates::Input>(x, x_end, sizes.input, weights.w, row, p);
    Add<typename Gates::Hidden>(h, h_end, RecurrentColumns(sizes), weights.r, row, p);
    for (int j = 0; j < NB; ++j) {
      const std::int64_t at = row + j * kLanes;
      Store(mid + at, RunMid<Cell>(params, p[0][j], at, x, state, at));
    }
  }

  template <class Set, int NB>
  [[gnu::always_inline]] static void Add(const float* a, std::int64_t columns, std::int64_t depth,
                                         const float* w, std::int64_t row, Vec (&p)[1][NB][kG]) {
    if constexpr (Set::kCount > 0) {
      Accumulate<Set>(a, 0, columns, depth, w + row * depth * Set::kCount, p);
    }
  }

  // The first `size` elements.
  void Run(std::int64_t size) const {
    constexpr int kMids = Gates::All::kCount;
    TileBlocks<1, kMids == 0 ? 1 : FitBlocks(kMids, 1)>(*this, 1, 0, Blocks(size));
    // an infinite x times the 0 weights of the padding is NaN, and rows are read padding and all
    std::memset(mid + size, 0, static_cast<std::size_t>(Padded(size) - size) * sizeof(float));
  }

  // Multiply-adds of one element.
  std::int64_t RowMacs() const {
    return x_end * Gates::Input::kCount + h_end * Gates::Hidden::kCount;
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_MID_H_
