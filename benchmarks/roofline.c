/* SPDX-License-Identifier: Apache-2.0 */
/* The processor's upper bounds, with registers of LANES floats: a shared library that roofline.py
 * compiles with LANES, PANEL and REMAINDER, and loads. */

#include <stdint.h>

typedef float Vec __attribute__((vector_size(4 * LANES), may_alias));

/* Computes one panel of y = R h, which is `width` registers high; returns the end of its weights.
 */
static inline __attribute__((always_inline)) const float* panel(int width, const float* packed,
                                                                int64_t columns, const float* h,
                                                                float* y) {
  Vec sums[PANEL] = {{0}};
  for (int64_t k = 0; k < columns; ++k, packed += width * LANES) {
    const Vec value = h[k] - (Vec){0};
    for (int i = 0; i < width; ++i) sums[i] += value * ((const Vec*)packed)[i];
  }
  for (int i = 0; i < width; ++i) ((Vec*)y)[i] = sums[i];
  return packed;
}

/* Computes y = R h `repeats` times. Each product depends on the previous one: h[0] becomes y[0] /
 * 1000. `packed` has R in panels of PANEL and then of REMAINDER registers, each column-major,
 * aligned to 64 bytes. */
void matvec(const float* packed, int64_t rows, int64_t columns, float* h, float* y,
            int64_t repeats) {
  for (; repeats > 0; --repeats) {
    const float* at = packed;
    int64_t row = 0;
    for (; row + PANEL * LANES <= rows; row += PANEL * LANES)
      at = panel(PANEL, at, columns, h, y + row);
    for (; row < rows; row += REMAINDER * LANES) at = panel(REMAINDER, at, columns, h, y + row);
    h[0] = y[0] * 1e-3f;
  }
}

/* Runs PANEL independent multiply-adds of registers `repeats` times. The result keeps them from
 * being left out. */
float multiply_add(int64_t repeats) {
  Vec sums[PANEL];
  for (int i = 0; i < PANEL; ++i) sums[i] = (float)i - (Vec){0};
  const Vec factor = 0.999f - (Vec){0}, term = 1e-6f - (Vec){0};
  for (; repeats > 0; --repeats) {
    for (int i = 0; i < PANEL; ++i) sums[i] = sums[i] * factor + term;
  }
  for (int i = 1; i < PANEL; ++i) sums[0] += sums[i];
  return sums[0][0];
}
