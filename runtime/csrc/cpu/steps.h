// SPDX-License-Identifier: Apache-2.0
// The steps of a graph that are sums or maxima of many numbers.

#pragma once

#include <algorithm>

#include "../../firmware/engine/edgernn_fourier.h"
#include "cpu/linear.h"
#include "cpu/masked_lanes.h"
#include "kernel/step.h"

namespace edgernn::EDGERNN_ISA {

// The sums of the last, incomplete block of outputs go through this, (rows, blocks, lanes).
struct LinearTile {
  alignas(64) float sums[kTileSums * kLanes];
};

// Quantizes the rows of a step, all of them one after the other.
[[gnu::noinline]] inline QuantizedRows QuantizeRows(const LinearStep& step, const float* from,
                                                    void* scratch) {
  const CopyLoop* const loops = step.loops;
  const std::int64_t rows = loops[2].count, depth = step.sizes.input;
  Arena arena(scratch);
  QuantizedRows all;
  all.Allocate(step.sizes, loops[0].count * loops[1].count * rows, depth, &arena);
  QuantizedRows part = all;
  for (std::int64_t i = 0; i < loops[0].count; ++i) {
    for (std::int64_t j = 0; j < loops[1].count; ++j) {
      part.Read(from + i * loops[0].from + j * loops[1].from, loops[2].from, rows, depth, depth);
      part.at += rows * part.stride;
      part.scales += rows;
    }
  }
  return all;
}

// A step with a row of float32 or bfloat16.
[[gnu::always_inline]] inline void RunLinearRow(const PackedLinear& weights, std::int64_t outputs,
                                                const float* from, float* to) {
  Product product = weights.product;
  product.a = from;
  product.stride = 0;
  TileShape shape = FitTile(1, 1);
  for (std::int64_t block = 0; block < product.blocks; block += 1 << shape.blocks) {
    while (block + (1 << shape.blocks) > product.blocks) --shape.blocks;
    const std::int64_t tile_outputs = kLanes << shape.blocks, left = outputs - block * kLanes;
    float* const y = to + block * kLanes;
    if (tile_outputs <= left) {
      AddProduct(product, 0, block, shape, {y, 0}, {y, 0});
      continue;
    }
    LinearTile tile;
    AddProduct(product, 0, block, shape, {tile.sums, 0}, {tile.sums, 0});
    std::memcpy(y, tile.sums, Bytes(left));
  }
}

// Leaves out the columns of a tile that are zeros in the rows at `at`, for float32 weights `all`.
[[gnu::always_inline]] inline void LeaveOutZeros(const LinearStep& step, const Product& all,
                                                 std::int64_t at, std::int64_t block,
                                                 Product* product) {
  const std::int64_t first = std::clamp(step.begin - at, std::int64_t{0}, all.columns);
  const Panel panel(LargestPanel(1), block, all.blocks);
  product->a += first;
  product->w = static_cast<const float*>(all.w) + first * panel.size * kLanes;
  product->columns = std::clamp(step.end - at, first, all.columns) - first;
}

[[gnu::noinline]] inline void RunLinearRows(const LinearStep& step, const StepCall& call) {
  const auto& weights = *static_cast<const PackedLinear*>(step.packed);
  const CopyLoop* const loops = step.loops;
  const CopyLoop& rows = loops[kRowLoops - 1];
  const float* const from = call.Find(step.from);
  float* const to = call.Find(step.to);
  Product product = weights.product;
  product.stride = rows.from;
  const bool is_int8 = product.type == NumberType::kInt8;
  const QuantizedRows quantized =
      is_int8 ? QuantizeRows(step, from, call.scratch) : product.quantized;
  LinearTile tile;
  const TileShape largest = FitTile(1, rows.count, product.type);
  TileShape shape = largest;
  for (std::int64_t block = 0; block < product.blocks; block += 1 << shape.blocks) {
    while (block + (1 << shape.blocks) > product.blocks) --shape.blocks;
    const std::int64_t first = block * kLanes, tile_outputs = kLanes << shape.blocks;
    const std::int64_t left = step.sizes.hidden - first;
    product.quantized = quantized;
    for (std::int64_t i = 0; i < loops[0].count; ++i) {
      for (std::int64_t j = 0; j < loops[1].count; ++j) {
        const std::int64_t at = i * loops[0].from + j * loops[1].from;
        product.a = from + at;
        if (step.leaves_out_zeros) LeaveOutZeros(step, weights.product, at, block, &product);
        float* const y = to + i * loops[0].to + j * loops[1].to + first;
        for (std::int64_t row = 0; row < rows.count; row += shape.rows) {
          shape.rows = NextRows(largest.rows, rows.count - row);
          const Sums direct{y + row * rows.to, rows.to}, through{tile.sums, tile_outputs};
          const Sums sums = tile_outputs <= left ? direct : through;
          AddProduct(product, row, block, shape, sums, sums);
          if (tile_outputs <= left) continue;
          for (std::int64_t r = 0; r < shape.rows; ++r) {
            std::memcpy(direct.at + r * rows.to, tile.sums + r * tile_outputs, Bytes(left));
          }
        }
        if (!is_int8) continue;
        product.quantized.at += rows.count * quantized.stride;
        product.quantized.scales += rows.count;
      }
    }
  }
}

[[gnu::noinline]] inline void RunLinearStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const LinearStep&>(base);
  if (!step.is_row || step.sizes.weights == NumberType::kInt8) return RunLinearRows(step, call);
  RunLinearRow(*static_cast<const PackedLinear*>(step.packed), step.sizes.hidden,
               call.Find(step.from), call.Find(step.to));
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

// NaN if either number is.
template <Reduction kReduction>
[[gnu::always_inline]] inline Vec Reduce(Vec a, Vec b) {
  if (kReduction == Reduction::kSum) return a + b;
  const Vec result = kReduction == Reduction::kMax ? Max(a, b) : Min(a, b);
  return {b.raw == b.raw ? result.raw : b.raw};
}

template <Reduction kReduction>
constexpr float kNeutral = kReduction == Reduction::kSum   ? 0.0f
                           : kReduction == Reduction::kMax ? -__builtin_inff()
                                                           : __builtin_inff();

// Reduces groups of kOf lanes to one number, in halves.
template <Reduction kReduction, int kOf = kLanes, std::size_t... kLane>
[[gnu::always_inline]] inline float ReduceLanes(Vec a, std::index_sequence<kLane...> lanes) {
  if constexpr (kOf == 1) {
    return a.raw[0];
  } else {
    const Vec other{
        __builtin_shufflevector(a.raw, a.raw, (static_cast<int>(kLane) ^ (kOf / 2))...)};
    return ReduceLanes<kReduction, kOf / 2>(Reduce<kReduction>(a, other), lanes);
  }
}

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
  return ReduceLanes<kReduction>(result, std::make_index_sequence<kLanes>());
}

