// SPDX-License-Identifier: Apache-2.0
// Matrix products on packed weights, the tiles they work in, and the carving of buffers.
//
// Packed weights are [block][k][gate][lane]: a block is kLanes neighbouring rows (neurons). Any
// tile of batch rows x blocks reads the same packing.

#ifndef EDGERNN_GEMM_H_
#define EDGERNN_GEMM_H_

#include "kernel.h"
#include "vec.h"

namespace edgernn::EDGERNN_ISA {

[[gnu::always_inline]] inline std::int64_t Blocks(std::int64_t count) {
  return (count + kLanes - 1) / kLanes;
}

[[gnu::always_inline]] inline std::int64_t Padded(std::int64_t count) {
  return Blocks(count) * kLanes;
}

// Hands out aligned parts of a buffer one after the other; without a buffer it only adds them up.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* Take(std::int64_t count) {
    char* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) & ~(kAlignment - 1);
    return reinterpret_cast<T*>(at);
  }

  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

// M: the size of m and of the gates marked kMid.
template <class Cell>
[[gnu::always_inline]] inline std::int64_t MidSize(const Sizes& sizes) {
  return kMidIsInput<Cell> ? sizes.input : sizes.hidden;
}

// The columns of W: for x_t and, if the cell reads it, for x_{t-1}.
template <class Cell>
[[gnu::always_inline]] inline std::int64_t InputColumns(const Sizes& sizes) {
  return sizes.input * (kReadsLast<Cell> ? 2 : 1);
}

// The columns of R: for h, or for Q h if R is a product.
[[gnu::always_inline]] inline std::int64_t RecurrentColumns(const Sizes& sizes) {
  return sizes.rank > 0 ? sizes.rank : sizes.hidden;
}

// The first row of a gate in W (R, C, V, b).
template <class Cell, unsigned kTerm>
std::int64_t FirstRow(const Sizes& sizes, int gate) {
  const Rows& rows = kFirstRows<Cell, kTerm>.of[gate];
  return rows.hidden * sizes.hidden + rows.input * sizes.input;
}

// Packs blocks of `count` gates of `size` rows each, whose rows in `source` begin at `first`; those
// of a gate that begins at -1 are 0. Kept apart, so that all cells share it.
[[gnu::noinline]] inline void PackGates(const float* source, const std::int64_t* first, int count,
                                        std::int64_t size, std::int64_t columns, float* packed) {
  for (std::int64_t block = 0; block < Blocks(size); ++block) {
    for (std::int64_t k = 0; k < columns; ++k) {
      for (int g = 0; g < count; ++g) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const std::int64_t row = block * kLanes + lane;
          const bool given = row < size && first[g] >= 0;
          *packed++ = given ? source[(first[g] + row) * columns + k] : 0.0f;
        }
      }
    }
  }
}

// Packs rows (size, depth) as blocks of one gate.
inline void PackMatrix(const float* from, std::int64_t size, std::int64_t depth, float* to) {
  const std::int64_t first = 0;
  PackGates(from, &first, 1, size, depth, to);
}

// Packs the rows of the gates of `Set`, `size` each, from `source`, which stacks those of all gates
// with kTerm.
template <class Cell, unsigned kTerm, class Set>
void PackBlocks(const Sizes& sizes, const float* source, std::int64_t size, std::int64_t columns,
                float* packed) {
  std::int64_t first[kMaxGates] = {};
  for (int i = 0; i < Set::kCount; ++i) first[i] = FirstRow<Cell, kTerm>(sizes, Set::kList.at[i]);
  PackGates(source, first, Set::kCount, size, columns, packed);
}

// Packs b as [block][gate][lane] over all gates, 0 for those outside `Set` or without a bias.
template <class Cell, class Set>
void PackBias(const Sizes& sizes, const float* b, std::int64_t size, float* packed) {
  std::int64_t first[kMaxGates] = {};
  for (int g = 0; g < kGateCount<Cell>; ++g) {
    const bool biased = Set::kRanks.of[g] >= 0 && (Cell::kGates[g].terms & kBias) != 0;
    first[g] = biased ? FirstRow<Cell, kBias>(sizes, g) : -1;
  }
  PackGates(b, first, kGateCount<Cell>, size, 1, packed);
}

// p[i][j][g] += sum over the first `columns` k of a[i * stride + k] * w[block j][k][gate g], for
// the gates g of `Set`; w has `depth` columns.
template <class Set, int MB, int NB, int G>
[[gnu::always_inline]] inline void Accumulate(const float* a, std::int64_t stride,
                                              std::int64_t columns, std::int64_t depth,
                                              const float* w, Vec (&p)[MB][NB][G]) {
  constexpr int kCount = Set::kCount;
  const std::int64_t block_size = depth * kCount * kLanes;
  for (std::int64_t k = 0; k < columns; ++k, w += kCount * kLanes) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        const Vec weight = Load(w + j * block_size + g * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < MB; ++i) {
          Vec& sum = p[i][j][Set::kList.at[g]];
          sum = sum + weight * a[i * stride + k];
        }
      }
    }
  }
}

