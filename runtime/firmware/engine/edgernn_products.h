/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a neuron's weights with a vector. A neuron has a row for each of one to four gates,
 * in blocks of four columns: [block][gate][4], then [column][gate] for the columns that are left.
 * Rows of int8 weights have blocks of their own, described below. */

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
#define EDGERNN_PAIRED 1
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
/* The same for a type of weights. */
#define EDGERNN_NAMED_1(EACH, name) EACH(0, name)
#define EDGERNN_NAMED_2(EACH, name) EDGERNN_NAMED_1(EACH, name) EACH(1, name)
#define EDGERNN_NAMED_3(EACH, name) EDGERNN_NAMED_2(EACH, name) EACH(2, name)
#define EDGERNN_NAMED_4(EACH, name) EDGERNN_NAMED_3(EACH, name) EACH(3, name)

#define EDGERNN_LOAD(g) float s##g = *p##g;
#define EDGERNN_STORE(g) *p##g = s##g;

/* A float, or the float whose upper half a bfloat16 is. */
static inline float edgernn_read_float(float a) { return a; }
static inline float edgernn_read_bfloat16(uint16_t a) {
  return edgernn_from_bits((uint32_t)a << 16);
}

#if defined(EDGERNN_HELIUM)
static inline float32x4_t edgernn_four_float(const float* w) { return vld1q_f32(w); }
static inline float32x4_t edgernn_four_bfloat16(const uint16_t* w) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vldrhq_u32(w), 16));
}
#define EDGERNN_VECTOR(g) float32x4_t v##g = vdupq_n_f32(0.0f);
#define EDGERNN_ADD_BLOCK(g, name) v##g = vfmaq_f32(v##g, edgernn_four_##name(w + 4 * g), four);
#define EDGERNN_ADD_LANES(g) s##g += (v##g[0] + v##g[1]) + (v##g[2] + v##g[3]);
#define EDGERNN_BLOCKS(count, name)                                                \
  EDGERNN_GATES_##count(EDGERNN_VECTOR) for (; a != end; a += 4, w += 4 * count) { \
    const float32x4_t four = vld1q_f32(a);                                         \
    EDGERNN_NAMED_##count(EDGERNN_ADD_BLOCK, name)                                 \
  }                                                                                \
  EDGERNN_GATES_##count(EDGERNN_ADD_LANES)
#else
#define EDGERNN_ADD_BLOCK(g, name)                \
  s##g += edgernn_read_##name(w[4 * g]) * a0;     \
  s##g += edgernn_read_##name(w[4 * g + 1]) * a1; \
  s##g += edgernn_read_##name(w[4 * g + 2]) * a2; \
  s##g += edgernn_read_##name(w[4 * g + 3]) * a3;
#define EDGERNN_BLOCKS(count, name)                         \
  for (; a != end; a += 4, w += 4 * count) {                \
    const float a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3]; \
    EDGERNN_NAMED_##count(EDGERNN_ADD_BLOCK, name)          \
  }
#endif
#define EDGERNN_ADD_COLUMN(g, name) s##g += edgernn_read_##name(w[g]) * a0;

/* Adds w · a, for each gate, to the sums. w (columns * count,), a (columns,). */
#define EDGERNN_DEFINE_PRODUCTS(name, type, count)                                              \
  static inline void edgernn_##name##_products_##count(const type* w, const float* a,           \
                                                       int32_t columns, EDGERNN_SUMS_##count) { \
    const float* const end = a + (columns & ~3);                                                \
    const float* const last = a + columns;                                                      \
    EDGERNN_GATES_##count(EDGERNN_LOAD)                                                         \
        EDGERNN_BLOCKS(count, name) for (; a != last; ++a, w += count) {                        \
      const float a0 = *a;                                                                      \
      EDGERNN_NAMED_##count(EDGERNN_ADD_COLUMN, name)                                           \
    }                                                                                           \
    EDGERNN_GATES_##count(EDGERNN_STORE)                                                        \
  }

/* y = W x + bias, if there is one, for W (outputs, columns). The first `grouped` outputs, a
 * multiple of 4, have their rows in groups of four, as four gates have. */
