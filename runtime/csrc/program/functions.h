// SPDX-License-Identifier: Apache-2.0
// The ops of programs on vectors, under their names in ops.h. Relative errors are below 3e-7,
// except near the roots of sin and cos, where absolute errors are below 1e-10. NaN is handled as in
// torch.

#pragma once

#include "cpu/simd.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace edgernn::EDGERNN_ISA {

[[gnu::always_inline]] inline Vec::Bits AsBits(Vec a) { return reinterpret_cast<Vec::Bits>(a.raw); }

[[gnu::always_inline]] inline Vec FromBits(Vec::Bits a) { return {reinterpret_cast<Vec::Raw>(a)}; }

// a - b, modulo 2^32.
[[gnu::always_inline]] inline Vec::Bits SubtractBits(Vec::Bits a, Vec::Bits b) {
  typedef std::uint32_t Words __attribute__((vector_size(kLanes * 4)));
  return reinterpret_cast<Vec::Bits>(reinterpret_cast<Words>(a) - reinterpret_cast<Words>(b));
}

[[gnu::always_inline]] inline Vec::Bits SubtractBits(Vec::Bits a, std::int32_t b) {
  return SubtractBits(a, b - Vec::Bits{});
}

// True if any lane exceeds `most` or is NaN.
[[gnu::always_inline]] inline bool AnyAbove(Vec a, float most) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(a.raw, Fill(most).raw, _CMP_NLE_UQ) != 0;
#elif defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps(a.raw, Fill(most).raw, _CMP_NLE_UQ)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(_mm_cmpnle_ps(a.raw, Fill(most).raw)) != 0;
#else
  bool any = false;
  for (int lane = 0; lane < kLanes; ++lane) any |= !(a.raw[lane] <= most);
  return any;
#endif
}

// An angle as quarters of a turn plus `rest`, from -pi / 4 to pi / 4.
struct ReducedAngle {
  Vec rest;
  Vec::Bits quarters;
};

// Reduces one number of at least 2^-5, by the Payne-Hanek method with 96 bits of 2 / pi. Returns
// the rest.
[[gnu::noinline, gnu::cold]] inline float ReduceLarge(float a, std::int32_t* quarters) {
  std::uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  const std::uint32_t exponent = bits >> 23 & 255u;
  *quarters = 0;
  if (exponent == 255u) return __builtin_nanf("");
  // a word of 0, then the bits of 2 / pi
  constexpr std::uint32_t kTwoByPi[] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                        0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  // |a| = mantissa 2^(exponent - 150); skips the bits of 2 / pi whose products are whole turns
  const std::uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const std::uint32_t first = exponent - 120u, word = first / 32u, shift = first % 32u;
  std::uint64_t window[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    const std::uint64_t pair =
        static_cast<std::uint64_t>(kTwoByPi[word + i]) << 32 | kTwoByPi[word + i + 1];
    window[i] = pair << shift >> 32 & 0xffffffffu;
  }
  // quarters of a turn, in fixed point with 62 fractional bits
  const std::uint64_t turns =
      (mantissa * window[0] << 32) + mantissa * window[1] + (mantissa * window[2] >> 32);
  const std::uint64_t whole = (turns + (std::uint64_t{1} << 61)) >> 62;
  const auto rest = static_cast<std::int64_t>(turns - (whole << 62));
  const double angle = static_cast<double>(rest) * (1.57079632679489662 / 4611686018427387904.0);
  const bool negative = bits >> 31 != 0;
  *quarters = negative ? -static_cast<std::int32_t>(whole) : static_cast<std::int32_t>(whole);
  return static_cast<float>(negative ? -angle : angle);
}

// The largest number for which the products in Reduce with the first two parts of pi / 2 are exact.
constexpr float kMaxReduced = 8192.0f;

// Reduces the lanes that exceed kMaxReduced.
[[gnu::noinline, gnu::cold]] inline void ReduceLargeLanes(const Vec& a, ReducedAngle* angle) {
#pragma GCC unroll 1
  for (int lane = 0; lane < kLanes; ++lane) {
    float number, rest;
    std::memcpy(&number, reinterpret_cast<const char*>(&a) + 4 * lane, sizeof number);
    if (__builtin_fabsf(number) <= kMaxReduced) continue;
    std::int32_t quarters;
    rest = ReduceLarge(number, &quarters);
    std::memcpy(reinterpret_cast<char*>(&angle->rest) + 4 * lane, &rest, sizeof rest);
    std::memcpy(reinterpret_cast<char*>(&angle->quarters) + 4 * lane, &quarters, sizeof quarters);
  }
}

// Reduces an angle by the Cody-Waite method, with pi / 2 in three parts.
[[gnu::always_inline]] inline ReducedAngle Reduce(Vec a) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = a * 0.636619772367581343f + kShift;
  const Vec count = shifted - kShift;
  ReducedAngle angle;
  angle.quarters = SubtractBits(AsBits(shifted), 0x4b400000);
  angle.rest = a - count * 1.5703125f - count * 4.837512969970703e-4f - count * 7.54978995e-8f;
  const Vec magnitude = FromBits(AsBits(a) & 0x7fffffff);
  if (__builtin_expect(AnyAbove(magnitude, kMaxReduced), false)) ReduceLargeLanes(a, &angle);
  return angle;
}

// The sine of an angle plus `quarters` of a turn.
//
// (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 are minimax polynomials of degree 2 in r^2
// for |r| <= pi / 4; relative error 4e-9.
[[gnu::always_inline]] inline Vec SineOf(const ReducedAngle& angle, std::int32_t quarters) {
  const Vec r = angle.rest, square = r * r;
  Vec s = square * -1.951495797e-4f + 8.332158439e-3f;
  s = s * square - 1.666665524e-1f;
  const Vec sine = s * (square * r) + r;
  Vec c = square * 2.443278572e-5f - 1.388731296e-3f;
  c = c * square + 4.166664556e-2f;
  const Vec cosine = c * (square * square) - square * 0.5f + 1.0f;
  const Vec::Bits place = SubtractBits(angle.quarters, -quarters);
  const Vec value = {(place & 1) != 0 ? cosine.raw : sine.raw};
  return FromBits(AsBits(value) ^ (place & 2) << 30);
}

// One function for each op.
namespace functions {

[[gnu::always_inline]] inline Vec Ones(Vec::Bits mask) {
  return FromBits(mask & AsBits(Fill(1.0f)));
}

[[gnu::always_inline]] inline Vec add(Vec a, Vec b) { return a + b; }
[[gnu::always_inline]] inline Vec sub(Vec a, Vec b) { return a - b; }
[[gnu::always_inline]] inline Vec mul(Vec a, Vec b) { return a * b; }
[[gnu::always_inline]] inline Vec div(Vec a, Vec b) { return a / b; }

[[gnu::always_inline]] inline Vec min(Vec a, Vec b) {
  return {b.raw != b.raw ? b.raw : b.raw < a.raw ? b.raw : a.raw};
}

[[gnu::always_inline]] inline Vec max(Vec a, Vec b) {
  return {b.raw != b.raw ? b.raw : b.raw > a.raw ? b.raw : a.raw};
}

[[gnu::always_inline]] inline Vec neg(Vec a) { return {-a.raw}; }
[[gnu::always_inline]] inline Vec abs(Vec a) { return FromBits(AsBits(a) & 0x7fffffff); }

[[gnu::always_inline]] inline Vec sqrt(Vec a) {
#if defined(__AVX512F__)
  return {_mm512_maskz_sqrt_ps(0xffff, a.raw)};
#elif defined(__AVX__)
  return {_mm256_sqrt_ps(a.raw)};
#elif defined(__SSE2__)
  return {_mm_sqrt_ps(a.raw)};
#elif defined(__aarch64__)
  return {reinterpret_cast<Vec::Raw>(vsqrtq_f32(reinterpret_cast<float32x4_t>(a.raw)))};
#else
  for (int lane = 0; lane < kLanes; ++lane) a.raw[lane] = __builtin_sqrtf(a.raw[lane]);
  return a;
#endif
}

// e^a = 2^n e^r, with ln(2) in two parts, so that n times the first part is exact.
[[gnu::always_inline]] inline Vec exp(Vec a) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec bounded = Clamp(a, -104.0f, 89.0f);
  const Vec shifted = bounded * 1.44269504088896341f + kShift;
  const Vec n = shifted - kShift;
  const Vec r = bounded - n * 0.693359375f - n * -2.12194440e-4f;
  // 2^n may not be a normal float, so it is split into two factors
  const Vec::Bits power = SubtractBits(AsBits(shifted), 0x4b400000), half = power >> 1;
  const Vec low = FromBits((half + 127) << 23), high = FromBits((power - half + 127) << 23);
  return (ExpLessOne(r) + 1.0f) * low * high;
}