template <class Set, int MB, int NB, int G>
[[gnu::always_inline]] inline void Accumulate(const float* a, std::int64_t stride,
                                              std::int64_t depth, const float* w,
                                              Vec (&p)[MB][NB][G]) {
  Accumulate<Set>(a, stride, depth, depth, w, p);
}

template <int MB, int NB, class Body>
void TileRows(const Body& body, std::int64_t row, std::int64_t rows, std::int64_t block) {
  for (; row + MB <= rows; row += MB) body.template Tile<MB, NB>(row, block);
  if constexpr (MB > 1) TileRows<MB / 2, NB>(body, row, rows, block);
}

template <int MB, int NB, class Body>
void TileBlocks(const Body& body, std::int64_t rows, std::int64_t block, std::int64_t blocks) {
  for (; block + NB <= blocks; block += NB) TileRows<MB, NB>(body, 0, rows, block);
  if constexpr (NB > 1) TileBlocks<MB, NB / 2>(body, rows, block, blocks);
}

// How many blocks of `gates` gates and `rows` rows keep their sums in registers: a power of two.
constexpr int FitBlocks(int gates, int rows) {
  // a single row is bound by reading the weights: enough sums to hide the latency of adding,
  // and few streams of weights
  const int sums = rows == 1 ? 8 : kRegisters == 32 ? 24 : 12;
  int blocks = 1;
  while (blocks < 4 && 2 * blocks * gates * rows <= sums) blocks *= 2;
  return blocks;
}

// How many rows the tiles of `gates` gates have, where there are so many.
constexpr int FitRows(int gates) { return gates * 4 <= (kRegisters == 32 ? 24 : 12) ? 4 : 2; }

// Covers rows x blocks with body.Tile<MB, NB>(row, block). Rows are the inner loop, so that the
// weights of a tile stay in the cache for all of them.
template <int kGates, class Body>
void ForTiles(const Body& body, std::int64_t rows, std::int64_t blocks) {
  constexpr int kRows = FitRows(kGates);
  if constexpr (kGates == 0) {
    // nothing is multiplied, so there are no weights to use twice
    TileBlocks<1, 1>(body, rows, 0, blocks);
  } else if (rows == 1) {
    TileBlocks<1, FitBlocks(kGates, 1)>(body, 1, 0, blocks);
  } else {
    TileBlocks<kRows, FitBlocks(kGates, kRows)>(body, rows, 0, blocks);
  }
}

// All of the first kCount gates, where the gates need no names.
template <int kGates>
struct EveryGate {
  static constexpr int kCount = kGates;
  static constexpr GateList kList = {kGates, {0, 1, 2, 3, 4, 5, 6, 7}};
};

// See Multiply.
template <int kGates>
struct Product {
  const float* a;
  std::int64_t depth;
  const float* w;
  const float* b;
  std::int64_t blocks;
  float* out;

  template <int MB, int NB>
  void Tile(std::int64_t row, std::int64_t block) const {
    Vec p[MB][NB][kGates];
    for (int i = 0; i < MB; ++i) {
      for (int j = 0; j < NB; ++j) {
        for (int g = 0; g < kGates; ++g) {
          p[i][j][g] = b == nullptr ? Zero() : Load(b + ((block + j) * kGates + g) * kLanes);
        }
      }
    }
    Accumulate<EveryGate<kGates>>(a + row * depth, depth, depth,
                                  w + block * depth * kGates * kLanes, p);
    for (int i = 0; i < MB; ++i) {
      for (int j = 0; j < NB; ++j) {
        float* to = out + ((row + i) * blocks + block + j) * kGates * kLanes;
        for (int g = 0; g < kGates; ++g) Store(to + g * kLanes, p[i][j][g]);
      }
    }
  }
};

// out (rows, blocks, gates, lanes) = a W^T + b, for a (rows, depth); b (blocks, gates, lanes) or
// null. Kept apart, so that all cells with so many gates share it.
template <int kGates>
[[gnu::noinline]] void Multiply(const float* a, std::int64_t rows, std::int64_t depth,
                                const float* w, const float* b, std::int64_t blocks, float* out) {
  ForTiles<kGates>(Product<kGates>{a, depth, w, b, blocks, out}, rows, blocks);
}

// How many steps to project at once: enough rows to use each weight several times.
[[gnu::always_inline]] inline std::int64_t ChunkSteps(std::int64_t steps, std::int64_t batch) {
  const std::int64_t wanted = (16 + batch - 1) / batch;
  return wanted < steps ? wanted : steps;
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_GEMM_H_
