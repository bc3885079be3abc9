// SPDX-License-Identifier: Apache-2.0
// Products with weights of two bytes and of one, which are read two columns at a time.
//
// Packed as in gemm.h, but for [panel][pair of columns][block of the panel][gate][lane][2]. Weights
// of one byte have a scale a row, and what they multiply becomes 16-bit whole numbers with a scale
// a vector: their sums are exact, the same for every instruction set and every order.

#ifndef EDGERNN_PAIRS_H_
#define EDGERNN_PAIRS_H_

#include "carver.h"
#include "kernel.h"
#include "vec.h"

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

[[gnu::always_inline]] inline std::int64_t PaddedShorts(std::int64_t count) {
  return (count + kShorts - 1) / kShorts * kShorts;
}

[[gnu::always_inline]] inline Shorts LoadShorts(const std::int16_t* from) {
  Shorts made;
  std::memcpy(&made, from, sizeof made);
  return made;
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
#else
  typedef std::int8_t Raw __attribute__((vector_size(kShorts)));
  Raw bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return {__builtin_convertvector(bytes, Shorts::Raw)};
#endif
}

// Whether there are kernels for processors that sum up pairs in one instruction, AVX-512's VNNI.
#if defined(__AVX512BW__)
constexpr bool kHasDots = true;
#else
constexpr bool kHasDots = false;
#endif

// sum + a_even b_even + a_odd b_odd, pair by pair.
template <bool kDots>
[[gnu::always_inline]] inline Vec::Bits AddPairs(Vec::Bits sum, Shorts a, Shorts b) {
#if defined(__AVX512BW__)
  if constexpr (kDots) {
    // its intrinsic is for functions that are compiled for VNNI as a whole
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a.raw), "vm"(b.raw));
    return sum;
  }
  const __m512i made =
      _mm512_madd_epi16(reinterpret_cast<__m512i>(a.raw), reinterpret_cast<__m512i>(b.raw));
  return sum + reinterpret_cast<Vec::Bits>(made);
#elif defined(__AVX2__)
  const __m256i made =
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a.raw), reinterpret_cast<__m256i>(b.raw));
  return sum + reinterpret_cast<Vec::Bits>(made);
#elif defined(__SSE2__)
  const __m128i made =
      _mm_madd_epi16(reinterpret_cast<__m128i>(a.raw), reinterpret_cast<__m128i>(b.raw));
  return sum + reinterpret_cast<Vec::Bits>(made);
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

[[gnu::always_inline]] inline Vec ToFloats(Vec::Bits a) {
  return {__builtin_convertvector(a, Vec::Raw)};
}

// The two numbers of half a float each in a word: the first is the lower half.
struct Halves {
  Vec first;
  Vec second;
};

[[gnu::always_inline]] inline Halves LoadHalves(const void* from) {
  Vec::Bits words;
  std::memcpy(&words, from, sizeof words);
  return {{reinterpret_cast<Vec::Raw>(words << 16)},
          {reinterpret_cast<Vec::Raw>(words & static_cast<std::int32_t>(0xffff0000u))}};
}

// The upper half of a float, rounded to the nearest, ties to even.
[[gnu::always_inline]] inline std::uint16_t ToHalf(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// What the bytes of a row are multiplied with: its largest number is 127 of them.
inline float ByteScale(const Values& source, std::int64_t from, std::int64_t columns) {
  float most = 0.0f;
  for (std::int64_t k = 0; k < columns; ++k) {
    const float value = source[from + k], size = value < 0.0f ? -value : value;
    // NaN passes, and makes all of the row NaN
    most = size <= most ? most : size;
  }
  return most / 127.0f;
}

inline std::int8_t ToByte(float value, float scale) {
  const float whole = value / scale;
  if (whole != whole) return 0;
  // of a scale that is denormal it may be more
  const float bounded = whole < -127.0f ? -127.0f : whole > 127.0f ? 127.0f : whole;
  return static_cast<std::int8_t>(bounded < 0.0f ? bounded - 0.5f : bounded + 0.5f);
}

// The largest 16-bit number with which `depth` products with a byte cannot overflow 32 bits.
inline float LargestShort(std::int64_t depth) {
  const std::int64_t most = 0x7fffffff / (127 * (depth < 1 ? 1 : depth));
  return static_cast<float>(most < 32767 ? most : 32767);
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

// Rows as whole numbers: `scales` times those at `at`, each row padded with zeros.
struct ShortRows {
  std::int16_t* at;
  float* scales;
  std::int64_t stride;

  void Carve(NumberType type, std::int64_t rows, std::int64_t depth, Carver* carver) {
    if (type != NumberType::kInt8) rows = 0;
    stride = PaddedShorts(depth);
    at = carver->Take<std::int16_t>(rows * stride);
    scales = carver->Take<float>(rows);
  }

  // Of the first `columns` of rows `from_stride` apart, which may have `depth`. What is not finite
  // makes its row NaN.
  [[gnu::noinline]] void Read(const float* from, std::int64_t from_stride, std::int64_t rows,
                              std::int64_t columns, std::int64_t depth) const {
    const float largest = LargestShort(depth);
    for (std::int64_t row = 0; row < rows; ++row) {
      scales[row] = ReadRow(from + row * from_stride, columns, largest, at + row * stride);
    }
  }

 private:
  float ReadRow(const float* from, std::int64_t columns, float largest, std::int16_t* to) const {
    const std::int64_t whole = columns & -kLanes;
    Vec rest = Zero();
    std::memcpy(&rest, from + whole, static_cast<std::size_t>(columns - whole) * sizeof(float));
    // in the order of floats without a sign, then infinity and NaN
    Vec::Bits most = Size(rest);
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
    for (std::int64_t j = 0; j < whole; j += kLanes) Shorten(Load(from + j) * factor, to + j);
    if (whole < columns) Shorten(rest * factor, to + whole);
    return top / largest;
  }

  [[gnu::always_inline]] static Vec::Bits Size(Vec a) {
    return reinterpret_cast<Vec::Bits>(a.raw) & 0x7fffffff;
  }

  // Stores the whole numbers nearest to a.
  [[gnu::always_inline]] static void Shorten(Vec a, std::int16_t* to) {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = a + kShift;
    const Vec::Bits whole = reinterpret_cast<Vec::Bits>(shifted.raw) - 0x4b400000;
    typedef std::int16_t Raw __attribute__((vector_size(kLanes * 2)));
    const Raw made = __builtin_convertvector(whole, Raw);
    std::memcpy(to, &made, sizeof made);
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_PAIRS_H_
