// SPDX-License-Identifier: Apache-2.0
// Matrix products on packed weights, and the tiles they work in.
//
// Packed weights are [panel][k][block of the panel][gate][lane]: a block is kLanes neighbouring
// rows (neurons), and a panel so many blocks as a tile of one row has, which reads it from end to
// end and then the next; see Panel. Sums are [row][block][gate][lane], where the weights may have
// only some of the gates.

#ifndef EDGERNN_GEMM_H_
#define EDGERNN_GEMM_H_

#include "carver.h"
#include "kernel.h"
#include "vec.h"

namespace edgernn::EDGERNN_ISA {

[[gnu::always_inline]] inline std::int64_t Blocks(std::int64_t count) {
  return (count + kLanes - 1) / kLanes;
}

[[gnu::always_inline]] inline std::int64_t Padded(std::int64_t count) {
  return Blocks(count) * kLanes;
}

[[gnu::always_inline]] inline std::size_t Bytes(std::int64_t floats) {
  return static_cast<std::size_t>(floats) * sizeof(float);
}

// So many sums of one row, and of several, are kept in registers.
constexpr int kRowSums = kRegisters == 32 ? 16 : 8;
constexpr int kTileSums = kRegisters == 32 ? 24 : 12;

// A tile has at most 4 x 4 rows and blocks.
constexpr int kTileSizes = 3;

// log2 of the rows and blocks of a tile.
struct TileShape {
  int rows;
  int blocks;
};

// The largest tile that keeps the sums of so many gates in registers.
inline TileShape FitTile(int gates, std::int64_t rows) {
  TileShape shape{0, 0};
  const int sums = rows == 1 ? kRowSums : kTileSums;
  if (rows > 1) shape.rows = gates * 4 <= kTileSums ? 2 : 1;
  while (shape.blocks + 1 < kTileSizes && gates << (shape.rows + shape.blocks + 1) <= sums) {
    ++shape.blocks;
  }
  return shape;
}

// The panel that a block is in: so many blocks, a power of two, from `first` on. The last ones,
// where there are fewer blocks, are smaller and smaller.
struct Panel {
  std::int64_t first;
  std::int64_t size;

  [[gnu::always_inline]] Panel(std::int64_t largest, std::int64_t block, std::int64_t blocks)
      : first(block & -largest), size(largest) {
    while (first + size > blocks) {
      size /= 2;
      first = block & -size;
    }
  }
};

inline std::int64_t LargestPanel(int gates) { return std::int64_t{1} << FitTile(gates, 1).blocks; }

// Where the first lane of a block is among packed weights, for column k and gate 0.
[[gnu::always_inline]] inline std::int64_t PackedAt(const Panel& panel, std::int64_t block,
                                                    std::int64_t k, int gates, std::int64_t depth) {
  return (panel.first * depth + k * panel.size + block - panel.first) * gates * kLanes;
}

// Packs the weights of `count` gates of `size` rows each, whose rows in `source` begin at `first`;
// those of a gate that begins at -1 are 0.
[[gnu::noinline]] inline void PackGates(const Values& source, const std::int64_t* first, int count,
                                        std::int64_t size, std::int64_t columns,
                                        std::int64_t largest, float* packed) {
  for (std::int64_t block = 0; block < Blocks(size); ++block) {
    const Panel panel(largest, block, Blocks(size));
    for (std::int64_t k = 0; k < columns; ++k) {
      float* to = packed + PackedAt(panel, block, k, count, columns);
      for (int g = 0; g < count; ++g) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const std::int64_t row = block * kLanes + lane;
          const bool given = row < size && first[g] >= 0;
          *to++ = given ? source[(first[g] + row) * columns + k] : 0.0f;
        }
      }
    }
  }
}

// Packs rows (size, depth) as those of one gate; for Multiply in panels as it takes them.
inline void PackMatrix(const Values& from, std::int64_t size, std::int64_t depth,
                       std::int64_t largest, float* to) {
  const std::int64_t first = 0;
  PackGates(from, &first, 1, size, depth, largest, to);
}

// A factor and packed weights, whose product is added to the sums of some gates.
struct Product {
  const float* a;  // (rows, columns), its rows `stride` apart
  std::int64_t stride;
  std::int64_t columns;  // so many are read, the first ones of the `depth` that the weights have
  std::int64_t depth;
  const float* w;
  GateList places;      // of the gates of w among those of the sums
  int gates;            // of the sums
  std::int64_t blocks;  // of w
  const float* b;       // (blocks, gates, lanes)
  unsigned fresh;       // bit i: the sums of the i-th gate of w begin with b
};

// Sums in memory, at the first row and block of a tile: rows `stride` apart, blocks one after the
// other.
struct Sums {
  float* at;
  std::int64_t stride;
};

// So many lines of the next panel are fetched at the end of one.
constexpr int kAhead = 16;
constexpr int kLineFloats = 16;