#define EDGERNN_DEFINE_LINEAR(name, type)                                                       \
  EDGERNN_DEFINE_PRODUCTS(name, type, 1)                                                        \
  EDGERNN_DEFINE_PRODUCTS(name, type, 2)                                                        \
  EDGERNN_DEFINE_PRODUCTS(name, type, 3)                                                        \
  EDGERNN_DEFINE_PRODUCTS(name, type, 4)                                                        \
  static inline void edgernn_##name##_linear(const type* w, const float* bias, int32_t grouped, \
                                             int32_t outputs, int32_t columns, const float* x,  \
                                             float* y) {                                        \
    int32_t i = 0;                                                                              \
    for (; i < outputs; ++i) y[i] = bias ? bias[i] : 0.0f;                                      \
    for (i = 0; i < grouped; i += 4, w += 4 * columns) {                                        \
      edgernn_##name##_products_4(w, x, columns, y + i, y + i + 1, y + i + 2, y + i + 3);       \
    }                                                                                           \
    for (; i < outputs; ++i, w += columns) edgernn_##name##_products_1(w, x, columns, y + i);   \
  }

EDGERNN_DEFINE_LINEAR(float, float)
EDGERNN_DEFINE_LINEAR(bfloat16, uint16_t)

#if defined(__GNUC__)
#define EDGERNN_INLINE static inline __attribute__((always_inline))
#define EDGERNN_APART static __attribute__((noinline, unused))
#else
#define EDGERNN_INLINE static inline
#define EDGERNN_APART static inline
#endif

/* A vector that is quantised to 16-bit integers, padded with zeros to a multiple of four. */
typedef struct EdgernnQuantised {
  const int16_t* numbers;
  int32_t columns; /* with the padding */
  uint32_t offset; /* 128 times the sum of the numbers */
  float scale;     /* by which they are to be multiplied */
} EdgernnQuantised;

/* Products of one to four rows of int8 weights with such a vector. Two rows are a pair, whose bytes
 * alternate: w0 + 128, which has no sign, and w1. As a 16-bit word, both are w0 + 128 + 256 w1, so
 * a processor that multiplies pairs of words unpacks w1 alone: the product of the words less 256
 * times that of w1 is that of w0 + 128. A block has four columns: two of each pair, the next two of
 * each pair, and the bytes of a row without a partner, in the places 0, 2, 1, 3.
 *
 * The sums are whole numbers below 2^31, computed modulo 2^32, so they do not depend on the
 * processor. */
typedef struct EdgernnPair {
  uint32_t low; /* product of w0 + 128 */
  int32_t high; /* product of w1 */
} EdgernnPair;

static inline void edgernn_store_pair(EdgernnPair pair, uint32_t offset, int32_t* sums) {
#if defined(EDGERNN_HELIUM) || defined(EDGERNN_PAIRED)
  pair.low -= (uint32_t)pair.high << 8; /* it is that of the words */
#endif
  sums[0] = (int32_t)(pair.low - offset);
  sums[1] = pair.high;
}

#if defined(EDGERNN_HELIUM)
static inline void edgernn_add_vector(int8x16_t bytes, int16x8_t numbers, EdgernnPair* pair) {
  const int16x8_t words = vreinterpretq_s16_s8(bytes);
  pair->low = (uint32_t)vmladavaq_s16((int32_t)pair->low, words, numbers);
  pair->high = vmladavaq_s16(pair->high, vmovltq_s8(bytes), numbers);
}

EDGERNN_APART void edgernn_int8_fours(const int8_t* w, const EdgernnQuantised* x, int32_t* sums,
                                      const int32_t* end) {
  const uint32x4_t places = {0, 0, 1, 1};
  const uint16x8_t mask = {0xffff, 0xffff, 0, 0, 0xffff, 0xffff, 0, 0};
  const int32_t* const twos = (const int32_t*)(const void*)x->numbers;
  const int16x8_t four = vreinterpretq_s16_s32(vldrwq_gather_shifted_offset_s32(twos, places));
  const int16x8_t of_first = vandq_s16(four, vreinterpretq_s16_u16(mask));
  const int16x8_t of_second = vbicq_s16(four, vreinterpretq_s16_u16(mask));
  const int16_t* const numbers = x->numbers + (x->columns & 4);
  const int32_t eights = x->columns >> 3;
  const uint32_t offset = x->offset;
  for (; sums != end; sums += 4) {
    EdgernnPair first = {0, 0}, second = {0, 0};
    if (x->columns & 4) { /* two columns of the first pair, of the second one, and the same again */
      const int8x16_t bytes = vldrbq_s8(w);
      edgernn_add_vector(bytes, of_first, &first);
      edgernn_add_vector(bytes, of_second, &second);
      w += 16;
    }
    const int16_t* a = numbers;
    for (int32_t left = eights; left > 0; --left, a += 8, w += 32) {
      const int16x8_t eight = vldrhq_s16(a);
      const uint32x4x2_t words = vld2q_u32((const uint32_t*)(const void*)w);
      edgernn_add_vector(vreinterpretq_s8_u32(words.val[0]), eight, &first);
      edgernn_add_vector(vreinterpretq_s8_u32(words.val[1]), eight, &second);
    }
    edgernn_store_pair(first, offset, sums);
    edgernn_store_pair(second, offset, sums + 2);
  }
}

