// SPDX-License-Identifier: Apache-2.0
// The steps of a graph that are sums or maxima of many numbers.

#pragma once

#include "../../firmware/engine/edgernn_frontend.h"
#include "cpu/linear.h"
#include "cpu/masked_lanes.h"
#include "kernel/step.h"

namespace edgernn::EDGERNN_ISA {

// The sums of the last, incomplete block of outputs go through this, (rows, blocks, lanes).
struct LinearTile {
  static constexpr int kMost = 1 << (kTileSizes - 1);
  alignas(64) float sums[kMost * kMost * kLanes];
};

[[gnu::noinline]] inline void RunLinearStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const LinearStep&>(base);
  const LinearMap::Packed weights(step.depth, step.outputs, const_cast<void*>(step.packed));
  const CopyLoop* const loops = step.loops;
  const CopyLoop& rows = loops[kRowLoops - 1];
  // what products of other types read is not set
  Product product;
  product.stride = rows.from;
  product.columns = product.depth = step.depth;
  product.w = weights.w;
  product.places.count = product.gates = 1;
  product.places.at[0] = 0;
  product.blocks = Blocks(step.outputs);
  product.b = weights.b;
  product.from_bias = 1;
  product.type = NumberType::kFloat32;
  product.dots = false;
  const float* const from = call.Find(step.from);
  float* const to = call.Find(step.to);
  LinearTile tile;
  const TileShape largest = FitTile(1, rows.count);
  TileShape shape = largest;
  for (std::int64_t block = 0; block < product.blocks; block += 1 << shape.blocks) {
    while (block + (1 << shape.blocks) > product.blocks) --shape.blocks;
    const std::int64_t first = block * kLanes, tile_outputs = kLanes << shape.blocks;
    const std::int64_t left = step.outputs - first;
    for (std::int64_t i = 0; i < loops[0].count; ++i) {
      for (std::int64_t j = 0; j < loops[1].count; ++j) {
        product.a = from + i * loops[0].from + j * loops[1].from;
        float* const y = to + i * loops[0].to + j * loops[1].to + first;
        shape.rows = largest.rows;
        for (std::int64_t row = 0; row < rows.count; row += 1 << shape.rows) {
          while (row + (1 << shape.rows) > rows.count) --shape.rows;
          const Sums direct{y + row * rows.to, rows.to}, through{tile.sums, tile_outputs};
          const Sums sums = tile_outputs <= left ? direct : through;
          AddProduct(product, row, block, shape, sums, sums);
          if (tile_outputs <= left) continue;
          for (std::int64_t r = 0; r < 1 << shape.rows; ++r) {
            std::memcpy(direct.at + r * rows.to, tile.sums + r * tile_outputs, Bytes(left));
          }
        }
      }
    }
  }
}

[[gnu::noinline]] inline void RunDepthwiseStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const DepthwiseStep&>(base);
  ForRows(step.loops, call.Find(step.from), call.Find(step.to), [&](const float* a, float* y) {
    for (std::int64_t c = 0; c < step.columns; c += kLanes) {
      const Lanes lanes(step.columns - c);
      Vec sum = Load(step.b + c);
      const float* w = step.w + c;
      for (std::int64_t k = 0; k < step.tap_count; ++k, w += step.padded) {
        sum = sum + Load(w) * lanes.Load(a + step.taps[k] + c);
      }
      lanes.Store(y + c, sum);
    }
  });
}

template <Reduction kReduction>
[[gnu::always_inline]] inline Vec Reduce(Vec a, Vec b) {
  return kReduction == Reduction::kSum   ? a + b
         : kReduction == Reduction::kMax ? Max(a, b)
                                         : Min(a, b);
}

template <Reduction kReduction>
constexpr float kNeutral = kReduction == Reduction::kSum   ? 0.0f
                           : kReduction == Reduction::kMax ? -__builtin_inff()
                                                           : __builtin_inff();

