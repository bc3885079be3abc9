// SPDX-License-Identifier: Apache-2.0
// Matrix products with packed float32, bfloat16 or int8 weights, in register tiles. Sums are
// [row][block][gate][lane], where the weights may have only some of the gates.

#ifndef EDGERNN_CPU_GEMM_H_
#define EDGERNN_CPU_GEMM_H_

#include "cpu/pack_panels.h"

namespace edgernn::EDGERNN_ISA {

// A factor and packed weights, whose product is added to the sums of some gates.
struct Product {
  const float* a;  // (rows, columns), its rows `stride` apart
  std::int64_t stride;
  std::int64_t columns;  // so many are read, the first ones of the `depth` that the weights have
  std::int64_t depth;
  const void* w;
  GateList places;                         // of the gates of w among those of the sums
  int gates;                               // of the sums
  std::int64_t blocks;                     // of w
  const float* b;                          // (blocks, gates, lanes)
  unsigned fresh;                          // bit i: the sums of the i-th gate of w begin with b
  NumberType type = NumberType::kFloat32;  // of w
  // of kInt8 only
  bool dots = false;
  const float* scales = nullptr;  // (blocks, gates of w, lanes)
  QuantizedRows quantized{};      // in place of a
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

// Where the sums of a tile are read and written.
template <int kCount>
struct TileSums {
  std::int64_t place[kCount];
  Sums start[kCount];
  Sums to;
  std::int64_t gates;

  [[gnu::always_inline]] TileSums(const Product& product, std::int64_t block, Sums from, Sums to)
      : to(to), gates(product.gates * kLanes) {
#pragma GCC unroll 16
    for (int g = 0; g < kCount; ++g) {
      place[g] = product.places.at[g] * kLanes;
      const bool fresh = (product.fresh >> g & 1) != 0;
      start[g].at = fresh ? const_cast<float*>(product.b) + block * gates : from.at;
      start[g].stride = fresh ? 0 : from.stride;
    }
  }

  [[gnu::always_inline]] Vec Read(int i, int j, int g) const {
    return Load(start[g].at + i * start[g].stride + j * gates + place[g]);
  }

  [[gnu::always_inline]] void Write(int i, int j, int g, Vec sum) const {
    Store(to.at + i * to.stride + j * gates + place[g], sum);
  }

  template <int MB, int NB>
  [[gnu::always_inline]] void ReadAll(Vec (&p)[MB][NB][kCount]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MB; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
        for (int g = 0; g < kCount; ++g) p[i][j][g] = Read(i, j, g);
      }
    }
  }

  template <int MB, int NB>
  [[gnu::always_inline]] void WriteAll(const Vec (&p)[MB][NB][kCount]) const {
#pragma GCC unroll 16
    for (int i = 0; i < MB; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
        for (int g = 0; g < kCount; ++g) Write(i, j, g, p[i][j][g]);
      }
    }
  }
};

// to = from + a product, for MB rows x NB blocks of sums. Not inlined: the loop needs every
// register.
template <int kCount, int MB, int NB>
[[gnu::noinline]] void AddFloat32Tile(const Product& product, std::int64_t row, std::int64_t block,
                                      Sums from, Sums to) {
  const std::int64_t stride = product.stride, columns = product.columns;
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const float* a = product.a + row * stride;
  const float* w =
      static_cast<const float*>(product.w) + PackedOffset(panel, block, 0, kCount, product.depth);
  const std::int64_t step = panel.size * kCount * kLanes;
  const TileSums<kCount> sums(product, block, from, to);
  Vec p[MB][NB][kCount];
  sums.ReadAll(p);
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
  sums.WriteAll(p);
}

// The same with bfloat16 weights.
template <int kCount, int MB, int NB>
[[gnu::noinline]] void AddBfloat16Tile(const Product& product, std::int64_t row, std::int64_t block,
                                       Sums from, Sums to) {
  const std::int64_t stride = product.stride, columns = product.columns;
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const float* a = product.a + row * stride;
  const float* w = static_cast<const float*>(product.w) +
                   PackedOffset(panel, block, 0, kCount, Words(product.depth, 2));
  const std::int64_t step = panel.size * kCount * kLanes;
  const TileSums<kCount> sums(product, block, from, to);
  Vec p[MB][NB][kCount];
  sums.ReadAll(p);
  const auto add = [&](std::int64_t k, bool both) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        const Bfloat16Pair weights = LoadBfloat16Pair(w + (j * kCount + g) * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < MB; ++i) {
          p[i][j][g] = p[i][j][g] + weights.first * a[i * stride + k];
          if (both) p[i][j][g] = p[i][j][g] + weights.second * a[i * stride + k + 1];
        }
      }
    }
  };
  std::int64_t k = 0;
  for (; k + 2 <= columns; k += 2, w += step) add(k, true);
  // there may be nothing to read after the last column
  if (k < columns) add(k, false);
  sums.WriteAll(p);
}