EDGERNN_INLINE void edgernn_int8_few(const int8_t* w, const EdgernnQuantised* x, int32_t count,
                                     int32_t* sums) {
  EdgernnPair pair = {0, 0};
  int32_t last = 0;
  const uint32_t n = (uint32_t)count;
  const uint16_t m = (uint16_t)(4 * count);
  const uint32x4_t words = {0, 1, n, n + 1};
  const uint16x8_t bytes = {0, 2, 1, 3, m, (uint16_t)(m + 2), (uint16_t)(m + 1), (uint16_t)(m + 3)};
  const int16_t* a = x->numbers;
  for (int32_t left = x->columns; left > 0; left -= 8, a += 8, w += 8 * count) {
    const mve_pred16_t lanes = vctp16q((uint32_t)left);
    const int16x8_t numbers = vldrhq_z_s16(a, lanes);
    if (count > 1) {
      const int32_t* const v = (const int32_t*)(const void*)w;
      const int32x4_t pairs = vldrwq_gather_shifted_offset_z_s32(v, words, lanes);
      edgernn_add_vector(vreinterpretq_s8_s32(pairs), numbers, &pair);
    }
    if (count & 1) {
      const int8_t* const row = w + 4 * (count - 1);
      last = vmladavaq_s16(last, vldrbq_gather_offset_z_s16(row, bytes, lanes), numbers);
    }
  }
  if (count > 1) edgernn_store_pair(pair, x->offset, sums);
  if (count & 1) sums[count - 1] = last;
}
#else
#if defined(EDGERNN_PAIRED)
/* Two words of four 16-bit numbers or eight bytes, aligned to 4 bytes. */
typedef int32_t EdgernnWord __attribute__((may_alias));
typedef struct EdgernnNumbers {
  int32_t first, second;
} __attribute__((may_alias)) EdgernnNumbers;

/* Loads two words by one instruction. Assembly keeps the order of the code, as GCC would unpack all
 * bytes before the first product, which takes more registers than there are. */
static inline EdgernnNumbers edgernn_numbers(const int16_t* from) {
  EdgernnNumbers result;
  __asm__ volatile("ldrd %0, %1, %2"
                   : "=&r"(result.first), "=r"(result.second)
                   : "o"(*(const EdgernnNumbers*)(const void*)from));
  return result;
}

/* Adds the products of two columns of a pair, in register w, with the numbers in register a. */
#define EDGERNN_ADD_WORD(pair, w, a)               \
  "smlad %[low" pair "], " w ", " a ", %[low" pair \
  "]\n\t"                                          \
  "sxtb16 " w ", " w                               \
  ", ror #8\n\t"                                   \
  "smlad %[high" pair "], " w ", " a ", %[high" pair "]\n\t"

static inline void edgernn_add_pair(const int8_t* w, EdgernnNumbers a, EdgernnPair* pair) {
  int32_t first, second;
  __asm__ volatile(
      "ldrd %[first], %[second], %[w]\n\t" EDGERNN_ADD_WORD("", "%[first]", "%[a]")
          EDGERNN_ADD_WORD("", "%[second]", "%[b]")
      :
      [low] "+&r"(pair->low), [high] "+&r"(pair->high), [first] "=&r"(first), [second] "=&r"(second)
      : [w] "o"(*(const EdgernnNumbers*)(const void*)w), [a] "r"(a.first), [b] "r"(a.second));
}

static inline void edgernn_add_row(const int8_t* w, EdgernnNumbers a, uint32_t* sum) {
  int32_t word, odd;
  __asm__ volatile(
      "ldr %[word], %[w]\n\t"
      "sxtb16 %[odd], %[word], ror #8\n\t"
      "sxtb16 %[word], %[word]\n\t"
      "smlad %[sum], %[word], %[a], %[sum]\n\t"
      "smlad %[sum], %[odd], %[b], %[sum]"
      : [sum] "+&r"(*sum), [word] "=&r"(word), [odd] "=&r"(odd)
      : [w] "m"(*(const EdgernnWord*)(const void*)w), [a] "r"(a.first), [b] "r"(a.second));
}

