// SPDX-License-Identifier: Apache-2.0
// Matrix products with packed float32, bfloat16 or int8 weights, tiled for registers. The layout of
// the sums is [row][block][gate][lane]. The weights may have only some of the gates.

#pragma once

#include "cpu/compress.h"
#include "cpu/pack_panels.h"

namespace edgernn::EDGERNN_ISA {

// A product of packed weights with `a`, which is added to the sums of some gates. An array of them
// is not initialised; Product{} has float32 weights.
struct Product {
  const float* a;  // (rows, columns)
  std::int64_t stride;
  std::int64_t columns;  // the first `columns` of the weights are multiplied
  std::int64_t depth;    // number of columns of the weights
  const void* w;
  GateList places;             // indices of the gates of w among those of the sums
  int gates;                   // number of gates of the sums
  std::int64_t blocks;         // number of blocks of w
  const float* b;              // (blocks, gates, lanes)
  unsigned from_bias;          // bit i: the sums of the i-th gate of w start from b
  std::int64_t largest_panel;  // number of blocks in the largest panels of w; the tiles of
                               // this file need LargestPanel of its gates
  NumberType type;             // type of w
  // for kInt8 only
  bool dots;
  const float* scales;      // (blocks, gates of w, lanes)
  QuantizedRows quantized;  // read instead of a

  // Sets the inputs to the first `count` columns of `from` (rows, row_stride), and quantizes them
  // to `to` if the weights are int8.
  [[gnu::always_inline]] void SetInputs(const float* from, std::int64_t rows,
                                        std::int64_t row_stride, std::int64_t count,
                                        const QuantizedRows& to) {
    if (type == NumberType::kInt8) to.Read(from, row_stride, rows, count, depth);
    a = from;
    stride = row_stride;
    columns = count;
    quantized = to;
  }
};

// A view of the sums of a tile, from its first row and block on. Blocks are contiguous.
struct Sums {
  float* at;
  std::int64_t stride;
};

// Number of cache lines of the next panel that are prefetched at the end of a panel.
constexpr int kPrefetchLines = 16;
constexpr int kLineFloats = 16;

// Reads and writes the sums of a tile, which start from `from` or from the bias.
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
      const bool from_bias = (product.from_bias >> g & 1) != 0;
      start[g].at = from_bias ? const_cast<float*>(product.b) + block * gates : from.at;
      start[g].stride = from_bias ? 0 : from.stride;
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

// The index of a vector of a tile's weights in column 0. A tile may have several panels of
// `vectors` vectors each: to read memory at several places at once is faster.
template <int kCount>
[[gnu::always_inline]] inline std::int64_t WeightIndex(int block, int gate, std::int64_t vectors) {
  constexpr int kPanel = static_cast<int>(LargestPanel(kCount));
  return block / kPanel * vectors + block % kPanel * kCount + gate;
}

// Computes to = from + the product, for a tile of MB rows and NB blocks. Not inlined, as the loop
// needs all registers.
template <int kCount, int MB, int NB>
[[gnu::noinline]] void AddFloat32Tile(const Product& product, std::int64_t row, std::int64_t block,
                                      Sums from, Sums to) {
  const std::int64_t stride = product.stride, columns = product.columns;
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const float* a = product.a + row * stride;
  const float* w =
      static_cast<const float*>(product.w) + PackedOffset(panel, block, 0, kCount, product.depth);
  const std::int64_t step = panel.size * kCount * kLanes;
  const std::int64_t vectors = panel.size * kCount * product.depth;
  const TileSums<kCount> sums(product, block, from, to);
  Vec p[MB][NB][kCount];
  sums.ReadAll(p);
  // the fewer of the weights and the factors of a column stay in registers
  constexpr bool kHoldsWeights = MB > kCount * NB;
  for (std::int64_t k = 0; k < columns; ++k, w += step) {
    Vec weights[NB][kCount];
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        Vec& weight = weights[j][g];
        weight = Load(w + WeightIndex<kCount>(j, g, vectors) * kLanes);
        if (kHoldsWeights || (MB > 1 && kCount * MB * NB + MB < kRegisters)) KeepInRegister(weight);
#pragma GCC unroll 16
        for (int i = 0; i < MB && !kHoldsWeights; ++i) {
          p[i][j][g] = p[i][j][g] + weight * a[i * stride + k];
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MB && kHoldsWeights; ++i) {
      const float factor = a[i * stride + k];
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
        for (int g = 0; g < kCount; ++g) p[i][j][g] = p[i][j][g] + weights[j][g] * factor;
      }
    }
  }
  if constexpr (MB == 1) {
    // loads the next panels while the caller uses these sums
    constexpr int kPanels =
        NB < LargestPanel(kCount) ? 1 : NB / static_cast<int>(LargestPanel(kCount));
    const float* next = w + (kPanels * vectors * kLanes - step * columns);
    for (int i = 0; i < kPanels; ++i, next += vectors * kLanes) {
      for (int line = 0; line < kPrefetchLines / kPanels; ++line) {
        __builtin_prefetch(next + line * kLineFloats);
      }
    }
  }
  sums.WriteAll(p);
}