// The same with int8 weights.
template <int kCount, int MB, int NB, bool kDots>
[[gnu::noinline]] void AddInt8Tile(const Product& product, std::int64_t row, std::int64_t block,
                                   Sums from, Sums to) {
  using Bytes = Int8Product<kDots>;
  constexpr int kWide = kLanes * Bytes::kColumns;
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const std::int64_t stride = product.quantized.stride;
  const std::int16_t* const a = product.quantized.at + row * stride;
  const std::int64_t deep = Words(product.depth, Bytes::kColumns);
  const std::int64_t words = Words(product.columns, Bytes::kColumns);
  const std::int8_t* const start = static_cast<const std::int8_t*>(product.w) +
                                   Bytes::kColumns * PackedOffset(panel, block, 0, kCount, deep);
  const std::int64_t step = panel.size * kCount * kWide;
  Vec::Bits p[MB][NB][kCount] = {};
#pragma GCC unroll 2
  for (int pass = 0; pass < Bytes::kPasses; ++pass) {
    if (pass > 0) {
#pragma GCC unroll 32
      for (int i = 0; i < MB * NB * kCount; ++i) (&p[0][0][0])[i] <<= 8;
    }
    const std::int8_t* w = start;
    for (std::int64_t k = 0; k < words; ++k, w += step) {
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
        for (int g = 0; g < kCount; ++g) {
          const auto weights = Bytes::Load(w + (j * kCount + g) * kWide);
#pragma GCC unroll 16
          for (int i = 0; i < MB; ++i) {
            const auto factor = Bytes::Fill(a + i * stride + Bytes::kColumns * k, pass);
            p[i][j][g] = Bytes::Add(p[i][j][g], weights, factor);
          }
        }
      }
    }
  }
  const TileSums<kCount> sums(product, block, from, to);
  const float* scales = product.scales + block * kCount * kLanes;
#pragma GCC unroll 16
  for (int i = 0; i < MB; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        const Vec scale =
            Load(scales + (j * kCount + g) * kLanes) * product.quantized.scales[row + i];
        sums.Write(i, j, g, sums.Read(i, j, g) + ToFloats(p[i][j][g]) * scale);
      }
    }
  }
}

using TileFunction = void (*)(const Product&, std::int64_t row, std::int64_t block, Sums from,
                              Sums to);

struct TileTable {
  // by the type of weights, gates, log2 of rows, log2 of blocks; after the types, bytes with dots
  TileFunction of[kNumberTypes + kHasDots][kMaxTerm][kTileSizes][kTileSizes];
};

template <int kType, int kCount, int MB, int NB>
constexpr TileFunction ChooseTile() {
  if constexpr (kCount * MB * NB > kTileSums) {
    return nullptr;
  } else if constexpr (kType >= static_cast<int>(NumberType::kInt8)) {
    return &AddInt8Tile<kCount, MB, NB, kType == kNumberTypes>;
  } else if constexpr (kType == static_cast<int>(NumberType::kBfloat16)) {
    return &AddBfloat16Tile<kCount, MB, NB>;
  } else {
    return &AddFloat32Tile<kCount, MB, NB>;
  }
}

template <int kType, int kCount>
constexpr void FillTiles(TileTable* table) {
  TileFunction(&to)[kTileSizes][kTileSizes] = table->of[kType][kCount - 1];
  to[0][0] = ChooseTile<kType, kCount, 1, 1>();
  to[0][1] = ChooseTile<kType, kCount, 1, 2>();
  to[0][2] = ChooseTile<kType, kCount, 1, 4>();
  to[1][0] = ChooseTile<kType, kCount, 2, 1>();
  to[1][1] = ChooseTile<kType, kCount, 2, 2>();
  to[1][2] = ChooseTile<kType, kCount, 2, 4>();
  to[2][0] = ChooseTile<kType, kCount, 4, 1>();
  to[2][1] = ChooseTile<kType, kCount, 4, 2>();
  to[2][2] = ChooseTile<kType, kCount, 4, 4>();
}

template <std::size_t... kTypes>
constexpr TileTable MakeTiles(std::index_sequence<kTypes...>) {
  TileTable table{};
  (FillTiles<kTypes, 1>(&table), ...);
  (FillTiles<kTypes, 2>(&table), ...);
  (FillTiles<kTypes, 3>(&table), ...);
  (FillTiles<kTypes, 4>(&table), ...);
  return table;
}

constexpr TileTable kTiles = MakeTiles(std::make_index_sequence<kNumberTypes + kHasDots>());

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
  const int gates = product.places.count;
  const int type = product.dots ? kNumberTypes : static_cast<int>(product.type);
  kTiles.of[type][gates - 1][shape.rows][shape.blocks](product, row, block, from, to);
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
  Product product{};
  product.a = a;
  product.stride = depth;
  product.columns = depth;
  product.depth = depth;
  product.w = w;
  product.places.count = 1;
  product.gates = 1;
  product.blocks = blocks;
  product.b = b;
  product.fresh = 1;
  StartSums(product, rows, out);
}

// How many steps to project at once: enough rows to use each weight several times.
[[gnu::always_inline]] inline std::int64_t ChunkSteps(std::int64_t steps, std::int64_t batch) {
  const std::int64_t wanted = (16 + batch - 1) / batch;
  return wanted < steps ? wanted : steps;
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_CPU_GEMM_H_