/* Adds the products of several blocks at a time, until a is `end`. */
#define EDGERNN_ADD_BLOCKS(several, end)                                                         \
  while (a != end) {                                                                             \
    __asm__ volatile(                                                                            \
        ".rept " several                                                                         \
        "\n\tldrd r0, r1, [%[a]], #8\n\tldmia %[w]!, {r2, r3, r4, r5}\n\t" EDGERNN_ADD_WORD(     \
            "0", "r2", "r0") EDGERNN_ADD_WORD("1", "r3", "r0") EDGERNN_ADD_WORD("0", "r4", "r1") \
            EDGERNN_ADD_WORD("1", "r5", "r1") ".endr"                                            \
        : [a] "+r"(a), [w] "+r"(w), [low0] "+r"(first.low), [high0] "+r"(first.high),            \
          [low1] "+r"(second.low), [high1] "+r"(second.high)                                     \
        :                                                                                        \
        : "r0", "r1", "r2", "r3", "r4", "r5", "memory");                                         \
  }
#else
typedef struct EdgernnNumbers {
  int32_t numbers[4];
} EdgernnNumbers;

static inline EdgernnNumbers edgernn_numbers(const int16_t* from) {
  const EdgernnNumbers result = {{from[0], from[1], from[2], from[3]}};
  return result;
}

/* Adds the products of a pair; `second` has the bytes of the third and fourth column. */
static inline void edgernn_add_bytes(const int8_t* w, const int8_t* second, EdgernnNumbers a,
                                     EdgernnPair* pair) {
  const int32_t* const n = a.numbers;
  pair->low += (uint32_t)(n[0] * (uint8_t)w[0] + n[1] * (uint8_t)w[2]);
  pair->low += (uint32_t)(n[2] * (uint8_t)second[0] + n[3] * (uint8_t)second[2]);
  pair->high += n[0] * w[1] + n[1] * w[3] + n[2] * second[1] + n[3] * second[3];
}

static inline void edgernn_add_pair(const int8_t* w, EdgernnNumbers a, EdgernnPair* pair) {
  edgernn_add_bytes(w, w + 4, a, pair);
}

static inline void edgernn_add_row(const int8_t* w, EdgernnNumbers a, uint32_t* sum) {
  const int32_t* const n = a.numbers;
  *sum += (uint32_t)(n[0] * w[0] + n[1] * w[2] + n[2] * w[1] + n[3] * w[3]);
}

#define EDGERNN_ADD_BLOCKS(several, end)                \
  for (; a != end; a += 4, w += 16) {                   \
    const EdgernnNumbers numbers = edgernn_numbers(a);  \
    edgernn_add_bytes(w, w + 8, numbers, &first);       \
    edgernn_add_bytes(w + 4, w + 12, numbers, &second); \
  }
#endif

EDGERNN_APART void edgernn_int8_fours(const int8_t* w, const EdgernnQuantised* x, int32_t* sums,
                                      const int32_t* end) {
  const int16_t* const whole = x->numbers + (x->columns & ~31);
  const int16_t* const last = x->numbers + x->columns;
  const uint32_t offset = x->offset;
  for (; sums != end; sums += 4) {
    EdgernnPair first = {0, 0}, second = {0, 0};
    const int16_t* a = x->numbers;
    EDGERNN_ADD_BLOCKS("8", whole)
    EDGERNN_ADD_BLOCKS("1", last)
    edgernn_store_pair(first, offset, sums);
    edgernn_store_pair(second, offset, sums + 2);
  }
}

EDGERNN_INLINE void edgernn_int8_few(const int8_t* w, const EdgernnQuantised* x, int32_t count,
                                     int32_t* sums) {
  EdgernnPair pair = {0, 0};
  uint32_t last = 0;
  for (int32_t k = 0; k < x->columns; k += 4, w += 4 * count) {
    const EdgernnNumbers numbers = edgernn_numbers(x->numbers + k);
    if (count > 1) edgernn_add_pair(w, numbers, &pair);
    if (count & 1) edgernn_add_row(w + 4 * (count - 1), numbers, &last);
  }
  if (count > 1) edgernn_store_pair(pair, x->offset, sums);
  if (count & 1) sums[count - 1] = (int32_t)last;
}
#endif