// The sums `to` of MB rows x NB blocks become those of `from` and a product. Kept apart: the loop
// needs every register.
template <int kCount, int MB, int NB>
[[gnu::noinline]] void AddTile(const Product& product, std::int64_t row, std::int64_t block,
                               Sums from, Sums to) {
  const std::int64_t stride = product.stride, columns = product.columns;
  const std::int64_t gates = product.gates * kLanes;
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const float* a = product.a + row * stride;
  const float* w = product.w + PackedAt(panel, block, 0, kCount, product.depth);
  const std::int64_t step = panel.size * kCount * kLanes;
  std::int64_t place[kCount];
  Sums start[kCount];
#pragma GCC unroll 16
  for (int g = 0; g < kCount; ++g) {
    place[g] = product.places.at[g] * kLanes;
    const bool fresh = (product.fresh >> g & 1) != 0;
    start[g].at = fresh ? const_cast<float*>(product.b) + block * gates : from.at;
    start[g].stride = fresh ? 0 : from.stride;
  }
  Vec p[MB][NB][kCount];
#pragma GCC unroll 16
  for (int i = 0; i < MB; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        p[i][j][g] = Load(start[g].at + i * start[g].stride + j * gates + place[g]);
      }
    }
  }
  for (std::int64_t k = 0; k < columns; ++k, w += step) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        const Vec weight = Load(w + (j * kCount + g) * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < MB; ++i) p[i][j][g] = p[i][j][g] + weight * a[i * stride + k];
      }
    }
  }
  if constexpr (MB == 1) {
    // reading goes on while these sums are made use of
    for (int line = 0; line < kAhead; ++line) __builtin_prefetch(w + line * kLineFloats);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MB; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        Store(to.at + i * to.stride + j * gates + place[g], p[i][j][g]);
      }
    }
  }
}

// A term has at most 4 gates.
constexpr int kMaxTerm = 4;

using TileFunction = void (*)(const Product&, std::int64_t row, std::int64_t block, Sums from,
                              Sums to);

struct TileTable {
  TileFunction of[kMaxTerm][kTileSizes][kTileSizes];  // by gates, log2 of rows, log2 of blocks
};

template <int kCount, int MB, int NB>
constexpr TileFunction ChooseTile() {
  if constexpr (kCount * MB * NB <= kTileSums) {
    return &AddTile<kCount, MB, NB>;
  } else {
    return nullptr;
  }
}

template <int kCount>
constexpr void FillTiles(TileTable* table) {
  TileFunction(&to)[kTileSizes][kTileSizes] = table->of[kCount - 1];
  to[0][0] = ChooseTile<kCount, 1, 1>();
  to[0][1] = ChooseTile<kCount, 1, 2>();
  to[0][2] = ChooseTile<kCount, 1, 4>();
  to[1][0] = ChooseTile<kCount, 2, 1>();
  to[1][1] = ChooseTile<kCount, 2, 2>();
  to[1][2] = ChooseTile<kCount, 2, 4>();
  to[2][0] = ChooseTile<kCount, 4, 1>();
  to[2][1] = ChooseTile<kCount, 4, 2>();
  to[2][2] = ChooseTile<kCount, 4, 4>();
}

constexpr TileTable MakeTiles() {
  TileTable table{};
  FillTiles<1>(&table);
  FillTiles<2>(&table);
  FillTiles<3>(&table);
  FillTiles<4>(&table);
  return table;
}

constexpr TileTable kTiles = MakeTiles();

// Covers rows x blocks with body(row, block, shape). Rows are the inner loop, so that the weights
// of a tile stay in the cache for all of them.
template <class Body>
[[gnu::always_inline]] inline void ForTiles(TileShape largest, std::int64_t rows,
                                            std::int64_t blocks, const Body& body) {
  TileShape shape = largest;
  for (std::int64_t block = 0; block < blocks; block += 1 << shape.blocks) {
    while (block + (1 << shape.blocks) > blocks) --shape.blocks;
    shape.rows = largest.rows;
    for (std::int64_t row = 0; row < rows; row += 1 << shape.rows) {
      while (row + (1 << shape.rows) > rows) --shape.rows;
      body(row, block, shape);
    }
  }
}

[[gnu::always_inline]] inline void AddProduct(const Product& product, std::int64_t row,
                                              std::int64_t block, TileShape shape, Sums from,
                                              Sums to) {
  kTiles.of[product.places.count - 1][shape.rows][shape.blocks](product, row, block, from, to);
}

// sums (rows, blocks, gates, lanes) of the product's gates, all of them fresh.
[[gnu::noinline]] inline void StartSums(const Product& product, std::int64_t rows, float* sums) {
  if (product.places.count == 0) return;
  const std::int64_t gates = product.gates * kLanes, stride = product.blocks * gates;
  ForTiles(FitTile(product.places.count, rows), rows, product.blocks,
           [&](std::int64_t row, std::int64_t block, TileShape shape) {
             const Sums to{sums + row * stride + block * gates, stride};
             AddProduct(product, row, block, shape, to, to);
           });
}

// out (rows, blocks, lanes) = a W^T + b, for a (rows, depth), packed blocks of one gate, and
// b (blocks, lanes).
inline void Multiply(const float* a, std::int64_t rows, std::int64_t depth, const float* w,
                     const float* b, std::int64_t blocks, float* out) {
  StartSums({a, depth, depth, depth, w, {1, {0}}, 1, blocks, b, 1}, rows, out);
}

// How many steps to project at once: enough rows to use each weight several times.
[[gnu::always_inline]] inline std::int64_t ChunkSteps(std::int64_t steps, std::int64_t batch) {
  const std::int64_t wanted = (16 + batch - 1) / batch;
  return wanted < steps ? wanted : steps;
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_GEMM_H_
