/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one number for the equations of cells and rules. They call no library. Relative
 * errors are below 4e-7, except near the roots of sin and cos, where absolute errors are below
 * 1e-10. */

#ifndef EDGERNN_MATH_H_
#define EDGERNN_MATH_H_

#include <stdint.h>

#if defined(__FAST_MATH__)
#error "edgernn: -ffast-math breaks the rounding to integers; compile this file without it"
#endif

/* 32-bit Arm with fused multiply-add of floats: assembly may use its instructions. */
#if defined(__GNUC__) && defined(__arm__) && defined(__ARM_FEATURE_FMA)
#define EDGERNN_FUSED 1
#endif

static inline uint32_t edgernn_bits(float a) {
  union {
    float number;
    uint32_t bits;
  } both;
  both.number = a;
  return both.bits;
}

static inline float edgernn_from_bits(uint32_t a) {
  union {
    uint32_t bits;
    float number;
  } both;
  both.bits = a;
  return both.number;
}

static inline int edgernn_is_finite(float a) {
  return (edgernn_bits(a) & 0x7f800000u) != 0x7f800000u;
}

/* The minimum and the maximum; NaN if either is NaN. */
static inline float edgernn_min(float a, float b) { return b != b || b < a ? b : a; }
static inline float edgernn_max(float a, float b) { return b != b || b > a ? b : a; }

#if defined(__GNUC__)
static inline float edgernn_abs(float a) { return __builtin_fabsf(a); }
#else
static inline float edgernn_abs(float a) {
  return edgernn_from_bits(edgernn_bits(a) & 0x7fffffffu);
}
#endif
static inline float edgernn_sign(float a) {
  return (a > 0.0f ? 1.0f : 0.0f) - (a < 0.0f ? 1.0f : 0.0f);
}

/* a, limited to [low, high]; NaN stays NaN. */
static inline float edgernn_clamp(float a, float low, float high) {
  const float capped = high < a ? high : a;
  return low > capped ? low : capped;
}

#define EDGERNN_ROUND 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define EDGERNN_ROUND_BITS 0x4b400000u

/* e^r - 1 for |r| <= ln(2) / 2: (e^r - 1) / r as a minimax polynomial, relative error 1.2e-8. */
static inline float edgernn_exp_less_one(float r) {
  float q = r * 0.00138888729f + 0.00836907607f;
  q = q * r + 0.0416671373f;
  q = q * r + 0.166665062f;
  q = q * r + 0.49999997f;
  q = q * r + 1.0f;
  return q * r;
}

/* Splits exp(a) = 2^n e^r with |r| <= ln(2) / 2. Returns 2^n and sets *r and *d, of which
 * e^r = (2 + *d + *r) / (2 + *d - *r): 2 + d = r coth(r / 2) as a minimax polynomial, relative
 * error of e^r 5e-10. */
static inline float edgernn_split_exp(float a, float* r, float* d) {
  const float shifted = a * 1.44269504088896341f + EDGERNN_ROUND;
  *r = a - (shifted - EDGERNN_ROUND) * 0.693147180559945309f;
  const float square = *r * *r;
  *d = (square * -0.0027660064f + 0.16666618f) * square;
#if defined(EDGERNN_FUSED)
  /* the bits of 2^n are n + 127 with 23 fractional bits */
  float scale = shifted - (EDGERNN_ROUND - 127.0f);
  __asm__("vcvt.s32.f32 %0, %0, #23" : "+t"(scale));
  return scale;
#else
  return edgernn_from_bits((edgernn_bits(shifted) << 23) + 0x3f800000u);
#endif
}

/* 1 / (1 + exp(-a)); absolute error below 2e-7, exactly 0 and 1 far from 0. */
static inline float edgernn_sigmoid(float a) {
  if (edgernn_bits(a) << 1 >= 0x855c0000u) { /* |a| >= 87 or NaN */
    return a > 0.0f ? 1.0f : a < 0.0f ? 0.0f : a;
  }
  float r, d;
  const float scale = edgernn_split_exp(a, &r, &d), c = d + 2.0f, e = scale * (c + r);
  return e / (e + (c - r));
}

/* Absolute error below 2e-7, exactly -1 and 1 far from 0. */
static inline float edgernn_tanh(float a) {
  if (edgernn_bits(a) << 1 >= 0x82400000u) { /* |a| >= 10 or NaN */
    return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a;
  }
  float r, d;
  const float scale = edgernn_split_exp(a + a, &r, &d), less = scale - 1.0f, more = scale + 1.0f;
  return (less * 2.0f + (more * r + less * d)) / (more * 2.0f + (less * r + more * d));
}

/* e^a = 2^n e^r, with ln(2) in two parts, so that n times the first part is exact. */
static inline float edgernn_exp(float a) {
  const float bounded = edgernn_clamp(a, -104.0f, 89.0f);
  const float shifted = bounded * 1.44269504088896341f + EDGERNN_ROUND;
  const float n = shifted - EDGERNN_ROUND;
  const float r = bounded - n * 0.693359375f - n * -2.12194440e-4f;
  /* 2^n may not be a normal float, so it is split into two factors */
  const int32_t power = bounded == bounded ? (int32_t)n : 0, half = power / 2;
  const float low = edgernn_from_bits((uint32_t)(half + 127) << 23);
  const float high = edgernn_from_bits((uint32_t)(power - half + 127) << 23);
  return (edgernn_exp_less_one(r) + 1.0f) * low * high;
}

/* log(2^n m) = n log(2) + log(m) with m from sqrt(1 / 2) to sqrt(2), m = 1 + f.
 *
 * (log(1 + f) - f + f^2 / 2) / f^3 is a minimax polynomial of degree 7; relative error 6e-9. */
