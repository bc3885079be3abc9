/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a matrix with a vector that read only the columns of the values that moved. The sums
 * are kept from step to step. A matrix is stored one column after another. */

#ifndef EDGERNN_COLUMNS_H_
#define EDGERNN_COLUMNS_H_

#include <stdint.h>

#include "edgernn_products.h" /* EDGERNN_HELIUM */

#if defined(__GNUC__)
#define EDGERNN_UNROLLED _Pragma("GCC unroll 4")
#else
#define EDGERNN_UNROLLED
#endif

/* Some rows of a matrix, from `row` on, and the first of the sums that they are added to. */
typedef struct EdgernnRows {
  int32_t row, sum, count;
} EdgernnRows;

/* A column and the change of its value. */
typedef struct EdgernnMove {
  int32_t column;
  float change;
} EdgernnMove;

#define EDGERNN_EACH_1(DO) DO(0)
#define EDGERNN_EACH_4(DO) DO(0) DO(1) DO(2) DO(3)
#define EDGERNN_PLUS_1(OF) OF(0)
#define EDGERNN_PLUS_4(OF) (OF(0) + OF(1) + OF(2) + OF(3))

/* int8 weights have a scale for each row. */
#define EDGERNN_FLOAT_SCALES
#define EDGERNN_FLOAT_SCALED(sum) sum
#define EDGERNN_INT8_SCALES const float* scale = matrix->scales + part.row;
#define EDGERNN_INT8_SCALED(sum) *scale++*(sum)

#define EDGERNN_FLOAT_COLUMN(i)       \
  const float c##i = moves[i].change; \
  const float* w##i = matrix->weights + moves[i].column * matrix->rows + part.row;
#define EDGERNN_INT8_COLUMN(i)        \
  const float c##i = moves[i].change; \
  const int8_t* w##i = matrix->weights + moves[i].column * matrix->rows + part.row;
#define EDGERNN_BFLOAT16_SCALES
#define EDGERNN_BFLOAT16_SCALED(sum) sum
#define EDGERNN_BFLOAT16_COLUMN(i)    \
  const float c##i = moves[i].change; \
  const uint16_t* w##i = matrix->weights + moves[i].column * matrix->rows + part.row;
#define EDGERNN_BFLOAT16_PRODUCT(i) c##i* edgernn_read_bfloat16(*w##i++)
#define EDGERNN_FLOAT_PRODUCT(i) c##i** w##i++
#define EDGERNN_INT8_PRODUCT(i) c##i*(float)*w##i++

