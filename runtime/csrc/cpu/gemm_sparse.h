// SPDX-License-Identifier: Apache-2.0
// Products with a block-sparse R, whose blocks have columns that are zero in all gates, and with
// the right factor Q of a low-rank R.
//
// A skipped zero contributes 0 even if the input is NaN or infinite, unlike 0 times it in IEEE 754.

#pragma once

#include "cpu/gemm.h"

namespace edgernn::EDGERNN_ISA {

// The nonzero columns of each block of a float32 matrix that is packed in panels of one block.
// DropZeroColumns moves them together.
struct SparseColumns {
  struct Stats {
    bool sparse;
    std::int64_t macs;  // multiply-adds of the product with one vector
  };

  std::int32_t* columns;  // (at most blocks * depth,): nonzero columns, block by block
  std::int64_t* ends;     // (blocks,): end of each block's list in `columns`
  Stats* stats;

  void Allocate(const PackedMatrix& matrix, Arena* arena) {
    const std::int64_t blocks = matrix.gates == 0 ? 0 : Blocks(matrix.size);
    const bool floats = matrix.type == NumberType::kFloat32;
    columns = arena->Allocate<std::int32_t>(floats ? blocks * matrix.depth : 0);
    ends = arena->Allocate<std::int64_t>(blocks);
    stats = arena->Allocate<Stats>(1);
  }

  // The number of nonzero columns of a block of a sparse matrix.
  std::int64_t Count(std::int64_t block) const {
    return ends[block] - (block == 0 ? 0 : ends[block - 1]);
  }

  // Drops the zero columns of a float32 matrix, if `drops` and the sparse product is then faster.
  [[gnu::noinline, gnu::cold]] void DropZeroColumns(const PackedMatrix& matrix, bool drops) const {
    const std::int64_t size = matrix.size, depth = matrix.depth, gates = matrix.gates;
    const std::int64_t column = gates * kLanes, dense_macs = gates * size * depth;
    *stats = {false, dense_macs};
    if (!drops || matrix.type != NumberType::kFloat32 || dense_macs == 0) return;
    float* const w = static_cast<float*>(matrix.w);
    std::int64_t stored = 0, macs = 0;
    for (std::int64_t block = 0; block < Blocks(size); ++block) {
      const std::int64_t left = size - block * kLanes;
      for (std::int64_t k = 0; k < depth; ++k) {
        if (IsZero(w + (block * depth + k) * column, column)) continue;
        columns[stored++] = static_cast<std::int32_t>(k);
        macs += gates * (left < kLanes ? left : kLanes);
      }
      ends[block] = stored;
    }
    // a sparse product also loads and stores the sums and reads the lists of columns
    if (4 * macs > 3 * dense_macs) return;
    *stats = {true, macs};
    for (std::int64_t block = 0, i = 0; block < Blocks(size); ++block) {
      for (; i < ends[block]; ++i) {
        std::memmove(w + i * column, w + (block * depth + columns[i]) * column, Bytes(column));
      }
    }
  }

  static bool IsZero(const float* from, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      // NaN is not zero
      if (!(from[i] == 0.0f)) return false;
    }
    return true;
  }
};

// The packed columns of a block, from Begin to End: the nonzero ones of a sparse matrix. Packed
// column i is column At(block, i) of the matrix.
struct StoredColumns {
  const SparseColumns& matrix;

  std::int64_t Begin(std::int64_t block) const { return block == 0 ? 0 : matrix.ends[block - 1]; }
  std::int64_t End(std::int64_t block) const { return matrix.ends[block]; }
  std::int64_t At(std::int64_t, std::int64_t i) const { return matrix.columns[i]; }
};

// The packed columns of a block: the first `count` of a dense matrix.
struct LeadingColumns {
  std::int64_t count;
  std::int64_t depth;

  std::int64_t Begin(std::int64_t block) const { return block * depth; }
  std::int64_t End(std::int64_t block) const { return block * depth + count; }
  std::int64_t At(std::int64_t block, std::int64_t i) const { return i - block * depth; }
};

// Adds a product with the given columns and packed weights w to the sums.
template <int kGates, class Columns>
struct ColumnProduct {
  Columns columns;
  const float* w;
  const Product& product;
  float* sums;

