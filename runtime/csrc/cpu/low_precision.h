// SPDX-License-Identifier: Apache-2.0
// Conversions and products of bfloat16 and int8 weights, which are read two columns at a time.
//
// The layout is that of gemm.h with pairs of columns: [panel][pair of columns][block of the
// panel][gate][lane][2]. int8 weights may be in groups of four columns instead, see Int8Product.
// int8 weights have a scale per row. Their inputs are quantized to 16-bit integers with a scale per
// vector. The integer sums are exact, so they do not depend on instruction set or order.

#pragma once

#include "common/arena.h"
#include "cpu/simd.h"
#include "kernel/kernel.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace edgernn::EDGERNN_ISA {

// A vector of 16-bit integers, two per lane.
struct Shorts {
  typedef std::int16_t Raw __attribute__((vector_size(kLanes * 4)));
  Raw raw;
};

// Number of integers in a vector of Shorts.
constexpr std::int64_t kShorts = 2 * kLanes;

[[gnu::always_inline]] inline Shorts LoadShorts(const std::int16_t* from) {
  Shorts result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

// Broadcasts the two integers at `from` to all lanes.
[[gnu::always_inline]] inline Shorts FillPair(const std::int16_t* from) {
  std::int32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return {reinterpret_cast<Shorts::Raw>(pair - Vec::Bits{})};
}

// Loads kShorts bytes, sign-extended to 16 bits.
[[gnu::always_inline]] inline Shorts Widen(const std::int8_t* from) {
#if defined(__AVX512BW__)
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return {reinterpret_cast<Shorts::Raw>(_mm512_cvtepi8_epi16(bytes))};
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {reinterpret_cast<Shorts::Raw>(_mm256_cvtepi8_epi16(bytes))};
#elif defined(__SSE2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  const __m128i high = _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
  return {reinterpret_cast<Shorts::Raw>(_mm_srai_epi16(high, 8))};
#elif defined(__aarch64__)
  return {reinterpret_cast<Shorts::Raw>(vmovl_s8(vld1_s8(from)))};
#else
  typedef std::int8_t Raw __attribute__((vector_size(kShorts)));
  Raw bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return {__builtin_convertvector(bytes, Shorts::Raw)};
#endif
}

// True if there are kernels that use dot-product instructions: pairs of 16-bit integers with
// AVX-512 VNNI, groups of four bytes with Arm dotprod. They use inline assembly, as the intrinsics
// need compiler flags that this file is not compiled with.
#if defined(__AVX512BW__) || defined(__aarch64__)
constexpr bool kHasDots = true;
#else
constexpr bool kHasDots = false;
#endif
#if defined(__aarch64__)
constexpr int kDotColumns = 4;
constexpr const char* kDotsName = EDGERNN_ISA_NAME "dotprod";
#else
constexpr int kDotColumns = 2;
constexpr const char* kDotsName = EDGERNN_ISA_NAME "vnni";
#endif

// True if int8 weights are multiplied with dot-product instructions.
[[gnu::always_inline]] inline bool UsesDots(const LayerSizes& sizes) {
  return kHasDots && sizes.dots && sizes.weights == NumberType::kInt8;
}

// The number of neighbouring columns that are packed in a word of 32 bits (bfloat16) or 16 (int8),
// or 32 with Arm dot products.
[[gnu::always_inline]] inline int ColumnsPerWord(bool dots) { return dots ? kDotColumns : 2; }

// The number of columns in a vector of a gathered row, to which its columns are padded.
[[gnu::always_inline]] inline std::int64_t VectorColumns(const LayerSizes& sizes) {
  return kLanes * ColumnsPerWord(UsesDots(sizes));
}

[[gnu::always_inline]] inline std::int64_t PaddedColumns(const LayerSizes& sizes,
                                                         std::int64_t count) {
  const std::int64_t vector = VectorColumns(sizes);
  return (count + vector - 1) / vector * vector;
}

// Multiplies int8 weights, with or without dot-product instructions: kColumns per lane at a time,
// in kPasses passes. The sums are multiplied by 256 before each pass but the first.
template <bool kDots>
struct Int8Product {
  static constexpr int kColumns = 2;
  static constexpr int kPasses = 1;
  using Weights = Shorts;
  using Factor = Shorts;

  [[gnu::always_inline]] static Weights Load(const std::int8_t* from) { return Widen(from); }

  // Broadcasts the quantized inputs of kColumns columns to all lanes.
  [[gnu::always_inline]] static Factor Fill(const std::int16_t* from, int) {
    return FillPair(from);
  }

  // Loads kColumns quantized inputs per lane.
  [[gnu::always_inline]] static Factor LoadFactor(const std::int16_t* from, int) {
    return LoadShorts(from);
  }

  // Returns sum + a_even b_even + a_odd b_odd, for each pair.
  [[gnu::always_inline]] static Vec::Bits Add(Vec::Bits sum, Weights a, Factor b) {
#if defined(__AVX512BW__)
    if constexpr (kDots) {
      asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a.raw), "vm"(b.raw));
      return sum;
    }
    const __m512i result =
        _mm512_madd_epi16(reinterpret_cast<__m512i>(a.raw), reinterpret_cast<__m512i>(b.raw));
    return sum + reinterpret_cast<Vec::Bits>(result);
#elif defined(__AVX2__)
    const __m256i result =
        _mm256_madd_epi16(reinterpret_cast<__m256i>(a.raw), reinterpret_cast<__m256i>(b.raw));
    return sum + reinterpret_cast<Vec::Bits>(result);
#elif defined(__SSE2__)
    const __m128i result =
        _mm_madd_epi16(reinterpret_cast<__m128i>(a.raw), reinterpret_cast<__m128i>(b.raw));
    return sum + reinterpret_cast<Vec::Bits>(result);
#elif defined(__aarch64__)
    const int16x8_t first = reinterpret_cast<int16x8_t>(a.raw);
    const int16x8_t second = reinterpret_cast<int16x8_t>(b.raw);
    const int32x4_t low = vmull_s16(vget_low_s16(first), vget_low_s16(second));
    const int32x4_t high = vmull_high_s16(first, second);
    return sum + reinterpret_cast<Vec::Bits>(vpaddq_s32(low, high));
#elif defined(__wasm_simd128__)
    return sum + __builtin_wasm_dot_s_i32x4_i16x8(a.raw, b.raw);
#else
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += a.raw[2 * lane] * b.raw[2 * lane] + a.raw[2 * lane + 1] * b.raw[2 * lane + 1];
    }
    return sum;
