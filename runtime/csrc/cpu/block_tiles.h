// SPDX-License-Identifier: Apache-2.0
// Products of one block of float32 weights with a few rows that may lie anywhere.

#pragma once

#include "cpu/gemm.h"

namespace edgernn::EDGERNN_ISA {

constexpr int kMaxBlockRows = 4;

struct BlockRows {
  const float* a[kMaxBlockRows];      // (columns,) each
  const float* start[kMaxBlockRows];  // (blocks of the tile, gates, lanes) each: sums so far
  float* to[kMaxBlockRows];           // (blocks of the tile, gates, lanes) each: with the product
};

// Computes the sums of MB rows and NB neighbouring blocks. kSets independent accumulators of each
// sum hide the latency of additions. Their number must not depend on MB and NB: a row has the same
// result in any batch, and a block with any neighbours.
template <int kCount, int kSets, int MB, int NB>
[[gnu::noinline]] void AddBlockRows(const Product& product, std::int64_t block,
                                    const BlockRows& rows) {
  const std::int64_t columns = product.columns, gates = product.gates * kLanes;
  const Panel panel(product.largest_panel, block, product.blocks);
  const float* w =
      static_cast<const float*>(product.w) + PackedOffset(panel, block, 0, kCount, product.depth);
  const std::int64_t step = panel.size * kCount * kLanes;
  // each block is a panel of its own if NB > 1
  const std::int64_t next_block = product.depth * kCount * kLanes;
  const float* const b = product.b + block * gates;
  const float* a[MB];
  Vec p[kSets][MB][NB][kCount] = {};
#pragma GCC unroll 4
  for (int i = 0; i < MB; ++i) {
    a[i] = rows.a[i];
#pragma GCC unroll 4
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 4
      for (int g = 0; g < kCount; ++g) {
        const bool from_bias = (product.from_bias >> g & 1) != 0;
        p[0][i][j][g] =
            Load((from_bias ? b : rows.start[i]) + j * gates + product.places.at[g] * kLanes);
      }
    }
  }
  const auto add = [&](std::int64_t k, Vec(&set)[MB][NB][kCount]) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 4
      for (int g = 0; g < kCount; ++g) {
        const Vec weight = Load(w + j * next_block + g * kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < MB; ++i) set[i][j][g] = set[i][j][g] + weight * a[i][k];
      }
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
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 4
      for (int g = 0; g < kCount; ++g) {
        Vec sum = p[0][i][j][g];
        if constexpr (kSets == 2) sum = sum + p[1][i][j][g];
        if constexpr (kSets == 4) sum = (sum + p[2][i][j][g]) + (p[1][i][j][g] + p[3][i][j][g]);
        Store(rows.to[i] + j * gates + product.places.at[g] * kLanes, sum);
      }
    }
  }
}

// The number of accumulators of each sum: one, in the order of sums that are computed for several
// steps at once, or enough to hide the latency of additions.
constexpr int CountSets(int gates, bool in_order) { return in_order ? 1 : gates > 2 ? 2 : 4; }

using BlockFunction = void (*)(const Product&, std::int64_t block, const BlockRows&);

// log2 of the largest number of rows, or of neighbouring blocks, whose sums fit in registers.
constexpr int FitBlockRows(int gates, bool in_order) {
  const int sets = CountSets(gates, in_order);
  return gates * sets * 4 <= kTileSums ? 2 : gates * sets * 2 <= kTileSums ? 1 : 0;
}

template <int kCount, bool kInOrder, int kLogRows, int kLogBlocks>
constexpr BlockFunction ChooseBlockFunction() {
  if constexpr (kLogRows + kLogBlocks <= FitBlockRows(kCount, kInOrder)) {
    return &AddBlockRows<kCount, CountSets(kCount, kInOrder), 1 << kLogRows, 1 << kLogBlocks>;
  } else {
    return nullptr;
  }
}

template <int kCount>
struct BlockFunctions {
  // Functions of one block and several rows: [in order][log2 of rows].
  static constexpr BlockFunction kRows[2][3] = {
      {ChooseBlockFunction<kCount, false, 0, 0>(), ChooseBlockFunction<kCount, false, 1, 0>(),
       ChooseBlockFunction<kCount, false, 2, 0>()},
      {ChooseBlockFunction<kCount, true, 0, 0>(), ChooseBlockFunction<kCount, true, 1, 0>(),
       ChooseBlockFunction<kCount, true, 2, 0>()}};
  // Functions of one row and several blocks: [log2 of blocks]
  static constexpr BlockFunction kBlocks[3] = {ChooseBlockFunction<kCount, false, 0, 0>(),
                                               ChooseBlockFunction<kCount, false, 0, 1>(),
                                               ChooseBlockFunction<kCount, false, 0, 2>()};
};

// Computes the sums of a block and of 2^log_rows rows, at most 2^FitBlockRows.
[[gnu::always_inline]] inline void AddRowsOfBlock(const Product& product, bool in_order,
                                                  std::int64_t block, int log_rows,
                                                  const BlockRows& rows) {
  constexpr const BlockFunction(*kByGates[kMaxTerm])[3] = {
      BlockFunctions<1>::kRows, BlockFunctions<2>::kRows, BlockFunctions<3>::kRows,
      BlockFunctions<4>::kRows};
  kByGates[product.places.count - 1][in_order][log_rows](product, block, rows);
}

// Computes the sums of a row and of 2^log_blocks neighbouring blocks, at most 2^FitBlockRows, each
// packed on its own.
[[gnu::always_inline]] inline void AddBlocksOfRow(const Product& product, std::int64_t block,
                                                  int log_blocks, const BlockRows& row) {
  constexpr const BlockFunction* kByGates[kMaxTerm] = {
      BlockFunctions<1>::kBlocks, BlockFunctions<2>::kBlocks, BlockFunctions<3>::kBlocks,
      BlockFunctions<4>::kBlocks};
  kByGates[product.places.count - 1][log_blocks](product, block, row);
}

}  // namespace edgernn::EDGERNN_ISA