// AddFloat32Tile for bfloat16 weights.
template <int kCount, int MB, int NB>
[[gnu::noinline]] void AddBfloat16Tile(const Product& product, std::int64_t row, std::int64_t block,
                                       Sums from, Sums to) {
  const std::int64_t stride = product.stride, columns = product.columns;
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const float* a = product.a + row * stride;
  const float* w = static_cast<const float*>(product.w) +
                   PackedOffset(panel, block, 0, kCount, Words(product.depth, 2));
  const std::int64_t step = panel.size * kCount * kLanes;
  const std::int64_t vectors = panel.size * kCount * Words(product.depth, 2);
  const TileSums<kCount> sums(product, block, from, to);
  Vec p[MB][NB][kCount];
  sums.ReadAll(p);
  const auto add = [&](std::int64_t k, bool both) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        const Bfloat16Pair weights =
            LoadBfloat16Pair(w + WeightIndex<kCount>(j, g, vectors) * kLanes);
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
  // a[k + 1] may be out of bounds
  if (k < columns) add(k, false);
  sums.WriteAll(p);
}

// AddFloat32Tile for int8 weights.
template <int kCount, int MB, int NB, bool kDots>
[[gnu::noinline]] void AddInt8Tile(const Product& product, std::int64_t row, std::int64_t block,
                                   Sums from, Sums to) {
  using Bytes = Int8Product<kDots>;
  constexpr int kWide = kLanes * Bytes::kColumns;
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const std::int64_t stride = product.quantized.stride;
  const std::int16_t* const a = product.quantized.at + row * stride;
  const std::int64_t depth_words = Words(product.depth, Bytes::kColumns);
  const std::int64_t words = Words(product.columns, Bytes::kColumns);
  const std::int8_t* const start =
      static_cast<const std::int8_t*>(product.w) +
      Bytes::kColumns * PackedOffset(panel, block, 0, kCount, depth_words);
  const std::int64_t step = panel.size * kCount * kWide;
  const std::int64_t vectors = panel.size * kCount * depth_words;
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
          const auto weights = Bytes::Load(w + WeightIndex<kCount>(j, g, vectors) * kWide);
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
  // [type][gates - 1][rows - 1][log2 of blocks]; type kNumberTypes is int8 with dots
  TileFunction functions[kNumberTypes + kHasDots][kMaxTerm][kTileRows][kTileSizes];
};

template <int kType, int kCount, int MB, int NB>
constexpr TileFunction ChooseTile() {
  constexpr bool kIsInt8 = kType >= static_cast<int>(NumberType::kInt8);
  if constexpr (kCount * MB * NB > kTileSums || (kIsInt8 && MB > kInt8TileRows)) {
    return nullptr;
  } else if constexpr (kIsInt8) {
    return &AddInt8Tile<kCount, MB, NB, kType == kNumberTypes>;
  } else if constexpr (kType == static_cast<int>(NumberType::kBfloat16)) {
    return &AddBfloat16Tile<kCount, MB, NB>;
  } else {
    return &AddFloat32Tile<kCount, MB, NB>;
  }
}