// log(2^n m) = n log(2) + log(m) with m from sqrt(1 / 2) to sqrt(2), m = 1 + f.
//
// (log(1 + f) - f + f^2 / 2) / f^3 is a minimax polynomial of degree 7; relative error 6e-9.
[[gnu::always_inline]] inline Vec log(Vec a) {
  const Vec::Bits small = a.raw < 1.17549435e-38f;
  const Vec normal = {small != 0 ? Vec(a * 33554432.0f).raw : a.raw};
  const Vec::Bits power = SubtractBits(AsBits(normal), 0x3f3504f3) >> 23;
  const Vec f = FromBits(SubtractBits(AsBits(normal), power << 23)) - 1.0f;
  const Vec n = {__builtin_convertvector(power - (small & 25), Vec::Raw)};
  const Vec square = f * f;
  Vec p = f * -7.634907216e-2f + 1.276219636e-1f;
  p = p * f - 1.316032410e-1f;
  p = p * f + 1.420168579e-1f;
  p = p * f - 1.662333608e-1f;
  p = p * f + 2.000122964e-1f;
  p = p * f - 2.500082254e-1f;
  p = p * f + 3.333333135e-1f;
  const Vec result =
      f + (p * (square * f) + n * -2.12194440e-4f - square * 0.5f) + n * 0.693359375f;
  const Vec::Raw infinity = Fill(__builtin_inff()).raw, nan = Fill(__builtin_nanf("")).raw;
  const Vec::Raw special = a.raw == 0.0f ? -infinity : a.raw == infinity ? infinity : nan;
  return {((a.raw > 0.0f) & (a.raw < infinity)) ? result.raw : special};
}

[[gnu::always_inline]] inline Vec sin(Vec a) { return SineOf(Reduce(a), 0); }
[[gnu::always_inline]] inline Vec cos(Vec a) { return SineOf(Reduce(a), 1); }
[[gnu::always_inline]] inline Vec tanh(Vec a) { return Tanh(a); }
[[gnu::always_inline]] inline Vec sigmoid(Vec a) { return Sigmoid(a); }

[[gnu::always_inline]] inline Vec sign(Vec a) { return Ones(a.raw > 0.0f) - Ones(a.raw < 0.0f); }

[[gnu::always_inline]] inline Vec less(Vec a, Vec b) { return Ones(a.raw < b.raw); }
[[gnu::always_inline]] inline Vec less_equal(Vec a, Vec b) { return Ones(a.raw <= b.raw); }
[[gnu::always_inline]] inline Vec equal(Vec a, Vec b) { return Ones(a.raw == b.raw); }

[[gnu::always_inline]] inline Vec select(Vec a, Vec b, Vec c) {
  return {a.raw != 0.0f ? b.raw : c.raw};
}

[[gnu::always_inline]] inline Vec lerp(Vec a, Vec b, Vec c) { return (1.0f - c) * a + c * b; }

// Fused ops.
[[gnu::always_inline]] inline Vec copy(Vec a) { return a; }
[[gnu::always_inline]] inline Vec mul_add(Vec a, Vec b, Vec c) { return a * b + c; }
[[gnu::always_inline]] inline Vec sigmoid_mul(Vec a, Vec b) { return Sigmoid(a) * b; }
[[gnu::always_inline]] inline Vec sigmoid_mul_tanh(Vec a, Vec b) { return Sigmoid(a) * Tanh(b); }

[[gnu::always_inline]] inline Vec sigmoid_mul_add(Vec a, Vec b, Vec c) {
  return Sigmoid(a) * b + c;
}

[[gnu::always_inline]] inline Vec sigmoid_mul_tanh_add(Vec a, Vec b, Vec c) {
  return Sigmoid(a) * Tanh(b) + c;
}

[[gnu::always_inline]] inline Vec mul_tanh_add(Vec a, Vec b, Vec c) { return a * Tanh(b) + c; }
[[gnu::always_inline]] inline Vec lerp_sigmoid(Vec a, Vec b, Vec c) {
  return lerp(a, b, Sigmoid(c));
}

[[gnu::always_inline]] inline Vec tanh_lerp_sigmoid(Vec a, Vec b, Vec c) {
  return lerp(Tanh(a), b, Sigmoid(c));
}

[[gnu::always_inline]] inline Vec lerp_tanh_sigmoid(Vec a, Vec b, Vec c) {
  return lerp(a, Tanh(b), Sigmoid(c));
}

[[gnu::always_inline]] inline Vec sigmoid_mul_add_sigmoid_mul(Vec a, Vec b, Vec c, Vec d) {
  return Sigmoid(c) * d + Sigmoid(a) * b;
}

[[gnu::always_inline]] inline Vec sigmoid_mul_tanh_add_sigmoid_mul(Vec a, Vec b, Vec c, Vec d) {
  return Sigmoid(c) * d + Sigmoid(a) * Tanh(b);
}

}  // namespace functions

}  // namespace edgernn::EDGERNN_ISA