/* Adds four rows at a time. */
#if defined(EDGERNN_HELIUM)
#define EDGERNN_FLOAT_ROWS(i)                      \
  four = vfmaq_n_f32(four, vld1q_f32(w##i), c##i); \
  w##i += 4;
#define EDGERNN_INT8_ROWS(i)                                           \
  change = vfmaq_n_f32(change, vcvtq_f32_s32(vldrbq_s32(w##i)), c##i); \
  w##i += 4;
#define EDGERNN_BFLOAT16_ROWS(i)                               \
  four = vfmaq_n_f32(four, edgernn_four_bfloat16(w##i), c##i); \
  w##i += 4;
#define EDGERNN_BFLOAT16_FOUR(number) \
  float32x4_t four = vld1q_f32(sum);  \
  EDGERNN_EACH_##number(EDGERNN_BFLOAT16_ROWS) vst1q_f32(sum, four);
#define EDGERNN_FLOAT_FOUR(number)   \
  float32x4_t four = vld1q_f32(sum); \
  EDGERNN_EACH_##number(EDGERNN_FLOAT_ROWS) vst1q_f32(sum, four);
#define EDGERNN_INT8_FOUR(number)                                          \
  float32x4_t change = vdupq_n_f32(0.0f);                                  \
  EDGERNN_EACH_##number(EDGERNN_INT8_ROWS)                                 \
      vst1q_f32(sum, vfmaq_f32(vld1q_f32(sum), change, vld1q_f32(scale))); \
  scale += 4;
#define EDGERNN_FOURS(KIND, number)  \
  for (; end - sum >= 4; sum += 4) { \
    EDGERNN_##KIND##_FOUR(number)    \
  }
#else
#define EDGERNN_FOURS(KIND, number)
#endif

/* Adds one column, or four of them, to the sums. */
#define EDGERNN_DEFINE_ADD(name, number, Matrix, KIND)                                      \
  static inline void name##_##number(const Matrix* matrix, const EdgernnMove* moves,        \
                                     float* sums) {                                         \
    for (int32_t i = 0; i < matrix->parts; ++i) {                                           \
      const EdgernnRows part = matrix->part[i];                                             \
      float* sum = sums + part.sum;                                                         \
      const float* const end = sum + part.count;                                            \
      EDGERNN_EACH_##number(EDGERNN_##KIND##_COLUMN) EDGERNN_##KIND##_SCALES EDGERNN_FOURS( \
          KIND, number) EDGERNN_UNROLLED for (; sum != end; ++sum) {                        \
        *sum += EDGERNN_##KIND##_SCALED(EDGERNN_PLUS_##number(EDGERNN_##KIND##_PRODUCT));   \
      }                                                                                     \
    }                                                                                       \
  }

/* Defines a type of matrix and three functions:
 *
 * name_add adds the columns of `count` moves to the sums.
 *
 * name_send compares a vector with the values that were sent last. It sends those that moved by
 * more than theta, adds their columns to the sums, and returns their number. If `anew` is set, or a
 * value moves by more than `largest`, which sets it, the caller computes the sums anew.
 *
 * name_sum adds the product with all sent values. */
#define EDGERNN_DEFINE_COLUMNS(name, Matrix, type, KIND)                                       \
  typedef struct Matrix {                                                                      \
    const type* weights; /* (columns, rows) */                                                 \
    const float* scales; /* (rows,) of int8 weights */                                         \
    int32_t columns, rows, parts;                                                              \
    const EdgernnRows* part;                                                                   \
  } Matrix;                                                                                    \
  EDGERNN_DEFINE_ADD(name, 1, Matrix, KIND)                                                    \
  EDGERNN_DEFINE_ADD(name, 4, Matrix, KIND)                                                    \
  static inline void name##_add(const Matrix* matrix, const EdgernnMove* moves, int32_t count, \
                                float* sums) {                                                 \
    if (count == 4) {                                                                          \
      name##_4(matrix, moves, sums);                                                           \
    } else {                                                                                   \
      for (int32_t i = 0; i < count; ++i) name##_1(matrix, moves + i, sums);                   \
    }                                                                                          \
  }                                                                                            \
  static inline int32_t name##_send(const Matrix* matrix, const float* a, float theta,         \
                                    float largest, float* sent, float* sums, int* anew) {      \
    EdgernnMove moves[4];                                                                      \
    int32_t waiting = 0, count = 0;                                                            \
    for (int32_t k = 0; k < matrix->columns; ++k) {                                            \
      const float change = a[k] - sent[k], size = edgernn_abs(change);                         \
      if (!(size > theta)) continue;                                                           \
      ++count;                                                                                 \
      sent[k] = a[k];                                                                          \
      if (!(size <= largest)) *anew = 1;                                                       \
      if (*anew) continue;                                                                     \
      moves[waiting].column = k;                                                               \
      moves[waiting].change = change;                                                          \
      if (++waiting == 4) {                                                                    \
        name##_add(matrix, moves, 4, sums);                                                    \
        waiting = 0;                                                                           \
      }                                                                                        \
    }                                                                                          \
    if (!*anew) name##_add(matrix, moves, waiting, sums);                                      \
    return count;                                                                              \
  }                                                                                            \
  static inline void name##_sum(const Matrix* matrix, const float* sent, float* sums) {        \
    EdgernnMove moves[4];                                                                      \
    for (int32_t k = 0; k < matrix->columns; k += 4) {                                         \
      const int32_t left = matrix->columns - k, count = left < 4 ? left : 4;                   \
      for (int32_t i = 0; i < count; ++i) {                                                    \
        moves[i].column = k + i;                                                               \
        moves[i].change = sent[k + i];                                                         \
      }                                                                                        \
      name##_add(matrix, moves, count, sums);                                                  \
    }                                                                                          \
  }

EDGERNN_DEFINE_COLUMNS(edgernn_float_columns, EdgernnFloatColumns, float, FLOAT)
EDGERNN_DEFINE_COLUMNS(edgernn_bfloat16_columns, EdgernnBfloat16Columns, uint16_t, BFLOAT16)
EDGERNN_DEFINE_COLUMNS(edgernn_int8_columns, EdgernnInt8Columns, int8_t, INT8)

#endif /* EDGERNN_COLUMNS_H_ */
