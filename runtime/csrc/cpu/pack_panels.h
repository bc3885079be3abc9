// SPDX-License-Identifier: Apache-2.0
// Packs weights into panels for the tiles of gemm.h.
//
// The layout is [panel][column][block of the panel][gate][lane]. A block is kLanes neighbouring
// rows (neurons). A panel has the blocks of a tile of one row, which reads the panels sequentially.
// bfloat16 and int8 weights are packed in pairs of columns, see low_precision.h.

#pragma once

#include "cpu/low_precision.h"

namespace edgernn::EDGERNN_ISA {

[[gnu::always_inline]] inline std::int64_t Blocks(std::int64_t count) {
  return (count + kLanes - 1) / kLanes;
}

[[gnu::always_inline]] inline std::int64_t PadToLanes(std::int64_t count) {
  return Blocks(count) * kLanes;
}

[[gnu::always_inline]] inline std::uint64_t Bytes(std::int64_t floats) {
  return static_cast<std::uint64_t>(floats) * sizeof(float);
}

// The number of words that hold the columns, with `per_word` columns each.
[[gnu::always_inline]] inline std::int64_t Words(std::int64_t columns, int per_word) {
  return (columns + per_word - 1) / per_word;
}

// Number of sums in registers: for tiles of one row, and of several rows.
constexpr int kRowSums = kRegisters == 32 ? 16 : 8;
constexpr int kTileSums = kRegisters == 32 ? 24 : 12;

// A tile has 1 to kTileRows rows, and 1, 2 or 4 blocks.
constexpr int kTileRows = kRegisters == 32 ? 4 : 6;
constexpr int kInt8TileRows = 4;
constexpr int kTileSizes = 3;

struct TileShape {
  int rows;
  int blocks;  // log2
};

// The largest tile of at most `rows` rows whose sums, of this number of gates, fit in registers.
// Products of int8 weights need more registers beside the sums, so the largest one has 1, 2 or 4
// rows.
constexpr TileShape FitTile(int gates, std::int64_t rows, NumberType type = NumberType::kFloat32) {
  TileShape shape{1, 0};
  const bool is_int8 = type == NumberType::kInt8;
  const int sums = rows == 1 ? kRowSums : kTileSums, limit = is_int8 ? kInt8TileRows : kTileRows;
  const int most = rows < limit ? static_cast<int>(rows) : limit;
  for (int next = 2; next <= most && gates * next <= sums; next = is_int8 ? 2 * next : next + 1) {
    shape.rows = next;
  }
  while (shape.blocks + 1 < kTileSizes && (gates * shape.rows) << (shape.blocks + 1) <= sums) {
    ++shape.blocks;
  }
  return shape;
}

// The rows of the next tile of at most `most` rows: the last two tiles have about as many.
[[gnu::always_inline]] inline int NextRows(int most, std::int64_t left) {
  return static_cast<int>(left <= most ? left : left < 2 * most ? (left + 1) / 2 : most);
}

// The panel of a block: `size` blocks, a power of two, from `first` on. The last panels are smaller
// so that no panel exceeds the number of blocks.
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

constexpr std::int64_t LargestPanel(int gates) {
  return std::int64_t{1} << FitTile(gates, 1 << kTileSizes).blocks;
}

// The offset of a block's first lane in packed weights, for column k and gate 0.
[[gnu::always_inline]] inline std::int64_t PackedOffset(const Panel& panel, std::int64_t block,
                                                        std::int64_t k, int gates,
                                                        std::int64_t depth) {
  return (panel.first * depth + k * panel.size + block - panel.first) * gates * kLanes;
}

// Packs the weights of `count` gates of `size` rows each. Gate g has its rows in `source` from row
// first[g] on; a gate with -1 is packed as zeros.
[[gnu::noinline, gnu::cold]] inline void PackGates(const Values& source, const std::int64_t* first,
                                                   int count, std::int64_t size,
                                                   std::int64_t columns, std::int64_t largest,
                                                   float* packed) {
  for (std::int64_t block = 0; block < Blocks(size); ++block) {
    const Panel panel(largest, block, Blocks(size));
    for (std::int64_t k = 0; k < columns; ++k) {
      float* to = packed + PackedOffset(panel, block, k, count, columns);
      for (int g = 0; g < count; ++g) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const std::int64_t row = block * kLanes + lane;
          const bool present = row < size && first[g] >= 0;
          *to++ = present ? source[(first[g] + row) * columns + k] : 0.0f;
        }
      }
    }
  }
}