// Reduces neighbouring numbers (counts[0], counts[1]) to one.
template <Reduction kReduction>
[[gnu::always_inline]] inline float ReduceNeighbours(const ReduceStep& step, const float* from) {
  Vec result = Fill(kNeutral<kReduction>);
  for (std::int64_t i = 0; i < step.counts[0]; ++i) {
    const float* const a = from + i * step.strides[0];
    std::int64_t at = 0;
    for (; at + kLanes <= step.counts[1]; at += kLanes) {
      result = Reduce<kReduction>(result, Load(a + at));
    }
    if (at == step.counts[1]) continue;
    Vec tail = Fill(kNeutral<kReduction>);
    std::memcpy(&tail, a + at, Bytes(step.counts[1] - at));
    result = Reduce<kReduction>(result, tail);
  }
  float lanes[kLanes];
  Store(lanes, result);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] = Reduce<kReduction>(Fill(lanes[lane]), Fill(lanes[lane + width])).raw[0];
    }
  }
  return lanes[0];
}

template <Reduction kReduction>
[[gnu::noinline]] void RunReduction(const ReduceStep& step, const StepCall& call) {
  const bool neighbours = step.columns == 1 && step.strides[1] == 1;
  ForRows(step.loops, call.Find(step.from), call.Find(step.to), [&](const float* from, float* to) {
    if (neighbours) {
      *to = ReduceNeighbours<kReduction>(step, from);
      return;
    }
    const std::int64_t width = step.column_stride == 1 ? kLanes : 1;
    for (std::int64_t c = 0; c < step.columns; c += width) {
      const Lanes lanes(width == 1 ? 1 : step.columns - c);
      Vec result = Fill(kNeutral<kReduction>);
      for (std::int64_t i = 0; i < step.counts[0]; ++i) {
        const float* a = from + c * step.column_stride + i * step.strides[0];
        for (std::int64_t k = 0; k < step.counts[1]; ++k, a += step.strides[1]) {
          result = Reduce<kReduction>(result, lanes.Load(a));
        }
      }
      lanes.Store(to + c, result);
    }
  });
}

[[gnu::noinline]] inline void RunReduceStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const ReduceStep&>(base);
  switch (step.reduction) {
    case Reduction::kSum:
      return RunReduction<Reduction::kSum>(step, call);
    case Reduction::kMax:
      return RunReduction<Reduction::kMax>(step, call);
    case Reduction::kMin:
      return RunReduction<Reduction::kMin>(step, call);
  }
}

// Computes one row. Even numbers are the real parts of a complex transform of half the size, odd
// ones the imaginary parts.
[[gnu::noinline]] inline void Transform(const FourierStep& step, const float* a, float* workspace,
                                        float* re) {
  const std::int32_t half = step.half;
  EdgernnFrontend tables{};
  tables.half = half;
  tables.cosines = step.tables;
  tables.sines = step.tables + half;
  const EdgernnComplex even_odd{workspace, workspace + half};
  for (std::int32_t i = 0; i < half; ++i) {
    const bool has_window = step.window != nullptr;
    even_odd.re[i] = has_window ? a[2 * i] * step.window[2 * i] : a[2 * i];
    even_odd.im[i] = has_window ? a[2 * i + 1] * step.window[2 * i + 1] : a[2 * i + 1];
  }
  const EdgernnComplex other{workspace + 2 * half, workspace + 3 * half};
  const EdgernnComplex z = edgernn_fourier(&tables, even_odd, other);
  float* const im = re + half + 1;
  re[0] = z.re[0] + z.im[0];
  re[half] = z.re[0] - z.im[0];
  im[0] = im[half] = 0.0f;
  for (std::int32_t k = 1; k < half; ++k) {
    const std::int32_t mirror = half - k;
    const float even_re = 0.5f * (z.re[k] + z.re[mirror]);
    const float even_im = 0.5f * (z.im[k] - z.im[mirror]);
    const float odd_re = 0.5f * (z.im[k] + z.im[mirror]);
    const float odd_im = 0.5f * (z.re[mirror] - z.re[k]);
    re[k] = even_re + tables.cosines[k] * odd_re + tables.sines[k] * odd_im;
    im[k] = even_im + tables.cosines[k] * odd_im - tables.sines[k] * odd_re;
  }
}

[[gnu::noinline]] inline void RunFourierStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const FourierStep&>(base);
  float* const workspace = static_cast<float*>(call.scratch);
  ForRows(step.loops, call.Find(step.from), call.Find(step.to),
          [&](const float* a, float* y) { Transform(step, a, workspace, y); });
}

}  // namespace edgernn::EDGERNN_ISA