  // The number of independent accumulators per sum, which hide the latency of additions. It is the
  // same for tiles of all sizes, so that a row has the same bits with any other rows.
  static constexpr int kSets = kGates <= 2 ? 4 : 2;
  // the most rows whose accumulators fit in registers
  static constexpr int kRowsAtOnce = 4 * kSets * kGates <= kTileSums   ? 4
                                     : 2 * kSets * kGates <= kTileSums ? 2
                                                                       : 1;

  template <int MB>
  void Tile(std::int64_t row, std::int64_t block) const {
    Vec p[kSets][MB][kGates];
    for (auto& set : p) {
      for (auto& part : set) {
        for (Vec& sum : part) sum = Zero();
      }
    }
    const std::int64_t end = columns.End(block);
    std::int64_t i = columns.Begin(block);
    for (; i + kSets <= end; i += kSets) {
#pragma GCC unroll 4
      for (int s = 0; s < kSets; ++s) Add<MB>(row, block, i + s, p[s]);
    }
    for (; i < end; ++i) Add<MB>(row, block, i, p[0]);
    const std::int64_t gates = product.gates * kLanes;
    for (int m = 0; m < MB; ++m) {
      float* const to = sums + ((row + m) * product.blocks + block) * gates;
      for (int g = 0; g < kGates; ++g) {
        const std::int64_t at = product.places.at[g] * kLanes;
        for (int s = 1; s < kSets; ++s) p[0][m][g] = p[0][m][g] + p[s][m][g];
        // without a bias, b is null
        const float* const from =
            (product.from_bias >> g & 1) != 0 ? product.b + block * gates + at : to + at;
        Store(to + at, Load(from) + p[0][m][g]);
      }
    }
  }

  template <int MB>
  [[gnu::always_inline]] void Add(std::int64_t row, std::int64_t block, std::int64_t i,
                                  Vec (&p)[MB][kGates]) const {
    const float* from = product.a + row * product.stride + columns.At(block, i);
#pragma GCC unroll 4
    for (int m = 0; m < MB; ++m) {
      const Vec factor = Fill(from[m * product.stride]);
#pragma GCC unroll 8
      for (int g = 0; g < kGates; ++g) {
        p[m][g] = p[m][g] + Load(w + (i * kGates + g) * kLanes) * factor;
      }
    }
  }

  // Runs all blocks, or those with bits in `lanes`.
  [[gnu::noinline]] void Run(std::int64_t rows, const LaneBits* lanes = nullptr) const {
    for (std::int64_t block = 0; block < product.blocks; ++block) {
      if (lanes != nullptr && lanes[block] == 0) continue;
      std::int64_t row = 0;
      for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) Tile<kRowsAtOnce>(row, block);
      for (; row < rows; ++row) Tile<1>(row, block);
    }
  }
};

template <int kGates>
void AddStored(const SparseColumns& columns, const Product& product, std::int64_t rows,
               const LaneBits* lanes, float* sums) {
  const float* const w = static_cast<const float*>(product.w);
  ColumnProduct<kGates, StoredColumns>{{columns}, w, product, sums}.Run(rows, lanes);
}

// Adds a product with a sparse matrix to the sums of all rows; `lanes` as in Run.
inline void AddSparse(const SparseColumns& columns, const Product& product, std::int64_t rows,
                      const LaneBits* lanes, float* sums) {
  constexpr decltype(&AddStored<1>) kByGates[kMaxTerm] = {&AddStored<1>, &AddStored<2>,
                                                          &AddStored<3>, &AddStored<4>};
  kByGates[product.places.count - 1](columns, product, rows, lanes, sums);
}

// Computes qh (rows, padded rank) = Q h, from the first `columns` of h (rows, padded H). q is
// packed in panels of one block.
[[gnu::noinline]] inline void MultiplyQ(const LayerSizes& sizes, const float* q, const float* h,
                                        std::int64_t rows, std::int64_t columns, float* qh) {
  const std::int64_t blocks = Blocks(sizes.rank);
  Product product{};
  product.a = h;
  product.stride = PadToLanes(sizes.hidden);
  product.columns = columns;
  product.depth = sizes.hidden;
  product.w = q;
  product.places.count = 1;
  product.gates = 1;
  product.blocks = blocks;
  std::memset(qh, 0, Bytes(rows * blocks * kLanes));
  ColumnProduct<1, LeadingColumns>{{columns, sizes.hidden}, q, product, qh}.Run(rows);
}

}  // namespace edgernn::EDGERNN_ISA
