// SPDX-License-Identifier: Apache-2.0
// Products of one block of float32 weights with a few rows that may lie anywhere.

#ifndef EDGERNN_CPU_BLOCK_TILES_H_
#define EDGERNN_CPU_BLOCK_TILES_H_

#include "cpu/gemm.h"

namespace edgernn::EDGERNN_ISA {

constexpr int kMaxBlockRows = 4;

struct BlockRows {
  const float* a[kMaxBlockRows];      // (columns,) each
  const float* start[kMaxBlockRows];  // (gates, lanes) each: sums so far
  float* to[kMaxBlockRows];           // (gates, lanes) each: sums with the product
};

// Computes the sums of MB rows and a block. kSets independent accumulators of each sum hide the
// latency of additions. Their number must not depend on MB: a row has the same result in any batch.
template <int kCount, int kSets, int MB>
[[gnu::noinline]] void AddBlockRows(const Product& product, std::int64_t block,
                                    const BlockRows& rows) {
  const std::int64_t columns = product.columns;
  const Panel panel(product.largest_panel, block, product.blocks);
  const float* w =
      static_cast<const float*>(product.w) + PackedOffset(panel, block, 0, kCount, product.depth);
  const std::int64_t step = panel.size * kCount * kLanes;
  const float* const b = product.b + block * product.gates * kLanes;
  const float* a[MB];
  Vec p[kSets][MB][kCount] = {};
#pragma GCC unroll 4
  for (int i = 0; i < MB; ++i) {
    a[i] = rows.a[i];
#pragma GCC unroll 4
    for (int g = 0; g < kCount; ++g) {
      const bool from_bias = (product.from_bias >> g & 1) != 0;
      p[0][i][g] = Load((from_bias ? b : rows.start[i]) + product.places.at[g] * kLanes);
    }
  }
  const auto add = [&](std::int64_t k, Vec(&set)[MB][kCount]) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int g = 0; g < kCount; ++g) {
      const Vec weight = Load(w + g * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < MB; ++i) set[i][g] = set[i][g] + weight * a[i][k];
    }
    w += step;
  };
  std::int64_t k = 0;
  for (; k + kSets <= columns; k += kSets) {
#pragma GCC unroll 4
    for (int s = 0; s < kSets; ++s) add(k + s, p[s]);
  }
  for (; kSets > 1 && k < columns; ++k) add(k, p[0]);
#pragma GCC unroll 4
  for (int i = 0; i < MB; ++i) {
#pragma GCC unroll 4
    for (int g = 0; g < kCount; ++g) {
      if constexpr (kSets == 4) {
        p[0][i][g] = p[0][i][g] + p[2][i][g];
        p[1][i][g] = p[1][i][g] + p[3][i][g];
      }
      if constexpr (kSets > 1) p[0][i][g] = p[0][i][g] + p[1][i][g];
      Store(rows.to[i] + product.places.at[g] * kLanes, p[0][i][g]);
    }
  }
}

// The number of accumulators of each sum: one, in the order of sums that are computed for several
// steps at once, or enough to hide the latency of additions.
constexpr int CountSets(int gates, bool in_order) { return in_order ? 1 : gates > 2 ? 2 : 4; }

using BlockFunction = void (*)(const Product&, std::int64_t block, const BlockRows&);

// log2 of the largest number of rows whose sums fit in registers.
constexpr int FitBlockRows(int gates, bool in_order) {
  const int sets = CountSets(gates, in_order);
  return gates * sets * 4 <= kTileSums ? 2 : gates * sets * 2 <= kTileSums ? 1 : 0;
}

template <int kCount, bool kInOrder, int kLogRows>
constexpr BlockFunction ChooseBlockFunction() {
  if constexpr (kLogRows <= FitBlockRows(kCount, kInOrder)) {
    return &AddBlockRows<kCount, CountSets(kCount, kInOrder), 1 << kLogRows>;
  } else {
    return nullptr;
  }
}

// [in order][log2 of rows]
template <int kCount>
struct BlockFunctions {
  static constexpr BlockFunction kList[2][3] = {
      {ChooseBlockFunction<kCount, false, 0>(), ChooseBlockFunction<kCount, false, 1>(),
       ChooseBlockFunction<kCount, false, 2>()},
      {ChooseBlockFunction<kCount, true, 0>(), ChooseBlockFunction<kCount, true, 1>(),
       ChooseBlockFunction<kCount, true, 2>()}};
};

// Computes the sums of `count` rows, at most 2^FitBlockRows.
[[gnu::always_inline]] inline void AddBlock(const Product& product, bool in_order,
                                            std::int64_t block, int log_rows,
                                            const BlockRows& rows) {
  constexpr const BlockFunction(*kByGates[kMaxTerm])[3] = {
      BlockFunctions<1>::kList, BlockFunctions<2>::kList, BlockFunctions<3>::kList,
      BlockFunctions<4>::kList};
  kByGates[product.places.count - 1][in_order][log_rows](product, block, rows);
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_CPU_BLOCK_TILES_H_
