// SPDX-License-Identifier: Apache-2.0
// Conversions and products of bfloat16 and int8 weights, which are read two columns at a time.
//
// Packed as in gemm.h, but for [panel][pair of columns][block of the panel][gate][lane][2]; bytes
// may lie four by four instead, see Int8Product. Weights of one byte have a scale a row, and what
// they multiply becomes 16-bit whole numbers with a scale a vector: their sums are exact, the same
// for every instruction set and every order.

#ifndef EDGERNN_CPU_LOW_PRECISION_H_
#define EDGERNN_CPU_LOW_PRECISION_H_

#include "common/arena.h"
#include "common/kernel.h"
#include "cpu/simd.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace edgernn::EDGERNN_ISA {

// Twice as many numbers of 16 bits as there are lanes.
struct Shorts {
  typedef std::int16_t Raw __attribute__((vector_size(kLanes * 4)));
  Raw raw;
};

// So many numbers are in one vector of Shorts.
constexpr std::int64_t kShorts = 2 * kLanes;

[[gnu::always_inline]] inline Shorts LoadShorts(const std::int16_t* from) {
  Shorts result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

// The two numbers at `from` in all lanes.
[[gnu::always_inline]] inline Shorts FillPair(const std::int16_t* from) {
  std::int32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return {reinterpret_cast<Shorts::Raw>(pair - Vec::Bits{})};
}

// kShorts bytes.
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

// Whether there are kernels for processors that multiply whole numbers and sum them up in one
// instruction: AVX-512's VNNI takes pairs of 16 bits, Arm's dot product fours of 8 bits. Their
// intrinsics are for functions compiled for such processors alone, hence assembler.
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

// Whether weights of bytes are multiplied so.
[[gnu::always_inline]] inline bool UsesDots(const LayerSizes& sizes) {
  return kHasDots && sizes.dots && sizes.weights == NumberType::kInt8;
}

// So many columns lie side by side, in a word of the sums' size.
[[gnu::always_inline]] inline int SideColumns(bool dots) { return dots ? kDotColumns : 2; }

// A neuron's row has vectors of so many columns, and its columns are padded to whole ones.
[[gnu::always_inline]] inline std::int64_t VectorColumns(const LayerSizes& sizes) {
  return kLanes * SideColumns(UsesDots(sizes));
}

[[gnu::always_inline]] inline std::int64_t PaddedColumns(const LayerSizes& sizes,
                                                         std::int64_t count) {
  const std::int64_t vector = VectorColumns(sizes);
  return (count + vector - 1) / vector * vector;
}

// How weights of bytes are multiplied, with and without dots: `kColumns` side by side, in so many
// passes, before each of which the sums are multiplied by 256.
template <bool kDots>
struct Int8Product {
  static constexpr int kColumns = 2;
  static constexpr int kPasses = 1;
  using Weights = Shorts;
  using Factor = Shorts;

  [[gnu::always_inline]] static Weights Load(const std::int8_t* from) { return Widen(from); }

  // What QuantizedRows has for columns side by side, for all lanes.
  [[gnu::always_inline]] static Factor Fill(const std::int16_t* from, int) {
    return FillPair(from);
  }

  // Likewise, for each lane its own.
  [[gnu::always_inline]] static Factor LoadFactor(const std::int16_t* from, int) {
    return LoadShorts(from);
  }

  // sum + a_even b_even + a_odd b_odd, pair by pair.
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
#else
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += a.raw[2 * lane] * b.raw[2 * lane] + a.raw[2 * lane + 1] * b.raw[2 * lane + 1];
    }
    return sum;
#endif
  }
};

#if defined(__aarch64__)
// The first pass takes the upper bytes of four numbers of 16 bits, the second the lower ones.
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

  // sum + the products, four by four.
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

// The two numbers of half a float each in a word: the first is the lower half.
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

// The upper half of a float, rounded to the nearest, ties to even.
[[gnu::always_inline]] inline std::uint16_t ToBfloat16(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// What the bytes of a row are multiplied with: its largest number is 127 of them.
inline float Int8Scale(const Values& source, std::int64_t from, std::int64_t columns) {
  float most = 0.0f;
  for (std::int64_t k = 0; k < columns; ++k) {
    const float value = source[from + k], size = value < 0.0f ? -value : value;
    // NaN passes, and makes all of the row NaN
    most = size <= most ? most : size;
  }
  return most / 127.0f;
}

inline std::int8_t ToInt8(float value, float scale) {
  const float whole = value / scale;
  if (whole != whole) return 0;
  // of a scale that is denormal it may be more
  const float bounded = whole < -127.0f ? -127.0f : whole > 127.0f ? 127.0f : whole;
  return static_cast<std::int8_t>(bounded < 0.0f ? bounded - 0.5f : bounded + 0.5f);
}

// The largest 16-bit number with which `depth` products with a byte cannot overflow 32 bits, and
// which is 256 times a byte and a byte.
inline float LargestInt16(std::int64_t depth) {
  constexpr std::int64_t kLargest = 127 * 256 + 127;
  const std::int64_t most = 0x7fffffff / (127 * (depth < 1 ? 1 : depth));
  return static_cast<float>(most < kLargest ? most : kLargest);
}

// The largest lane, where every lane has that of so many.
template <int kOf = 1, std::size_t... kLane>
[[gnu::always_inline]] inline std::int32_t Most(Vec::Bits a, std::index_sequence<kLane...> lanes) {
  if constexpr (kOf == kLanes) {
    return a[0];
  } else {
    const Vec::Bits other = __builtin_shufflevector(a, a, (static_cast<int>(kLane) ^ kOf)...);
    return Most<2 * kOf>(other > a ? other : a, lanes);
  }
}

// Rows as whole numbers: `scales` times those at `at`, each row padded with zeros. Where columns
// lie four by four, these are the upper bytes of four numbers and then the lower ones.
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

  // Of the first `columns` of rows `from_stride` apart, which may have `depth`. What is not finite
  // makes its row NaN.
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
    // in the order of floats without a sign, then infinity and NaN
    Vec::Bits most = Size(tail);
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      const Vec::Bits size = Size(Load(from + j));
      most = size > most ? size : most;
    }
    const std::int32_t bits = Most(most, std::make_index_sequence<kLanes>());
    const bool finite = bits < 0x7f800000;
    const std::int64_t kept = finite ? whole : 0;
    std::memset(to + kept, 0, static_cast<std::size_t>(stride - kept) * sizeof *to);
    if (!finite) return __builtin_nanf("");
    float top;
    std::memcpy(&top, &bits, sizeof top);
    // of numbers so small that their scale would be denormal nothing is left
    const float factor = top > 1e-30f ? largest / top : 0.0f;
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      Quantize(Load(from + j) * factor, dots, to + j);
    }
    if (whole < columns) Quantize(tail * factor, dots, to + whole);
    return top / largest;
  }

  [[gnu::always_inline]] static Vec::Bits Size(Vec a) {
    return reinterpret_cast<Vec::Bits>(a.raw) & 0x7fffffff;
  }

  // Stores the whole numbers nearest to a.
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
    static_cast<void>(dots);  // two by two they lie as they are
#endif
    std::memcpy(to, &result, sizeof result);
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_CPU_LOW_PRECISION_H_
