/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a neuron's weights with a vector. A neuron has a row for each of one to four gates,
 * in blocks of four columns: [block][gate][4], then [column][gate] for the columns that are left.
 * Rows of int8 weights are padded to whole blocks. */

#ifndef EDGERNN_PRODUCTS_H_
#define EDGERNN_PRODUCTS_H_

#include <stdint.h>

#include "edgernn_math.h"

/* Helium on a Cortex-M55 has vectors of floats and of integers; Cortex-M4 and M7 have pairs. */
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#include <arm_mve.h>
#define EDGERNN_HELIUM 1
#elif defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__)
#include <arm_acle.h>
#define EDGERNN_PAIRS 1
#endif

#if defined(__GNUC__)
#define EDGERNN_ALIGNED __attribute__((aligned(4)))
#else
#define EDGERNN_ALIGNED
#endif

/* Names of the sums that a product adds to, and what is done for each gate. */
#define EDGERNN_SUMS_1 float* p0
#define EDGERNN_SUMS_2 EDGERNN_SUMS_1, float* p1
#define EDGERNN_SUMS_3 EDGERNN_SUMS_2, float* p2
#define EDGERNN_SUMS_4 EDGERNN_SUMS_3, float* p3
#define EDGERNN_GATES_1(EACH) EACH(0)
#define EDGERNN_GATES_2(EACH) EDGERNN_GATES_1(EACH) EACH(1)
#define EDGERNN_GATES_3(EACH) EDGERNN_GATES_2(EACH) EACH(2)
#define EDGERNN_GATES_4(EACH) EDGERNN_GATES_3(EACH) EACH(3)

#define EDGERNN_LOAD(g) float s##g = *p##g;
#define EDGERNN_STORE(g) *p##g = s##g;
#define EDGERNN_ADD_COLUMN(g) s##g += w[g] * a0;

#if defined(EDGERNN_HELIUM)
#define EDGERNN_VECTOR(g) float32x4_t v##g = vdupq_n_f32(0.0f);
#define EDGERNN_ADD_BLOCK(g) v##g = vfmaq_f32(v##g, vld1q_f32(w + 4 * g), four);
#define EDGERNN_ADD_LANES(g) s##g += (v##g[0] + v##g[1]) + (v##g[2] + v##g[3]);
#define EDGERNN_BLOCKS(count)                                                      \
  EDGERNN_GATES_##count(EDGERNN_VECTOR) for (; a != end; a += 4, w += 4 * count) { \
    const float32x4_t four = vld1q_f32(a);                                         \
    EDGERNN_GATES_##count(EDGERNN_ADD_BLOCK)                                       \
  }                                                                                \
  EDGERNN_GATES_##count(EDGERNN_ADD_LANES)
#else
#define EDGERNN_ADD_BLOCK(g) \
  s##g += w[4 * g] * a0;     \
  s##g += w[4 * g + 1] * a1; \
  s##g += w[4 * g + 2] * a2; \
  s##g += w[4 * g + 3] * a3;
#define EDGERNN_BLOCKS(count)                               \
  for (; a != end; a += 4, w += 4 * count) {                \
    const float a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3]; \
    EDGERNN_GATES_##count(EDGERNN_ADD_BLOCK)                \
  }
#endif

/* Adds w · a, for each gate, to the sums. w (columns * count,), a (columns,). */
#define EDGERNN_DEFINE_PRODUCTS(count)                                                             \
  static inline void edgernn_products_##count(const float* w, const float* a, int32_t columns,     \
                                              EDGERNN_SUMS_##count) {                              \
    const float* const end = a + (columns & ~3);                                                   \
    const float* const last = a + columns;                                                         \
    EDGERNN_GATES_##count(EDGERNN_LOAD) EDGERNN_BLOCKS(count) for (; a != last; ++a, w += count) { \
      const float a0 = *a;                                                                         \
      EDGERNN_GATES_##count(EDGERNN_ADD_COLUMN)                                                    \
    }                                                                                              \
    EDGERNN_GATES_##count(EDGERNN_STORE)                                                           \
  }

EDGERNN_DEFINE_PRODUCTS(1)
EDGERNN_DEFINE_PRODUCTS(2)
EDGERNN_DEFINE_PRODUCTS(3)
EDGERNN_DEFINE_PRODUCTS(4)

/* Products of int8 weights with a vector that is quantised to 16-bit integers. The sums are whole
 * numbers below 2^31, so they do not depend on the processor. */
