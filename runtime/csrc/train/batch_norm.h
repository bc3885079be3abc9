// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of columns over rows, forward and backward. A block of a few columns stays in
// the first-level cache over all passes.
//
//   n = (p - mean) / sqrt(var + eps)
//   dp = gain / sqrt(var + eps) (dn - mean(dn) - n mean(dn n))     dn: the gradient of gain n

#pragma once

#include "train/gemm_row_major.h"

namespace edgernn::EDGERNN_ISA {

// N neighbouring vectors of columns from column `at` on. A partial vector is a block by itself.
template <int N>
struct ColumnBlock {
  static constexpr int kVectors = N;
  std::int64_t at;
  Lanes lanes;

  [[gnu::always_inline]] Vec Load(const float* row, int j) const {
    return lanes.Load(row + at + j * kLanes);
  }

  [[gnu::always_inline]] void Store(float* row, int j, Vec value) const {
    lanes.Store(row + at + j * kLanes, value);
  }
};

template <class Run>
[[gnu::always_inline]] inline void ForEachBlock(std::int64_t columns, const Run& run) {
  constexpr int kVectors = 4;
  std::int64_t at = 0;
  for (; at + kVectors * kLanes <= columns; at += kVectors * kLanes) {
    run(ColumnBlock<kVectors>{at, Lanes(kLanes)});
  }
  for (; at < columns; at += kLanes) run(ColumnBlock<1>{at, Lanes(columns - at)});
}

[[gnu::always_inline]] inline Vec InverseRoot(Vec a) {
#if defined(__AVX512F__)
  return 1.0f / Vec{_mm512_maskz_sqrt_ps(0xffff, a.raw)};
#elif defined(__AVX__)
  return 1.0f / Vec{_mm256_sqrt_ps(a.raw)};
#else
  for (int lane = 0; lane < kLanes; ++lane) a.raw[lane] = 1.0f / __builtin_sqrtf(a.raw[lane]);
  return a;
#endif
}

// The statistics of the columns at one step.
struct Moments {
  float* mean;
  float* var;
  float eps;
  float inverse_rows;  // 1 / rows
  bool from_batch;     // true: computed and stored here; false: read
};

// The mean and 1 / sqrt(var + eps) of a block of columns.
template <int N>
struct BlockScale {
  Vec mean[N];
  Vec inverse[N];

  [[gnu::always_inline]] Vec Normalise(int j, Vec p) const { return (p - mean[j]) * inverse[j]; }
};

template <int N>
[[gnu::always_inline]] inline BlockScale<N> LoadScale(const ColumnBlock<N>& block,
                                                      const Moments& moments) {
  BlockScale<N> scale;
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    scale.mean[j] = block.Load(moments.mean, j);
    scale.inverse[j] = InverseRoot(block.Load(moments.var, j) + moments.eps);
  }
  return scale;
}

// Loads the scale of a block; computes and stores its moments first if they are from the batch.
template <int N>
[[gnu::always_inline]] inline BlockScale<N> ComputeScale(const ColumnBlock<N>& block,
                                                         ConstRows from, std::int64_t rows,
                                                         const Moments& moments) {
  if (moments.from_batch) {
    Vec mean[N], var[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) mean[j] = var[j] = Zero();
    for (std::int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        mean[j] = mean[j] + block.Load(from.at + row * from.stride, j);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) mean[j] = mean[j] * moments.inverse_rows;
    for (std::int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        const Vec centred = block.Load(from.at + row * from.stride, j) - mean[j];
        var[j] = var[j] + centred * centred;
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      block.Store(moments.mean, j, mean[j]);
      block.Store(moments.var, j, var[j] * moments.inverse_rows);
    }
  }
  return LoadScale(block, moments);
}

// Where the gradients of gain and shift are added; either may be null.
struct NormGrads {
  float* gain;
  float* shift;
};

// Computes the gradients of a block's values from `grads`, those of gain n; normalised(row, vector)
// returns n. kAdds: adds to `to` instead of overwriting it.
template <bool kAdds, int N, class Normalised>
[[gnu::always_inline]] inline void NormaliseBack(const ColumnBlock<N>& block, ConstRows grads,
                                                 const Normalised& normalised, const float* gain,
                                                 const BlockScale<N>& scale, std::int64_t rows,
                                                 const Moments& moments, NormGrads sums,
                                                 OutputRows to) {
  Vec sum[N], dot[N], factor[N];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) sum[j] = dot[j] = Zero();
  for (std::int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const Vec grad = block.Load(grads.at + row * grads.stride, j);
      sum[j] = sum[j] + grad;
      dot[j] = dot[j] + grad * normalised(row, j);
    }
  }
  const float inverse_rows = moments.from_batch ? moments.inverse_rows : 0.0f;
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    if (sums.gain != nullptr) block.Store(sums.gain, j, block.Load(sums.gain, j) + dot[j]);
    if (sums.shift != nullptr) block.Store(sums.shift, j, block.Load(sums.shift, j) + sum[j]);
    sum[j] = sum[j] * inverse_rows;
    dot[j] = dot[j] * inverse_rows;
    factor[j] = block.Load(gain, j) * scale.inverse[j];
  }
  for (std::int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const Vec grad = block.Load(grads.at + row * grads.stride, j);
      float* destination = to.at + row * to.stride;
      Vec result = factor[j] * (grad - sum[j] - normalised(row, j) * dot[j]);
      if (kAdds) result = result + block.Load(destination, j);
      block.Store(destination, j, result);
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA
