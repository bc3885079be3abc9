// SPDX-License-Identifier: Apache-2.0
// Matrix products for training. Factors and results are row-major, as in torch; only the weights
// are packed.
//
// Packed weights are [panel][k][lanes of the panel], where a panel is kPanelBlocks vectors of
// neighbouring columns (the last one may have fewer), padded with zeros.

#ifndef EDGERNN_TRAIN_GEMM_H_
#define EDGERNN_TRAIN_GEMM_H_

#include "cpu/gemm.h"
#include "train/masked_lanes.h"

namespace edgernn::EDGERNN_ISA {

// Three vectors of eight rows (four, where registers are few) keep their sums in registers, and a
// panel of 128 k in the first-level cache.
constexpr int kPanelBlocks = 3;
constexpr int kPanelRows = kRegisters == 32 ? 8 : 4;
constexpr std::int64_t kPanel = kPanelBlocks * kLanes;

inline std::int64_t PackedFloats(std::int64_t depth, std::int64_t columns) {
  return depth * PadToLanes(columns);
}

// Packs w^T of w (columns, depth), rows `stride` apart.
inline void PackTransposed(const float* w, std::int64_t stride, std::int64_t columns,
                           std::int64_t depth, float* to) {
  std::memset(to, 0, Bytes(PackedFloats(depth, columns)));
  for (std::int64_t first = 0; first < columns; first += kPanel) {
    const std::int64_t left = columns - first;
    const std::int64_t wide = left < kPanel ? PadToLanes(left) : kPanel;
    for (std::int64_t j = 0; j < wide && j < left; ++j) {
      const float* from = w + (first + j) * stride;
      for (std::int64_t k = 0; k < depth; ++k) to[k * wide + j] = from[k];
    }
    to += depth * wide;
  }
}

// Packs w (depth, columns), rows `stride` apart.
inline void Pack(const float* w, std::int64_t stride, std::int64_t columns, std::int64_t depth,
                 float* to) {
  for (std::int64_t first = 0; first < columns; first += kPanel) {
    const std::int64_t left = columns - first;
    const std::int64_t wide = left < kPanel ? PadToLanes(left) : kPanel;
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t j = 0; j < wide; j += kLanes) {
        Store(to, Lanes(left - j).Load(w + k * stride + first + j));
        to += kLanes;
      }
    }
  }
}

// Rows in memory: the first one, and how far apart they are.
struct Lines {
  const float* at;
  std::int64_t stride;

  Lines Skip(std::int64_t rows, std::int64_t columns = 0) const {
    return {at + rows * stride + columns, stride};
  }
};

// The left factor of a product: a row's numbers are `step` apart, so that it may be a transpose.
struct Factor {
  const float* at;
  std::int64_t stride;
  std::int64_t step;
};

struct Result {
  float* at;
  std::int64_t stride;
};

// What MultiplyAdd is given, for the rows and columns that are left.
struct PanelProduct {
  Factor a;
  std::int64_t rows;
  std::int64_t depth;
  const float* w;
  Lines start;
  Result out;
  std::int64_t columns;
};

// The first rows and blocks of a panel. Kept apart: in a loop over tiles its many addresses would
// all be carried from tile to tile, in memory; that was measured to take a sixth of the time.
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

// The first blocks of a panel.
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

// out (rows, columns) = start + a w, for a (rows, depth) and w (depth, columns) as packed; start
// may be `out`.
inline void MultiplyAdd(Factor a, std::int64_t rows, std::int64_t depth, const float* w,
                        Lines start, Result out, std::int64_t columns) {
  static_assert(kPanelBlocks == 3);
  for (std::int64_t first = 0; first < columns; first += kPanel) {
    const std::int64_t left = columns - first;
    const std::int64_t blocks = left < kPanel ? Blocks(left) : kPanelBlocks;
    PanelProduct panel{};
    panel.a = a;
    panel.rows = rows;
    panel.depth = depth;
    panel.w = w;
    panel.start = start.Skip(0, first);
    panel.out = {out.at + first, out.stride};
    panel.columns = left;
    (blocks == 1   ? &MultiplyBlocks<kPanelRows, 1>
     : blocks == 2 ? &MultiplyBlocks<kPanelRows, 2>
                   : &MultiplyBlocks<kPanelRows, 3>)(&panel);
    w += depth * blocks * kLanes;
  }
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_GEMM_H_