template <Reduction kReduction>
[[gnu::noinline]] void RunReduction(const ReduceStep& step, const StepCall& call) {
  const bool neighbours = step.columns == 1 && step.strides[1] == 1;
  const CopyLoop* const loops = step.loops;
  if (neighbours && loops[0].count * loops[1].count * loops[2].count == 1) {
    *call.Find(step.to) = ReduceNeighbours<kReduction>(step, call.Find(step.from));
    return;
  }
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

struct ComplexNumbers {
  float* re;
  float* im;

  [[gnu::always_inline]] ComplexNumbers From(std::int64_t i) const { return {re + i, im + i}; }
};

struct LaneNumber {
  Vec re, im;
};

[[gnu::always_inline]] inline LaneNumber operator+(LaneNumber a, LaneNumber b) {
  return {a.re + b.re, a.im + b.im};
}
[[gnu::always_inline]] inline LaneNumber operator-(LaneNumber a, LaneNumber b) {
  return {a.re - b.re, a.im - b.im};
}
[[gnu::always_inline]] inline LaneNumber operator*(LaneNumber a, LaneNumber b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

[[gnu::always_inline]] inline LaneNumber LoadNumber(const ComplexNumbers& from, std::int64_t i) {
  return {Load(from.re + i), Load(from.im + i)};
}

[[gnu::always_inline]] inline void StoreNumber(const ComplexNumbers& to, std::int64_t i,
                                               LaneNumber a) {
  Store(to.re + i, a.re);
  Store(to.im + i, a.im);
}

// Takes turns in groups of kGroup lanes of a and b: the first or the last vector of the result.
template <int kGroup, bool kLast, std::size_t... kLane>
[[gnu::always_inline]] inline Vec Interleave(Vec a, Vec b, std::index_sequence<kLane...>) {
  constexpr auto source = [](int lane) {
    const int at = lane + (kLast ? kLanes : 0), group = at / kGroup;
    return group / 2 * kGroup + at % kGroup + group % 2 * kLanes;
  };
  return {__builtin_shufflevector(a.raw, b.raw, source(static_cast<int>(kLane))...)};
}

template <std::size_t... kLane>
[[gnu::always_inline]] inline LaneNumber Deinterleave(Vec a, Vec b, std::index_sequence<kLane...>) {
  return {{__builtin_shufflevector(a.raw, b.raw, (2 * static_cast<int>(kLane))...)},
          {__builtin_shufflevector(a.raw, b.raw, (2 * static_cast<int>(kLane) + 1)...)}};
}

// Stores four vectors that take turns in groups of kGroup lanes.
template <int kGroup>
[[gnu::always_inline]] inline void StoreInterleaved(float* to, Vec a, Vec b, Vec c, Vec d) {
  constexpr std::make_index_sequence<kLanes> lanes;
  const Vec ac[2]{Interleave<kGroup, false>(a, c, lanes), Interleave<kGroup, true>(a, c, lanes)};
  const Vec bd[2]{Interleave<kGroup, false>(b, d, lanes), Interleave<kGroup, true>(b, d, lanes)};
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    Store(to + 2 * i * kLanes, Interleave<kGroup, false>(ac[i], bd[i], lanes));
    Store(to + (2 * i + 1) * kLanes, Interleave<kGroup, true>(ac[i], bd[i], lanes));
  }
}

// The transform of four numbers, a quarter of the row apart from each other, times the powers of a
// rotation.
struct Butterfly {
  LaneNumber y[4];

  [[gnu::always_inline]] Butterfly(const ComplexNumbers& from, std::int64_t at,
                                   std::int64_t quarter, LaneNumber rotation) {
    const LaneNumber first = LoadNumber(from, at), second = LoadNumber(from, at + quarter);
    const LaneNumber third = LoadNumber(from, at + 2 * quarter);
    const LaneNumber fourth = LoadNumber(from, at + 3 * quarter);
    const LaneNumber even_sum = first + third, even = first - third;
    const LaneNumber odd_sum = second + fourth;
    // times -i
    const LaneNumber odd{second.im - fourth.im, fourth.re - second.re};
    const LaneNumber twice = rotation * rotation;
    y[0] = even_sum + odd_sum;
    y[1] = (even + odd) * rotation;
    y[2] = (even_sum - odd_sum) * twice;
    y[3] = (even - odd) * (rotation * twice);
  }
};

// A pass of a transform in radix 4, whose blocks of `stride` numbers fill vectors. The tables have
// the angles of a transform of twice the length.
[[gnu::noinline]] inline void RunRadix4(const FourierStep& step, std::int64_t stride,
                                        const ComplexNumbers& from, const ComplexNumbers& to) {
  const std::int64_t quarter = step.half / 4;
  for (std::int64_t block = 0; block < quarter; block += stride) {
    const LaneNumber rotation{Fill(step.tables[2 * block]),
                              Fill(0.0f - step.tables[step.half + 2 * block])};
    for (std::int64_t q = 0; q < stride; q += kLanes) {
      const Butterfly butterfly(from, block + q, quarter, rotation);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) StoreNumber(to, 4 * block + i * stride + q, butterfly.y[i]);
    }
  }
}