#endif
  }
};

#if defined(__aarch64__)
// The first pass reads the upper bytes of four 16-bit inputs, the second pass the lower bytes.
template <>
struct Int8Product<true> {
  static constexpr int kColumns = 4;
  static constexpr int kPasses = 2;
  using Weights = int8x16_t;
  using Factor = int8x16_t;

  [[gnu::always_inline]] static Weights Load(const std::int8_t* from) { return vld1q_s8(from); }

  [[gnu::always_inline]] static Factor Fill(const std::int16_t* from, int pass) {
    std::int32_t word;
    std::memcpy(&word, from + 2 * pass, sizeof word);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
  }

  [[gnu::always_inline]] static Factor LoadFactor(const std::int16_t* from, int pass) {
    int32x4_t words[2];
    std::memcpy(words, from, sizeof words);
    return vreinterpretq_s8_s32(pass == 0 ? vuzp1q_s32(words[0], words[1])
                                          : vuzp2q_s32(words[0], words[1]));
  }

  // Returns sum + the products, for each group of four.
  [[gnu::always_inline]] static Vec::Bits Add(Vec::Bits sum, Weights a, Factor b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return reinterpret_cast<Vec::Bits>(vdotq_s32(reinterpret_cast<int32x4_t>(sum), a, b));
#else
    asm(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
#endif
  }
};
#endif

[[gnu::always_inline]] inline Vec ToFloats(Vec::Bits a) {
  return {__builtin_convertvector(a, Vec::Raw)};
}

// Two vectors of bfloat16 numbers, unpacked from 32-bit words; `first` is in the lower halves.
struct Bfloat16Pair {
  Vec first;
  Vec second;
};

[[gnu::always_inline]] inline Bfloat16Pair LoadBfloat16Pair(const void* from) {
  Vec::Bits words;
  std::memcpy(&words, from, sizeof words);
  return {{reinterpret_cast<Vec::Raw>(words << 16)},
          {reinterpret_cast<Vec::Raw>(words & static_cast<std::int32_t>(0xffff0000u))}};
}

// Rounds to bfloat16, the upper half of a float: to nearest, ties to even.
[[gnu::always_inline]] inline std::uint16_t ToBfloat16(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// The scale of a row of int8 weights, for which the largest magnitude becomes 127.
inline float Int8Scale(const Values& source, std::int64_t from, std::int64_t columns) {
  float largest = 0.0f;
  for (std::int64_t k = 0; k < columns; ++k) {
    const float value = source[from + k], magnitude = value < 0.0f ? -value : value;
    // a NaN makes the scale, and so the row, NaN
    largest = magnitude <= largest ? largest : magnitude;
  }
  return largest / 127.0f;
}

inline std::int8_t ToInt8(float value, float scale) {
  const float scaled = value / scale;
  if (scaled != scaled) return 0;
  // a subnormal scale is inexact, so |scaled| may exceed 127
  const float bounded = scaled < -127.0f ? -127.0f : scaled > 127.0f ? 127.0f : scaled;
  return static_cast<std::int8_t>(bounded < 0.0f ? bounded - 0.5f : bounded + 0.5f);
}

// The largest magnitude of quantized inputs: `depth` products with int8 weights must not overflow
// 32 bits, and both bytes of an input must be signed bytes.
inline float LargestInt16(std::int64_t depth) {
  constexpr std::int64_t kLargest = 127 * 256 + 127;
  const std::int64_t bound = 0x7fffffff / (127 * (depth < 1 ? 1 : depth));
  return static_cast<float>(bound < kLargest ? bound : kLargest);
}

// The largest lane, by a butterfly reduction: each lane holds the maximum of kOf lanes.
template <int kOf = 1, std::size_t... kLane>
[[gnu::always_inline]] inline std::int32_t LargestLane(Vec::Bits a,
                                                       std::index_sequence<kLane...> lanes) {
  if constexpr (kOf == kLanes) {
    return a[0];
  } else {
    const Vec::Bits other = __builtin_shufflevector(a, a, (static_cast<int>(kLane) ^ kOf)...);
    return LargestLane<2 * kOf>(other > a ? other : a, lanes);
  }
}

// Rows quantized to 16-bit integers: a value is its row's scale times the integer in `at`. Rows are
// padded with zeros. For Arm dot products, the upper bytes of four columns precede the lower ones.
struct QuantizedRows {
  std::int16_t* at;
  float* scales;
  std::int64_t stride;
  bool dots;

  void Allocate(const LayerSizes& sizes, std::int64_t rows, std::int64_t depth, Arena* arena) {
    if (sizes.weights != NumberType::kInt8) rows = 0;
    dots = UsesDots(sizes);
    stride = PaddedColumns(sizes, depth);
    at = arena->Allocate<std::int16_t>(rows * stride);
    scales = arena->Allocate<float>(rows);
  }

  // Quantizes the first `columns` of each row of `from`, of at most `depth`. A value that is not
  // finite makes its row's scale NaN.
  [[gnu::noinline]] void Read(const float* from, std::int64_t from_stride, std::int64_t rows,
                              std::int64_t columns, std::int64_t depth) const {
    const float largest = LargestInt16(depth);
    for (std::int64_t row = 0; row < rows; ++row) {
      scales[row] = ReadRow(from + row * from_stride, columns, largest, at + row * stride);
    }
  }

 private:
  float ReadRow(const float* from, std::int64_t columns, float largest, std::int16_t* to) const {
    const std::int64_t whole = columns & -kLanes;
    Vec tail = Zero();
    std::memcpy(&tail, from + whole, static_cast<std::size_t>(columns - whole) * sizeof(float));
    // the bits of magnitudes have the order of the floats; infinity and NaN are largest
    Vec::Bits most = Magnitude(tail);
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      const Vec::Bits magnitude = Magnitude(Load(from + j));
      most = magnitude > most ? magnitude : most;
    }
    const std::int32_t bits = LargestLane(most, std::make_index_sequence<kLanes>());
    const bool finite = bits < 0x7f800000;
    const std::int64_t kept = finite ? whole : 0;
    std::memset(to + kept, 0, static_cast<std::size_t>(stride - kept) * sizeof *to);
    if (!finite) return __builtin_nanf("");
    float top;
    std::memcpy(&top, &bits, sizeof top);
    // a row whose scale would be subnormal becomes zero
    const float factor = top > 1e-30f ? largest / top : 0.0f;
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      Quantize(Load(from + j) * factor, dots, to + j);
    }
    if (whole < columns) Quantize(tail * factor, dots, to + whole);
    return top / largest;
  }

  [[gnu::always_inline]] static Vec::Bits Magnitude(Vec a) {
    return reinterpret_cast<Vec::Bits>(a.raw) & 0x7fffffff;
  }

  // Stores a, rounded to the nearest integers.
  [[gnu::always_inline]] static void Quantize(Vec a, bool dots, std::int16_t* to) {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = a + kShift;
    const Vec::Bits whole = reinterpret_cast<Vec::Bits>(shifted.raw) - 0x4b400000;
    typedef std::int16_t Raw __attribute__((vector_size(kLanes * 2)));
    Raw result = __builtin_convertvector(whole, Raw);
#if defined(__aarch64__)
    if (dots) {
      const Raw upper = (result + 128) >> 8, lower = result - (upper << 8);
      const int8x8_t both = vmovn_s16(
          vcombine_s16(reinterpret_cast<int16x4_t>(upper), reinterpret_cast<int16x4_t>(lower)));
      result = reinterpret_cast<Raw>(both);
    }
#else
    static_cast<void>(dots);  // pairs of columns are stored as they are
#endif
    std::memcpy(to, &result, sizeof result);
  }
};

}  // namespace edgernn::EDGERNN_ISA