template <int kType, int kCount, std::size_t... kRows>
constexpr void FillTiles(TileTable* table, std::index_sequence<kRows...>) {
  TileFunction(&to)[kTileRows][kTileSizes] = table->functions[kType][kCount - 1];
  ((to[kRows][0] = ChooseTile<kType, kCount, kRows + 1, 1>()), ...);
  ((to[kRows][1] = ChooseTile<kType, kCount, kRows + 1, 2>()), ...);
  ((to[kRows][2] = ChooseTile<kType, kCount, kRows + 1, 4>()), ...);
}

template <std::size_t... kTypes>
constexpr TileTable MakeTiles(std::index_sequence<kTypes...>) {
  constexpr std::make_index_sequence<kTileRows> kRows;
  TileTable table{};
  (FillTiles<kTypes, 1>(&table, kRows), ...);
  (FillTiles<kTypes, 2>(&table, kRows), ...);
  (FillTiles<kTypes, 3>(&table, kRows), ...);
  (FillTiles<kTypes, 4>(&table, kRows), ...);
  return table;
}

constexpr TileTable kTiles = MakeTiles(std::make_index_sequence<kNumberTypes + kHasDots>());

// Calls body(row, block, shape) for tiles that cover all rows and blocks. Rows are the inner loop,
// so that the weights of a tile stay in the cache.
template <class Body>
[[gnu::always_inline]] inline void ForTiles(TileShape largest, std::int64_t rows,
                                            std::int64_t blocks, const Body& body) {
  TileShape shape = largest;
  for (std::int64_t block = 0; block < blocks; block += 1 << shape.blocks) {
    while (block + (1 << shape.blocks) > blocks) --shape.blocks;
    for (std::int64_t row = 0; row < rows; row += shape.rows) {
      shape.rows = NextRows(largest.rows, rows - row);
      body(row, block, shape);
    }
  }
}

[[gnu::always_inline]] inline void AddProduct(const Product& product, std::int64_t row,
                                              std::int64_t block, TileShape shape, Sums from,
                                              Sums to) {
  const int gates = product.places.count;
  const int type = product.dots ? kNumberTypes : static_cast<int>(product.type);
  kTiles.functions[type][gates - 1][shape.rows - 1][shape.blocks](product, row, block, from, to);
}

// Computes sums (rows, blocks, gates, lanes) = b + the product, for the product's gates.
[[gnu::noinline]] inline void StartSums(const Product& product, std::int64_t rows, float* sums) {
  if (product.places.count == 0) return;
  const std::int64_t gates = product.gates * kLanes, stride = product.blocks * gates;
  ForTiles(FitTile(product.places.count, rows, product.type), rows, product.blocks,
           [&](std::int64_t row, std::int64_t block, TileShape shape) {
             const Sums to{sums + row * stride + block * gates, stride};
             AddProduct(product, row, block, shape, to, to);
           });
}

// The product of rows (depth,) with packed float32 weights w of one gate, from b (blocks, lanes)
// on.
inline Product OneGate(std::int64_t depth, const float* w, const float* b, std::int64_t blocks) {
  Product product{};
  product.stride = depth;
  product.columns = depth;
  product.depth = depth;
  product.w = w;
  product.places.count = 1;
  product.gates = 1;
  product.blocks = blocks;
  product.b = b;
  product.from_bias = 1;
  return product;
}

// Computes out (rows, blocks, lanes) = a W^T + b, for a (rows, depth), packed weights w of one gate
// and b (blocks, lanes).
inline void Multiply(const float* a, std::int64_t rows, std::int64_t depth, const float* w,
                     const float* b, std::int64_t blocks, float* out) {
  Product product = OneGate(depth, w, b, blocks);
  product.a = a;
  StartSums(product, rows, out);
}

// The number of steps whose products with x are computed at once: at least 16 rows, so that each
// loaded weight is used several times.
[[gnu::always_inline]] inline std::int64_t ChunkSteps(std::int64_t steps, std::int64_t batch) {
  const std::int64_t chunk = (16 + batch - 1) / batch;
  return chunk < steps ? chunk : steps;
}

}  // namespace edgernn::EDGERNN_ISA