// Packs a matrix (size, depth) as one gate. Multiply needs panels of at most LargestPanel(1).
inline void PackMatrix(const Values& from, std::int64_t size, std::int64_t depth,
                       std::int64_t largest, float* to) {
  const std::int64_t first = 0;
  PackGates(from, &first, 1, size, depth, largest, to);
}

// PackGates for bfloat16 or int8 weights, with `per_word` columns per lane. Weights of int8 have
// `scales` (blocks, gates, lanes).
[[gnu::noinline, gnu::cold]] inline void PackLowPrecision(const Values& source,
                                                          const std::int64_t* first, int count,
                                                          std::int64_t size, std::int64_t columns,
                                                          std::int64_t largest, NumberType type,
                                                          int per_word, void* packed,
                                                          float* scales) {
  for (std::int64_t block = 0; block < Blocks(size); ++block) {
    const Panel panel(largest, block, Blocks(size));
    const std::int64_t words = Words(columns, per_word), lanes = kLanes * per_word;
    const std::int64_t start = per_word * PackedOffset(panel, block, 0, count, words);
    const std::int64_t step = panel.size * count * lanes;
    for (int g = 0; g < count; ++g) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const std::int64_t row = block * kLanes + lane;
        const bool present = row < size && first[g] >= 0;
        const std::int64_t from = (first[g] + row) * columns;
        const std::int64_t place = start + g * lanes + per_word * lane;
        float* const scale = scales + (block * count + g) * kLanes + lane;
        if (type == NumberType::kInt8) *scale = present ? Int8Scale(source, from, columns) : 0.0f;
        for (std::int64_t k = 0; k < per_word * words; ++k) {
          const float value = present && k < columns ? source[from + k] : 0.0f;
          const std::int64_t at = place + k / per_word * step + k % per_word;
          if (type == NumberType::kInt8) {
            static_cast<std::int8_t*>(packed)[at] = ToInt8(value, *scale);
          } else {
            static_cast<std::uint16_t*>(packed)[at] = ToBfloat16(value);
          }
        }
      }
    }
  }
}

// A packed matrix of `gates` gates with `size` rows each.
struct PackedMatrix {
  NumberType type;
  bool dots;
  int gates;
  std::int64_t size;
  std::int64_t depth;
  std::int64_t largest_panel;  // in blocks
  void* w;
  float* scales;  // only for kInt8

  void Allocate(const LayerSizes& sizes, int count, std::int64_t rows, std::int64_t columns,
                std::int64_t largest, Arena* arena) {
    largest_panel = largest;
    type = sizes.weights;
    dots = UsesDots(sizes);
    gates = count;
    size = rows;
    depth = columns;
    const std::int64_t sums = PadToLanes(rows) * count;
    const std::int64_t words = Words(columns, ColumnsPerWord(dots));
    if (type == NumberType::kFloat32) {
      w = arena->Allocate<float>(sums * columns);
    } else if (type == NumberType::kBfloat16) {
      w = arena->Allocate<std::uint16_t>(sums * ColumnsPerWord(dots) * words);
    } else {
      w = arena->Allocate<std::int8_t>(sums * ColumnsPerWord(dots) * words);
    }
    scales = arena->Allocate<float>(type == NumberType::kInt8 ? sums : 0);
  }

  // Packs the gates, whose rows in `source` begin at `first`; see PackGates.
  void Pack(const Values& source, const std::int64_t* first, std::int64_t largest) const {
    if (type == NumberType::kFloat32) {
      PackGates(source, first, gates, size, depth, largest, static_cast<float*>(w));
    } else {
      PackLowPrecision(source, first, gates, size, depth, largest, type, ColumnsPerWord(dots), w,
                       scales);
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