/* For one to four rows. */
static inline void edgernn_int8_sums_1(const int8_t* w, const EdgernnQuantised* x, int32_t* sums) {
  edgernn_int8_few(w, x, 1, sums);
}
static inline void edgernn_int8_sums_2(const int8_t* w, const EdgernnQuantised* x, int32_t* sums) {
  edgernn_int8_few(w, x, 2, sums);
}
static inline void edgernn_int8_sums_3(const int8_t* w, const EdgernnQuantised* x, int32_t* sums) {
  edgernn_int8_few(w, x, 3, sums);
}
static inline void edgernn_int8_sums_4(const int8_t* w, const EdgernnQuantised* x, int32_t* sums) {
  edgernn_int8_fours(w, x, sums, sums + 4);
}

/* Adds a product, whose row has a scale. */
static inline float edgernn_add_sum(float to, const int32_t* sum, const float* scale,
                                    const EdgernnQuantised* x) {
  return to + (float)*sum * (*scale * x->scale);
}

/* The same for neighbouring neurons: four on a processor with vectors, else one. Of floats in
 * memory, `count` are there. */
#if defined(EDGERNN_HELIUM)
typedef float32x4_t EdgernnLanes;
#define EDGERNN_LANES 4
static inline EdgernnLanes edgernn_load_lanes(const float* from, int32_t count) {
  return vldrwq_z_f32(from, vctp32q((uint32_t)count));
}
static inline void edgernn_store_lanes(float* to, EdgernnLanes a, int32_t count) {
  vstrwq_p_f32(to, a, vctp32q((uint32_t)count));
}
static inline EdgernnLanes edgernn_all_lanes(const float* from) { return vld1q_f32(from); }
static inline EdgernnLanes edgernn_same_lanes(float a) { return vdupq_n_f32(a); }
static inline EdgernnLanes edgernn_lanes_add_sum(EdgernnLanes to, const int32_t* sums,
                                                 const float* scales, const EdgernnQuantised* x) {
  const float32x4_t scale = vmulq_n_f32(vld1q_f32(scales), x->scale);
  return vfmaq_f32(to, vcvtq_f32_s32(vld1q_s32(sums)), scale);
}

/* a, limited to [-most, most]; NaN stays NaN. */
static inline EdgernnLanes edgernn_lanes_clamp(EdgernnLanes a, float most) {
  const EdgernnLanes capped = vpselq_f32(vdupq_n_f32(most), a, vcmpgtq_n_f32(a, most));
  return vpselq_f32(vdupq_n_f32(-most), capped, vcmpltq_n_f32(capped, -most));
}

/* As edgernn_split_exp. */
static inline EdgernnLanes edgernn_lanes_split_exp(EdgernnLanes a, EdgernnLanes* scale) {
  const EdgernnLanes shifted = vfmasq_n_f32(a, vdupq_n_f32(1.44269504088896341f), EDGERNN_ROUND);
  const EdgernnLanes r =
      vfmaq_n_f32(a, vsubq_n_f32(shifted, EDGERNN_ROUND), -0.693147180559945309f);
  const uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
  *scale = vreinterpretq_f32_u32(vaddq_n_u32(power, 0x3f800000u));
  EdgernnLanes q = vfmasq_n_f32(r, vdupq_n_f32(0.00138888729f), 0.00836907607f);
  q = vfmasq_n_f32(q, r, 0.0416671373f);
  q = vfmasq_n_f32(q, r, 0.166665062f);
  q = vfmasq_n_f32(q, r, 0.49999997f);
  q = vfmasq_n_f32(q, r, 1.0f);
  return vmulq_f32(q, r);
}

static inline EdgernnLanes edgernn_lanes_sigmoid(EdgernnLanes a) {
  EdgernnLanes scale;
  const EdgernnLanes less_one =
      edgernn_lanes_split_exp(vnegq_f32(edgernn_lanes_clamp(a, 87.0f)), &scale);
  return 1.0f / vaddq_n_f32(vfmaq_f32(scale, scale, less_one), 1.0f);
}

