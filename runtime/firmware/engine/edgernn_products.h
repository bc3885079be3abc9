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
/* What assembly with a predicate says that it changes; clang has no name for it. */
#if defined(__clang__)
#define EDGERNN_PREDICATE "cc"
#else
#define EDGERNN_PREDICATE "p0"
#endif
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

/* The sum of the first row of a pair. */
static inline int32_t edgernn_low_sum(EdgernnPair pair) {
#if defined(EDGERNN_HELIUM) || defined(EDGERNN_PAIRED)
  pair.low -= (uint32_t)pair.high << 8; /* it is that of the words */
#endif
  return (int32_t)pair.low;
}

static inline void edgernn_store_pair(EdgernnPair pair, int32_t* sums) {
  sums[0] = edgernn_low_sum(pair);
  sums[1] = pair.high;
}

#if defined(EDGERNN_HELIUM)
static inline void edgernn_add_vector(int8x16_t bytes, int16x8_t numbers, EdgernnPair* pair) {
  const int16x8_t words = vreinterpretq_s16_s8(bytes);
  pair->low = (uint32_t)vmladavaq_s16((int32_t)pair->low, words, numbers);
  pair->high = vmladavaq_s16(pair->high, vmovltq_s8(bytes), numbers);
}

/* Adds the products of several times eight columns. Assembly, as GCC would not unroll the loop. */
#define EDGERNN_ADD_EIGHTS(several, times)                                                         \
  for (int32_t left = times; left > 0; --left) {                                                   \
    __asm__ volatile(                                                                              \
        ".rept " #several                                                                          \
        "\n\tvld20.32 {q0, q1}, [%[w]]\n\tvld21.32 {q0, q1}, [%[w]]!\n\tvldrh.u16 q2, [%[a]], #16" \
        "\n\tvmovlt.s8 q3, q0\n\tvmlava.s16 %[low0], q0, q2\n\tvmlava.s16 %[high0], q3, q2"        \
        "\n\tvmovlt.s8 q3, q1\n\tvmlava.s16 %[low1], q1, q2\n\tvmlava.s16 %[high1], q3, q2"        \
        "\n\t.endr"                                                                                \
        : [a] "+r"(a), [w] "+r"(w), [low0] "+Te"(first.low), [high0] "+Te"(first.high),            \
          [low1] "+Te"(second.low), [high1] "+Te"(second.high)                                     \
        :                                                                                          \
        : "q0", "q1", "q2", "q3", "memory");                                                       \
  }

/* Adds the products of four rows to those of their pairs. Returns the next group's weights. */
EDGERNN_INLINE const int8_t* edgernn_add_group(const int8_t* w, const EdgernnQuantised* x,
                                               EdgernnPair* pair0, EdgernnPair* pair1) {
  const int32_t columns = x->columns;
  const int16_t* a = x->numbers;
  EdgernnPair first = *pair0, second = *pair1;
  EDGERNN_ADD_EIGHTS(4, columns >> 5)
  EDGERNN_ADD_EIGHTS(1, (columns >> 3) & 3)
  if (columns & 4) { /* two columns of the first pair, of the second one, and the same again */
    const uint32x4_t places = {0, 0, 1, 1};
    const uint16x8_t mask = {0xffff, 0xffff, 0, 0, 0xffff, 0xffff, 0, 0};
    const int32_t* const twos = (const int32_t*)(const void*)a;
    const int16x8_t four = vreinterpretq_s16_s32(vldrwq_gather_shifted_offset_s32(twos, places));
    const int8x16_t bytes = vldrbq_s8(w);
    edgernn_add_vector(bytes, vandq_s16(four, vreinterpretq_s16_u16(mask)), &first);
    edgernn_add_vector(bytes, vbicq_s16(four, vreinterpretq_s16_u16(mask)), &second);
    w += 16;
  }
  *pair0 = first;
  *pair1 = second;
  return w;
}