#if defined(EDGERNN_HELIUM)
#define EDGERNN_PLACE(k) (k)
#define EDGERNN_LOAD_BLOCK const int32x4_t four = vldrhq_s32(a);
#define EDGERNN_ADD_BYTES(g) t##g = vmladavaq_s32(t##g, four, vldrbq_s32(w + 4 * g));
#elif defined(EDGERNN_PAIRS)
/* pairs (0, 2) and (1, 3) of a block, as SXTB16 widens bytes 0 and 2 of a word */
#define EDGERNN_PLACE(k) (((k) & ~3) | (((k) & 1) << 1) | (((k) >> 1) & 1))
#define EDGERNN_LOAD_BLOCK                                        \
  const int16x2_t even = ((const EdgernnWord*)(const void*)a)[0]; \
  const int16x2_t odd = ((const EdgernnWord*)(const void*)a)[1];
#define EDGERNN_ADD_BYTES(g)                                          \
  {                                                                   \
    const EdgernnWord word = ((const EdgernnWord*)(const void*)w)[g]; \
    t##g = __smlad(__sxtb16(word), even, t##g);                       \
    t##g = __smlad(edgernn_odd_bytes(word), odd, t##g);               \
  }

/* Four bytes or two 16-bit integers, aligned to 4 bytes. */
typedef int32_t EdgernnWord __attribute__((may_alias));

/* Bytes 1 and 3 in one instruction, which GCC does not find. */
static inline int16x2_t edgernn_odd_bytes(int32_t word) {
  int16x2_t result;
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(result) : "r"(word));
  return result;
}
#else
#define EDGERNN_PLACE(k) (k)
#define EDGERNN_LOAD_BLOCK const int32_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
#define EDGERNN_ADD_BYTES(g) \
  t##g += a0 * w[4 * g] + a1 * w[4 * g + 1] + a2 * w[4 * g + 2] + a3 * w[4 * g + 3];
#endif
#define EDGERNN_ZERO(g) int32_t t##g = 0;
#define EDGERNN_SCALE(g) *p##g += (float)t##g * (scales[g] * scale);

/* Adds scale * scales[g] * (w · a), for each gate, to the sums; `columns` is a multiple of 4. */
#define EDGERNN_DEFINE_INT8_PRODUCTS(count)                                              \
  static inline void edgernn_int8_products_##count(const int8_t* w, const int16_t* a,    \
                                                   int32_t columns, const float* scales, \
                                                   float scale, EDGERNN_SUMS_##count) {  \
    const int16_t* const end = a + columns;                                              \
    EDGERNN_GATES_##count(EDGERNN_ZERO) for (; a != end; a += 4, w += 4 * count){        \
        EDGERNN_LOAD_BLOCK EDGERNN_GATES_##count(                                        \
            EDGERNN_ADD_BYTES)} EDGERNN_GATES_##count(EDGERNN_SCALE)                     \
  }

EDGERNN_DEFINE_INT8_PRODUCTS(1)
EDGERNN_DEFINE_INT8_PRODUCTS(2)
EDGERNN_DEFINE_INT8_PRODUCTS(3)
EDGERNN_DEFINE_INT8_PRODUCTS(4)

/* Quantises a vector to integers of magnitude `largest` at most, in `to`, padded with zeros to a
 * multiple of 4. Returns the scale, by which the integers are to be multiplied. */
static inline float edgernn_quantise(const float* from, int32_t columns, float largest,
                                     int16_t* to) {
  uint32_t most = 0; /* the bits of magnitudes have the order of the floats */
  for (int32_t k = 0; k < columns; ++k) {
    const uint32_t magnitude = edgernn_bits(from[k]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  const float top = edgernn_from_bits(most);
  const int finite = edgernn_is_finite(top);
  const float factor = finite && top > 1e-30f ? largest / top : 0.0f;
  for (int32_t k = 0; k < ((columns + 3) & ~3); ++k) {
    const float value = finite && k < columns ? from[k] * factor + EDGERNN_ROUND : EDGERNN_ROUND;
    to[EDGERNN_PLACE(k)] = (int16_t)(edgernn_bits(value) - EDGERNN_ROUND_BITS);
  }
  return finite ? top / largest : edgernn_from_bits(0x7fc00000u);
}

/* The product of a row of int8 weights, without their scale, with a vector of floats. */
static inline float edgernn_float_product(const int8_t* w, const float* a, int32_t columns) {
  float sum = 0.0f;
  for (int32_t k = 0; k < columns; ++k) sum += (float)w[k] * a[k];
  return sum;
}

#endif /* EDGERNN_PRODUCTS_H_ */