// The rotations of the lanes from `at` on, for blocks of kBlock numbers.
template <int kBlock, std::size_t... kLane>
[[gnu::always_inline]] inline LaneNumber FindRotations(const FourierStep& step, std::int64_t at,
                                                       std::index_sequence<kLane...>) {
  const auto angle = [&](int lane) __attribute__((always_inline)) {
    return step.tables + 2 * (at + lane - lane % kBlock);
  };
  return {{Vec::Raw{angle(kLane)[0]...}}, {Vec::Raw{-angle(kLane)[step.half]...}}};
}

// RunRadix4 for blocks of kBlock numbers, of which several fill a vector.
template <int kBlock>
[[gnu::noinline]] void RunShortRadix4(const FourierStep& step, const ComplexNumbers& from,
                                      const ComplexNumbers& to) {
  const std::int64_t quarter = step.half / 4;
  for (std::int64_t at = 0; at < quarter; at += kLanes) {
    const LaneNumber rotation = FindRotations<kBlock>(step, at, std::make_index_sequence<kLanes>());
    const auto& y = Butterfly(from, at, quarter, rotation).y;
    StoreInterleaved<kBlock>(to.re + 4 * at, y[0].re, y[1].re, y[2].re, y[3].re);
    StoreInterleaved<kBlock>(to.im + 4 * at, y[0].im, y[1].im, y[2].im, y[3].im);
  }
}

