// SPDX-License-Identifier: Apache-2.0
// Matrix products for training (GEMM): operands and results are row-major as in torch, and only the
// right-hand operand is packed.
//
// The packed layout is [panel][k][lane]. A panel is kPanelBlocks vectors of adjacent columns,
// padded with zeros; the last panel may have fewer vectors.

#pragma once

#include "cpu/gemm.h"
#include "cpu/masked_lanes.h"

namespace edgernn::EDGERNN_ISA {

// Register block: 3 vectors x 8 rows of sums (4 rows with 16 registers). A panel with depth 128
// fits in the first-level cache.
constexpr int kPanelBlocks = 3;
constexpr int kPanelRows = kRegisters == 32 ? 8 : 4;
constexpr std::int64_t kPanel = kPanelBlocks * kLanes;

inline std::int64_t PackedFloats(std::int64_t depth, std::int64_t columns) {
  return depth * PadToLanes(columns);
}

// Packs the transpose of w (columns, depth), whose rows are `stride` apart.
inline void PackTransposed(const float* w, std::int64_t stride, std::int64_t columns,
                           std::int64_t depth, float* to) {
  std::memset(to, 0, Bytes(PackedFloats(depth, columns)));
  for (std::int64_t first = 0; first < columns; first += kPanel) {
    const std::int64_t remaining = columns - first;
    const std::int64_t width = remaining < kPanel ? PadToLanes(remaining) : kPanel;
    for (std::int64_t j = 0; j < width && j < remaining; ++j) {
      const float* from = w + (first + j) * stride;
      for (std::int64_t k = 0; k < depth; ++k) to[k * width + j] = from[k];
    }
    to += depth * width;
  }
}

// Packs w (depth, columns), whose rows are `stride` apart.
inline void Pack(const float* w, std::int64_t stride, std::int64_t columns, std::int64_t depth,
                 float* to) {
  for (std::int64_t first = 0; first < columns; first += kPanel) {
    const std::int64_t remaining = columns - first;
    const std::int64_t width = remaining < kPanel ? PadToLanes(remaining) : kPanel;
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t j = 0; j < width; j += kLanes) {
        Store(to, Lanes(remaining - j).Load(w + k * stride + first + j));
        to += kLanes;
      }
    }
  }
}

// Strided rows to read.
struct ConstRows {
  const float* at;
  std::int64_t stride;

  ConstRows Skip(std::int64_t rows, std::int64_t columns = 0) const {
    return {at + rows * stride + columns, stride};
  }
};

// The left operand of a product. `step` separates the elements of a row, so it may be a transpose.
struct LeftFactor {
  const float* at;
  std::int64_t stride;
  std::int64_t step;
};

// Strided rows to write.
struct OutputRows {
  float* at;
  std::int64_t stride;
};

// The arguments of MultiplyAdd for one panel and the rows that remain.
struct PanelProduct {
  LeftFactor a;
  std::int64_t rows;
  std::int64_t depth;
  const float* w;
  ConstRows start;
  OutputRows out;
  std::int64_t columns;
};

// Multiplies one tile: the first MB rows and NB vectors of a panel. Not inlined: in a loop over
// tiles its addresses would be spilled, which took a sixth of the time.
template <int MB, int NB>
[[gnu::noinline]] void MultiplyTile(const PanelProduct& panel) {
  const float* a = panel.a.at;
  const float* w = panel.w;
  const float* start = panel.start.at;
  float* out = panel.out.at;
  Vec sum[MB][NB];
#pragma GCC unroll 16
  for (int i = 0; i < MB; ++i, start += panel.start.stride) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
      sum[i][j] = Lanes(panel.columns - j * kLanes).Load(start + j * kLanes);
    }
  }
  const std::int64_t depth = panel.depth, stride = panel.a.stride, step = panel.a.step;
  for (std::int64_t k = 0; k < depth; ++k, w += NB * kLanes, a += step) {
    Vec weight[NB];
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) weight[j] = Load(w + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < MB; ++i) {
      const Vec factor = Fill(a[i * stride]);
#pragma GCC unroll 16
      for (int j = 0; j < NB; ++j) sum[i][j] = sum[i][j] + weight[j] * factor;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MB; ++i, out += panel.out.stride) {
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
      Lanes(panel.columns - j * kLanes).Store(out + j * kLanes, sum[i][j]);
    }
  }
}

// Multiplies all remaining rows of a panel of NB vectors, in tiles of at most MB rows.
template <int MB, int NB>
void MultiplyBlocks(PanelProduct* panel) {
  for (; panel->rows >= MB; panel->rows -= MB) {
    MultiplyTile<MB, NB>(*panel);
    panel->a.at += MB * panel->a.stride;
    panel->start.at += MB * panel->start.stride;
    panel->out.at += MB * panel->out.stride;
  }
  if constexpr (MB > 1) MultiplyBlocks<MB / 2, NB>(panel);
}

// out (rows, columns) = start + a w, for a (rows, depth) and packed w (depth, columns). In-place if
// start is out.
inline void MultiplyAdd(LeftFactor a, std::int64_t rows, std::int64_t depth, const float* w,
                        ConstRows start, OutputRows out, std::int64_t columns) {
  static_assert(kPanelBlocks == 3);
  for (std::int64_t first = 0; first < columns; first += kPanel) {
    const std::int64_t remaining = columns - first;
    const std::int64_t blocks = remaining < kPanel ? Blocks(remaining) : kPanelBlocks;
    PanelProduct panel{};
    panel.a = a;
    panel.rows = rows;
    panel.depth = depth;
    panel.w = w;
    panel.start = start.Skip(0, first);
    panel.out = {out.at + first, out.stride};
    panel.columns = remaining;
    (blocks == 1   ? &MultiplyBlocks<kPanelRows, 1>
     : blocks == 2 ? &MultiplyBlocks<kPanelRows, 2>
                   : &MultiplyBlocks<kPanelRows, 3>)(&panel);
    w += depth * blocks * kLanes;
  }
}

}  // namespace edgernn::EDGERNN_ISA