static inline float edgernn_log(float a) {
  const int small = a < 1.17549435e-38f;
  const uint32_t normal = edgernn_bits(small ? a * 33554432.0f : a);
  /* the exponent of a positive float, rounded so that m is at least sqrt(1 / 2) */
  const int32_t power = (int32_t)((normal + (0x3f800000u - 0x3f3504f3u)) >> 23) - 127;
  const float f = edgernn_from_bits(normal - ((uint32_t)power << 23)) - 1.0f;
  const float n = (float)(power - (small ? 25 : 0));
  const float square = f * f;
  float p = f * -7.634907216e-2f + 1.276219636e-1f;
  p = p * f - 1.316032410e-1f;
  p = p * f + 1.420168579e-1f;
  p = p * f - 1.662333608e-1f;
  p = p * f + 2.000122964e-1f;
  p = p * f - 2.500082254e-1f;
  p = p * f + 3.333333135e-1f;
  if (!(a > 0.0f))
    return a == 0.0f ? edgernn_from_bits(0xff800000u) : edgernn_from_bits(0x7fc00000u);
  if (!edgernn_is_finite(a)) return a;
  return f + (p * (square * f) + n * -2.12194440e-4f - square * 0.5f) + n * 0.693359375f;
}

/* The square root: an instruction if the processor has one, else Newton's method for 1 / sqrt(a),
 * from the bits of a. */
static inline float edgernn_sqrt(float a) {
#if defined(__GNUC__) && defined(__ARM_FP) && (__ARM_FP & 4)
  float result;
  __asm__("vsqrt.f32 %0, %1" : "=t"(result) : "t"(a));
  return result;
#elif defined(__GNUC__) && defined(__riscv_flen)
  float result;
  __asm__("fsqrt.s %0, %1" : "=f"(result) : "f"(a));
  return result;
#else
  if (!(a > 0.0f)) return a == 0.0f ? a : edgernn_from_bits(0x7fc00000u);
  if (!edgernn_is_finite(a)) return a;
  const float wide = a < 1e-30f ? a * 1.15292150e18f : a; /* 2^60 */
  float inverse = edgernn_from_bits(0x5f375a86u - (edgernn_bits(wide) >> 1));
  for (int pass = 0; pass < 3; ++pass) {
    inverse = inverse * (1.5f - (0.5f * wide * inverse) * inverse);
  }
  const float root = wide * inverse;
  const float better = root + 0.5f * inverse * (wide - root * root);
  return a < 1e-30f ? better * 9.31322575e-10f : better; /* 2^-30 */
#endif
}

/* Reduces a number of at least 2^-5 to -pi / 4 to pi / 4 plus quarters of a turn, by the
 * Payne-Hanek method with 96 bits of 2 / pi. */
static inline float edgernn_reduce_large(float a, uint32_t* quarters) {
  static const uint32_t two_by_pi[] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                       0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  const uint32_t bits = edgernn_bits(a), exponent = bits >> 23 & 255u;
  *quarters = 0;
  if (exponent == 255u) return edgernn_from_bits(0x7fc00000u);
  /* |a| = mantissa 2^(exponent - 150); skips the bits of 2 / pi whose products are whole turns */
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const uint32_t first = exponent - 120u, word = first / 32u, shift = first % 32u;
  uint32_t window[3];
  for (uint32_t i = 0; i < 3; ++i) {
    const uint32_t low = shift == 0 ? 0 : two_by_pi[word + i + 1] >> (32u - shift);
    window[i] = two_by_pi[word + i] << shift | low;
  }
  /* quarters of a turn, in fixed point with 62 fractional bits */
  const uint64_t turns =
      (mantissa * window[0] << 32) + mantissa * window[1] + (mantissa * window[2] >> 32);
  const uint64_t whole = (turns + (UINT64_C(1) << 61)) >> 62;
  const uint64_t rest = turns - (whole << 62);
  const uint64_t size = rest >> 63 ? 0 - rest : rest;
  const float angle = ((float)(uint32_t)(size >> 32) * 4294967296.0f + (float)(uint32_t)size) *
                      3.40612158e-19f; /* pi / 2 / 2^62 */
  const int negative = (rest >> 63) != (bits >> 31);
  *quarters = bits >> 31 ? 0 - (uint32_t)whole : (uint32_t)whole;
  return negative ? -angle : angle;
}

/* The sine of a plus `add` quarters of a turn. Reduces a by the Cody-Waite method, with pi / 2 in
 * three parts whose products are exact up to 8192. */
static inline float edgernn_sine(float a, uint32_t add) {
  float r;
  uint32_t quarters;
  if (edgernn_abs(a) <= 8192.0f) {
    const float shifted = a * 0.636619772367581343f + EDGERNN_ROUND;
    const float count = shifted - EDGERNN_ROUND;
    quarters = edgernn_bits(shifted) - EDGERNN_ROUND_BITS;
    r = a - count * 1.5703125f - count * 4.837512969970703e-4f - count * 7.54978995e-8f;
  } else {
    r = edgernn_reduce_large(a, &quarters);
  }
  /* (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 are minimax polynomials, error 4e-9 */
  const float square = r * r;
  float s = square * -1.951495797e-4f + 8.332158439e-3f;
  s = s * square - 1.666665524e-1f;
  float c = square * 2.443278572e-5f - 1.388731296e-3f;
  c = c * square + 4.166664556e-2f;
  const uint32_t place = quarters + add;
  const float value =
      (place & 1u) ? c * (square * square) - square * 0.5f + 1.0f : s * (square * r) + r;
  return (place & 2u) ? -value : value;
}

static inline float edgernn_sin(float a) { return edgernn_sine(a, 0); }
static inline float edgernn_cos(float a) { return edgernn_sine(a, 1); }

#endif /* EDGERNN_MATH_H_ */