static inline EdgernnLanes edgernn_lanes_tanh(EdgernnLanes a) {
  EdgernnLanes scale;
  const EdgernnLanes less_one = edgernn_lanes_split_exp(edgernn_lanes_clamp(a + a, 20.0f), &scale);
  const EdgernnLanes e = vfmaq_f32(vsubq_n_f32(scale, 1.0f), scale, less_one);
  return e / vaddq_n_f32(e, 2.0f);
}
#else
typedef float EdgernnLanes;
#define EDGERNN_LANES 1
#define edgernn_load_lanes(from, count) ((void)(count), *(from))
#define edgernn_store_lanes(to, a, count) ((void)(count), *(to) = (a))
#define edgernn_all_lanes(from) (*(from))
#define edgernn_same_lanes(a) (a)
#define edgernn_lanes_add_sum edgernn_add_sum
#define edgernn_lanes_sigmoid edgernn_sigmoid
#define edgernn_lanes_tanh edgernn_tanh
#endif

/* Quantises a vector to integers of magnitude `largest` at most, in `to`. */
static inline EdgernnQuantised edgernn_quantise(const float* from, int32_t columns, float largest,
                                                int16_t* to) {
  uint32_t most = 0; /* the bits of magnitudes have the order of the floats */
  int32_t sum = 0, k = 0;
#if defined(EDGERNN_HELIUM)
  uint32x4_t magnitudes = vdupq_n_u32(0);
  for (; k < columns; k += 4) {
    const uint32x4_t bits = vreinterpretq_u32_f32(edgernn_load_lanes(from + k, columns - k));
    magnitudes = vmaxq_u32(magnitudes, vshlq_n_u32(bits, 1));
  }
  most = vmaxvq_u32(0, magnitudes) >> 1;
#else
  for (; k < columns; ++k) {
    const uint32_t magnitude = edgernn_bits(from[k]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
#endif
  const float top = edgernn_from_bits(most);
  const int finite = edgernn_is_finite(top);
  const float factor = finite && top > 1e-30f ? largest / top : 0.0f;
  /* without a finite scale, the integers do not matter */
  k = 0;
#if defined(EDGERNN_HELIUM)
  for (; k < columns; k += 4) {
    const float32x4_t a = edgernn_load_lanes(from + k, columns - k);
    const float32x4_t rounded = vfmasq_n_f32(a, vdupq_n_f32(factor), EDGERNN_ROUND);
    const int32x4_t integers = vsubq_n_s32(vreinterpretq_s32_f32(rounded), EDGERNN_ROUND_BITS);
    sum = vaddvaq_s32(sum, integers);
    vstrhq_s32(to + k, integers);
  }
#else
  for (; k < columns; ++k) {
    to[k] = (int16_t)(edgernn_bits(from[k] * factor + EDGERNN_ROUND) - EDGERNN_ROUND_BITS);
    sum += to[k];
  }
  for (; k & 3; ++k) to[k] = 0;
#endif
  const float scale = finite ? top / largest : edgernn_from_bits(0x7fc00000u);
  const EdgernnQuantised result = {to, k, (uint32_t)sum << 7, scale};
  return result;
}

/* The product of a row of int8 weights, without their scale, with a vector of floats. */
static inline float edgernn_float_product(const int8_t* w, const float* a, int32_t columns) {
  float sum = 0.0f;
  for (int32_t k = 0; k < columns; ++k) sum += (float)w[k] * a[k];
  return sum;
}

/* y = W x + bias for few rows of int8 weights, which are not padded. */
static inline void edgernn_int8_rows(const int8_t* w, const float* scales, const float* bias,
                                     int32_t outputs, int32_t columns, const float* x, float* y) {
  for (int32_t i = 0; i < outputs; ++i, w += columns) {
    const float product = scales[i] * edgernn_float_product(w, x, columns);
    y[i] = bias ? bias[i] + product : product;
  }
}

/* y = W x + bias for int8 weights, with rows in groups of four as above, and x quantised to
 * integers of magnitude `largest` at most. */
static inline void edgernn_int8_linear(const int8_t* w, const float* scales, const float* bias,
                                       int32_t grouped, int32_t outputs, int32_t columns,
                                       float largest, const float* x, int16_t* quantised,
                                       float* y) {
  const EdgernnQuantised input = edgernn_quantise(x, columns, largest, quantised);
  int32_t sums[4];
  for (int32_t i = 0; i < outputs; ++i) {
    const int32_t place = i < grouped ? i & 3 : 0;
    if (i >= grouped) {
      edgernn_int8_sums_1(w, &input, sums);
      w += input.columns;
    } else if (place == 0) {
      edgernn_int8_fours(w, &input, sums, sums + 4);
      w += 4 * input.columns;
    }
    y[i] = edgernn_add_sum(bias ? bias[i] : 0.0f, sums + place, scales + i, &input);
  }
}

#endif /* EDGERNN_PRODUCTS_H_ */