EDGERNN_INLINE void edgernn_int8_few(const int8_t* w, const EdgernnQuantised* x, int32_t count,
                                     int32_t* sums) {
  EdgernnPair pair = {0 - x->offset, 0};
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
  if (count > 1) edgernn_store_pair(pair, sums);
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

/* Adds the products of several blocks at a time. */
#define EDGERNN_ADD_BLOCKS(several, times)                                                       \
  for (int32_t left = times; left > 0; --left) {                                                 \
    __asm__ volatile(                                                                            \
        ".rept " #several                                                                        \
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

#define EDGERNN_ADD_BLOCKS(several, times)                                    \
  for (int32_t left = several * (times); left > 0; --left, a += 4, w += 16) { \
    const EdgernnNumbers numbers = edgernn_numbers(a);                        \
    edgernn_add_bytes(w, w + 8, numbers, &first);                             \
    edgernn_add_bytes(w + 4, w + 12, numbers, &second);                       \
  }
#endif

EDGERNN_INLINE const int8_t* edgernn_add_group(const int8_t* w, const EdgernnQuantised* x,
                                               EdgernnPair* pair0, EdgernnPair* pair1) {
  const int32_t columns = x->columns;
  const int16_t* a = x->numbers;
  EdgernnPair first = *pair0, second = *pair1;
  EDGERNN_ADD_BLOCKS(8, columns >> 5)
  EDGERNN_ADD_BLOCKS(1, (columns >> 2) & 7)
  *pair0 = first;
  *pair1 = second;
  return w;
}

EDGERNN_INLINE void edgernn_int8_few(const int8_t* w, const EdgernnQuantised* x, int32_t count,
                                     int32_t* sums) {
  EdgernnPair pair = {0 - x->offset, 0};
  uint32_t last = 0;
  for (int32_t k = 0; k < x->columns; k += 4, w += 4 * count) {
    const EdgernnNumbers numbers = edgernn_numbers(x->numbers + k);
    if (count > 1) edgernn_add_pair(w, numbers, &pair);
    if (count & 1) edgernn_add_row(w + 4 * (count - 1), numbers, &last);
  }
  if (count > 1) edgernn_store_pair(pair, sums);
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
/* A call, as the assembly takes almost all registers. */
EDGERNN_APART void edgernn_int8_sums_4(const int8_t* w, const EdgernnQuantised* x, int32_t* sums) {
  EdgernnPair first = {0 - x->offset, 0}, second = first;
  edgernn_add_group(w, x, &first, &second);
  edgernn_store_pair(first, sums);
  edgernn_store_pair(second, sums + 2);
}

/* Adds a product, whose row has a scale. */
static inline float edgernn_add_sum(float to, const int32_t* sum, const float* scale,
                                    const EdgernnQuantised* x) {
  return to + (float)*sum * (*scale * x->scale);
}

/* to = from + sums of products, times the scales of their rows and of x, for four rows. */
EDGERNN_INLINE void edgernn_add_sums(EdgernnPair first, EdgernnPair second, const float* scales,
                                     float scale, const float* from, float* to) {
  const int32_t low0 = edgernn_low_sum(first), low1 = edgernn_low_sum(second);
#if defined(EDGERNN_HELIUM)
  int32x4_t sums; /* GCC would gather them in memory */
  __asm__("vmov %q0[2], %q0[0], %1, %3\n\tvmov %q0[3], %q0[1], %2, %4"
          : "=&w"(sums)
          : "r"(low0), "r"(first.high), "r"(low1), "r"(second.high));
  const float32x4_t product = vmulq_n_f32(vld1q_f32(scales), scale);
  vst1q_f32(to, vfmaq_f32(vld1q_f32(from), vcvtq_f32_s32(sums), product));
#elif defined(EDGERNN_PAIRED) && defined(EDGERNN_FUSED)
  __asm__ volatile(
      "vmov s0, s1, %[low0], %[high0]\n\tvmov s2, s3, %[low1], %[high1]\n\t"
      "vldmia %[scales], {s4-s7}\n\tvldmia %[from], {s8-s11}\n\t"
      "vcvt.f32.s32 s0, s0\n\tvcvt.f32.s32 s1, s1\n\t"
      "vcvt.f32.s32 s2, s2\n\tvcvt.f32.s32 s3, s3\n\t"
      "vmul.f32 s4, s4, %[scale]\n\tvmul.f32 s5, s5, %[scale]\n\t"
      "vmul.f32 s6, s6, %[scale]\n\tvmul.f32 s7, s7, %[scale]\n\t"
      "vfma.f32 s8, s0, s4\n\tvfma.f32 s9, s1, s5\n\t"
      "vfma.f32 s10, s2, s6\n\tvfma.f32 s11, s3, s7\n\tvstmia %[to], {s8-s11}"
      :
      : [low0] "r"(low0), [high0] "r"(first.high), [low1] "r"(low1), [high1] "r"(second.high),
        [scales] "r"(scales), [from] "r"(from), [to] "r"(to), [scale] "t"(scale)
      : "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "memory");
#else
  to[0] = from[0] + (float)low0 * (scales[0] * scale);
  to[1] = from[1] + (float)first.high * (scales[1] * scale);
  to[2] = from[2] + (float)low1 * (scales[2] * scale);
  to[3] = from[3] + (float)second.high * (scales[3] * scale);
#endif
}

/* to = from + W x for groups of four rows, each with a scale. The numbers of neighbouring groups in
 * `from` and `to` are `step` apart. Returns the weights of the group after them. */
EDGERNN_APART const int8_t* edgernn_int8_groups(const int8_t* w, const EdgernnQuantised* x,
                                                int32_t groups, const float* scales,
                                                const float* from, float* to, int32_t step) {
  const EdgernnPair start = {0 - x->offset, 0};
  const float scale = x->scale;
  for (int32_t k = 0; groups > 0; --groups, scales += 4, k += step) {
    EdgernnPair first = start, second = start;
    w = edgernn_add_group(w, x, &first, &second);
    edgernn_add_sums(first, second, scales, scale, from + k, to + k);
  }
  return w;
}

/* Floats of neighbouring neurons: four on a processor with vectors, else one. Memory has `count`
 * of them. */
#if defined(EDGERNN_HELIUM)
typedef float32x4_t EdgernnLanes;
#define EDGERNN_LANES 4
/* Assembly, as GCC moves each predicate through other registers. */
static inline EdgernnLanes edgernn_load_lanes(const float* from, int32_t count) {
  EdgernnLanes result;
  __asm__("vctp.32 %2\n\tvpst\n\tvldrwt.u32 %q0, [%1]"
          : "=w"(result)
          : "r"(from), "r"(count), "m"(*(const float (*)[4])(const void*)from)
          : EDGERNN_PREDICATE);
  return result;
}
static inline void edgernn_store_lanes(float* to, EdgernnLanes a, int32_t count) {
  __asm__("vctp.32 %3\n\tvpst\n\tvstrwt.32 %q2, [%1]"
          : "+m"(*(float (*)[4])(void*)to)
          : "r"(to), "w"(a), "r"(count)
          : EDGERNN_PREDICATE);
}
static inline EdgernnLanes edgernn_all_lanes(const float* from) { return vld1q_f32(from); }
static inline EdgernnLanes edgernn_same_lanes(float a) { return vdupq_n_f32(a); }
/* to + w a for the weight of each neuron. */
static inline EdgernnLanes edgernn_lanes_add(EdgernnLanes to, const float* w, float a) {
  return vfmaq_n_f32(to, vld1q_f32(w), a);
}

/* a, limited to [-most, most]; NaN stays NaN. */
static inline EdgernnLanes edgernn_lanes_clamp(EdgernnLanes a, float most) {
  __asm__("vpt.f32 gt, %q0, %1\n\tvdupt.32 %q0, %1\n\tvpt.f32 lt, %q0, %2\n\tvdupt.32 %q0, %2"
          : "+w"(a)
          : "r"(most), "r"(-most)
          : EDGERNN_PREDICATE);
  return a;
}

/* Assembly, as GCC divides through other registers and memory. */
static inline EdgernnLanes edgernn_lanes_divide(EdgernnLanes a, EdgernnLanes b) {
  register EdgernnLanes to __asm__("q0") = a;
  register EdgernnLanes by __asm__("q1") = b;
  __asm__("vdiv.f32 s0, s0, s4\n\tvdiv.f32 s1, s1, s5\n\tvdiv.f32 s2, s2, s6\n\tvdiv.f32 s3, s3, s7"
          : "+w"(to)
          : "w"(by));
  return to;
}

/* As edgernn_split_exp. */
static inline EdgernnLanes edgernn_lanes_split_exp(EdgernnLanes a, EdgernnLanes* r,
                                                   EdgernnLanes* d) {
  const EdgernnLanes shifted = vaddq_n_f32(vmulq_n_f32(a, 1.44269504088896341f), EDGERNN_ROUND);
  *r = vfmaq_n_f32(a, vsubq_n_f32(shifted, EDGERNN_ROUND), -0.693147180559945309f);
  const EdgernnLanes square = vmulq_f32(*r, *r);
  *d = vmulq_f32(vaddq_n_f32(vmulq_n_f32(square, -0.0027660064f), 0.16666618f), square);
  const uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
  return vreinterpretq_f32_u32(vaddq_n_u32(power, 0x3f800000u));
}

static inline EdgernnLanes edgernn_lanes_sigmoid(EdgernnLanes a) {
  EdgernnLanes r, d;
  const EdgernnLanes scale = edgernn_lanes_split_exp(edgernn_lanes_clamp(a, 87.0f), &r, &d);
  const EdgernnLanes c = vaddq_n_f32(d, 2.0f), e = vmulq_f32(scale, vaddq_f32(c, r));
  return edgernn_lanes_divide(e, vaddq_f32(e, vsubq_f32(c, r)));
}

static inline EdgernnLanes edgernn_lanes_tanh(EdgernnLanes a) {
  EdgernnLanes r, d;
  const EdgernnLanes scale = edgernn_lanes_split_exp(edgernn_lanes_clamp(a + a, 20.0f), &r, &d);
  const EdgernnLanes less = vsubq_n_f32(scale, 1.0f), more = vaddq_n_f32(scale, 1.0f);
  return edgernn_lanes_divide(vfmaq_n_f32(vfmaq_f32(vmulq_f32(less, d), more, r), less, 2.0f),
                              vfmaq_n_f32(vfmaq_f32(vmulq_f32(more, d), less, r), more, 2.0f));
}
#else
typedef float EdgernnLanes;
#define EDGERNN_LANES 1
#define edgernn_load_lanes(from, count) ((void)(count), *(from))
#define edgernn_store_lanes(to, a, count) ((void)(count), *(to) = (a))
#define edgernn_all_lanes(from) (*(from))
#define edgernn_same_lanes(a) (a)
#define edgernn_lanes_add(to, w, a) ((to) + *(w) * (a))
#define edgernn_lanes_sigmoid edgernn_sigmoid
#define edgernn_lanes_tanh edgernn_tanh
#endif

/* Quantises a vector to integers of magnitude `largest` at most, in `to`. */
static inline EdgernnQuantised edgernn_quantise(const float* from, int32_t columns, float largest,
                                                int16_t* to) {
  uint32_t most = 0; /* the bits of magnitudes have the order of the floats */
  uint32_t sum = 0;
  int32_t k = 0;
#if defined(EDGERNN_HELIUM)
  uint32x4_t magnitudes = vdupq_n_u32(0);
  for (; k < columns; k += 4) {
    const uint32x4_t bits = vreinterpretq_u32_f32(edgernn_load_lanes(from + k, columns - k));
    magnitudes = vmaxq_u32(magnitudes, vshlq_n_u32(bits, 1));
  }
  most = vmaxvq_u32(0, magnitudes);
#else
  for (; k < columns; ++k) {
    const uint32_t magnitude = edgernn_bits(from[k]) << 1;
    most = magnitude > most ? magnitude : most;
  }
#endif
  const float top = edgernn_from_bits(most >> 1);
  const int finite = edgernn_is_finite(top);
  const float factor = finite && top > 1e-30f ? largest / top : 0.0f;
  /* without a finite scale, the integers do not matter */
  k = 0;
#if defined(EDGERNN_HELIUM)
  for (; k < columns; k += 4) {
    const float32x4_t a = edgernn_load_lanes(from + k, columns - k);
    const float32x4_t rounded = vfmasq_n_f32(a, vdupq_n_f32(factor), EDGERNN_ROUND);
    const uint32x4_t integers = vsubq_n_u32(vreinterpretq_u32_f32(rounded), EDGERNN_ROUND_BITS);
    sum = vaddvaq_u32(sum, integers);
    vstrhq_s32(to + k, vreinterpretq_s32_u32(integers));
  }
#else
  for (; k < columns; ++k) {
    const uint32_t bits = edgernn_bits(from[k] * factor + EDGERNN_ROUND);
    to[k] = (int16_t)bits; /* the lower half of EDGERNN_ROUND is 0 */
    sum += bits;
  }
  sum -= (uint32_t)columns * EDGERNN_ROUND_BITS;
  for (; k & 3; ++k) to[k] = 0;
#endif
  const float scale = finite ? top / largest : edgernn_from_bits(0x7fc00000u);
  const EdgernnQuantised result = {to, k, sum << 7, scale};
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
  int32_t i = 0;
  for (; i < outputs; ++i) y[i] = bias ? bias[i] : 0.0f;
  w = edgernn_int8_groups(w, &input, grouped / 4, scales, y, y, 4);
  for (i = grouped; i < outputs; ++i, w += input.columns) {
    int32_t sum;
    edgernn_int8_sums_1(w, &input, &sum);
    y[i] = edgernn_add_sum(y[i], &sum, scales + i, &input);
  }
}

#endif /* EDGERNN_PRODUCTS_H_ */