// Computes the transform of `half` complex numbers. The passes alternate between the two buffers;
// returns the one that has the result. Stockham's order needs no bit reversal.
inline ComplexNumbers TransformComplex(const FourierStep& step, ComplexNumbers from,
                                       ComplexNumbers to) {
  const EdgernnFourier tables{step.half, step.tables, step.tables + step.half};
  std::int64_t size = step.half, stride = 1;
  for (; size >= 4; size /= 4, stride *= 4) {
    if (step.half < 4 * kLanes) {
      edgernn_radix_4(&tables, static_cast<std::int32_t>(size), static_cast<std::int32_t>(stride),
                      {from.re, from.im}, {to.re, to.im});
    } else if (stride >= kLanes) {
      RunRadix4(step, stride, from, to);
    } else if (stride == 1) {
      RunShortRadix4<1>(step, from, to);
    } else {
      RunShortRadix4<4>(step, from, to);
    }
    const ComplexNumbers last = from;
    from = to;
    to = last;
  }
  if (size == 1) return from;
  const Lanes lanes(stride);
  for (std::int64_t q = 0; q < stride; q += kLanes) {
    const ComplexNumbers a = from.From(q), b = from.From(q + stride), y = to.From(q);
    lanes.Store(y.re, lanes.Load(a.re) + lanes.Load(b.re));
    lanes.Store(y.im, lanes.Load(a.im) + lanes.Load(b.im));
    lanes.Store(y.re + stride, lanes.Load(a.re) - lanes.Load(b.re));
    lanes.Store(y.im + stride, lanes.Load(a.im) - lanes.Load(b.im));
  }
  return to;
}

// A frequency of real numbers, from those of their complex transform at its place and at the
// mirrored one: even numbers are its real parts, odd ones the imaginary parts.
[[gnu::always_inline]] inline LaneNumber FindFrequency(LaneNumber a, LaneNumber mirror,
                                                       LaneNumber rotation) {
  const LaneNumber even{(a.re + mirror.re) * 0.5f, (a.im - mirror.im) * 0.5f};
  const LaneNumber odd{(a.im + mirror.im) * 0.5f, (mirror.re - a.re) * 0.5f};
  return even + odd * rotation;
}

template <std::size_t... kLane>
[[gnu::always_inline]] inline Vec Reverse(Vec a, std::index_sequence<kLane...>) {
  return {__builtin_shufflevector(a.raw, a.raw, (kLanes - 1 - static_cast<int>(kLane))...)};
}

[[gnu::noinline]] inline void TransformRow(const FourierStep& step, const float* from, float* to,
                                           float* workspace) {
  constexpr std::make_index_sequence<kLanes> kOrder;
  const std::int64_t half = step.half;
  const ComplexNumbers even_odd{workspace, workspace + half};
  const float* const window = step.window;
  const auto read = [&](std::int64_t i) {
    return i >= step.count ? 0.0f : window == nullptr ? from[i] : from[i] * window[i];
  };
  const auto read_vector = [&](std::int64_t i) {
    return window == nullptr ? Load(from + i) : Vec(Load(from + i) * Load(window + i));
  };
  std::int64_t i = 0;
  for (; 2 * (i + kLanes) <= step.count; i += kLanes) {
    StoreNumber(even_odd, i, Deinterleave(read_vector(2 * i), read_vector(2 * i + kLanes), kOrder));
  }
  for (; i < half; ++i) {
    even_odd.re[i] = read(2 * i);
    even_odd.im[i] = read(2 * i + 1);
  }
  const ComplexNumbers z =
      TransformComplex(step, even_odd, {workspace + 2 * half, workspace + 3 * half});
  const EdgernnFourier tables{step.half, step.tables, step.tables + half};
  const ComplexNumbers y{to, to + half + 1};
  y.re[0] = z.re[0] + z.im[0];
  y.re[half] = z.re[0] - z.im[0];
  y.im[0] = y.im[half] = 0.0f;
  std::int64_t k = 1;
  for (; k + kLanes <= half; k += kLanes) {
    const LaneNumber mirror = LoadNumber(z, half - k - kLanes + 1);
    const LaneNumber rotation{Load(tables.cosines + k), 0.0f - Load(tables.sines + k)};
    StoreNumber(y, k,
                FindFrequency(LoadNumber(z, k),
                              {Reverse(mirror.re, kOrder), Reverse(mirror.im, kOrder)}, rotation));
  }
  for (; k < half; ++k) {
    const EdgernnNumber number =
        edgernn_frequency(&tables, {z.re, z.im}, static_cast<std::int32_t>(k));
    y.re[k] = number.re;
    y.im[k] = number.im;
  }
}

[[gnu::noinline]] inline void RunFourierStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const FourierStep&>(base);
  ForRows(step.loops, call.Find(step.from), call.Find(step.to), [&](const float* from, float* to) {
    TransformRow(step, from, to, static_cast<float*>(call.scratch));
  });
}

}  // namespace edgernn::EDGERNN_ISA
