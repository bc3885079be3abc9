/* SPDX-License-Identifier: Apache-2.0 */
/* The Fourier transform of a window of samples. */

#ifndef EDGERNN_FOURIER_H_
#define EDGERNN_FOURIER_H_

#include <stdint.h>

/* Tables for a transform of N real numbers; N is a power of two. */
typedef struct EdgernnFourier {
  int32_t half;         /* N / 2 */
  const float* cosines; /* (half,): cosine of k / N turns */
  const float* sines;   /* (half,) */
} EdgernnFourier;

typedef struct EdgernnComplex {
  float* re;
  float* im;
} EdgernnComplex;

/* One pass of a transform in radix 4. */
static inline void edgernn_radix_4(const EdgernnFourier* f, int32_t size, int32_t stride,
                                   EdgernnComplex from, EdgernnComplex to) {
  const int32_t quarter = size / 4, b = stride * quarter, c = 2 * b, d = 3 * b;
  for (int32_t p = 0; p < quarter; ++p) {
    /* the tables have the angles of a transform of twice the length */
    const float ur = f->cosines[2 * p * stride], ui = -f->sines[2 * p * stride];
    const float vr = f->cosines[4 * p * stride], vi = -f->sines[4 * p * stride];
    const float wr = ur * vr - ui * vi, wi = ur * vi + ui * vr;
    const float* const ar = from.re + stride * p;
    const float* const ai = from.im + stride * p;
    float* const yr = to.re + stride * 4 * p;
    float* const yi = to.im + stride * 4 * p;
    for (int32_t q = 0; q < stride; ++q) {
      const float even_sum_re = ar[q] + ar[q + c], even_sum_im = ai[q] + ai[q + c];
      const float even_re = ar[q] - ar[q + c], even_im = ai[q] - ai[q + c];
      const float odd_sum_re = ar[q + b] + ar[q + d], odd_sum_im = ai[q + b] + ai[q + d];
      /* times -i */
      const float odd_re = ai[q + b] - ai[q + d], odd_im = ar[q + d] - ar[q + b];
      const float second_re = even_re + odd_re, second_im = even_im + odd_im;
      const float third_re = even_sum_re - odd_sum_re, third_im = even_sum_im - odd_sum_im;
      const float fourth_re = even_re - odd_re, fourth_im = even_im - odd_im;
      yr[q] = even_sum_re + odd_sum_re;
      yi[q] = even_sum_im + odd_sum_im;
      yr[q + stride] = second_re * ur - second_im * ui;
      yi[q + stride] = second_re * ui + second_im * ur;
      yr[q + 2 * stride] = third_re * vr - third_im * vi;
      yi[q + 2 * stride] = third_re * vi + third_im * vr;
      yr[q + 3 * stride] = fourth_re * wr - fourth_im * wi;
      yi[q + 3 * stride] = fourth_re * wi + fourth_im * wr;
    }
  }
}

/* Computes the FFT of N / 2 complex numbers. The passes alternate between the buffers `from` and
 * `to`; returns the one that has the result. Stockham's order needs no bit reversal. */
static inline EdgernnComplex edgernn_fourier(const EdgernnFourier* f, EdgernnComplex from,
                                             EdgernnComplex to) {
  int32_t size = f->half, stride = 1;
  for (; size >= 4; size /= 4, stride *= 4) {
    const EdgernnComplex last = from;
    edgernn_radix_4(f, size, stride, from, to);
    from = to;
    to = last;
  }
  if (size == 1) return from;
  for (int32_t q = 0; q < stride; ++q) {
    to.re[q] = from.re[q] + from.re[q + stride];
    to.im[q] = from.im[q] + from.im[q + stride];
    to.re[q + stride] = from.re[q] - from.re[q + stride];
    to.im[q + stride] = from.im[q] - from.im[q + stride];
  }
  return to;
}

typedef struct EdgernnNumber {
  float re, im;
} EdgernnNumber;

/* Frequency k, from 1 to N / 2 - 1, of N real numbers, of which z is the transform of those at even
 * places as real parts, and of those at odd places as imaginary ones. */
static inline EdgernnNumber edgernn_frequency(const EdgernnFourier* f, EdgernnComplex z,
                                              int32_t k) {
  const int32_t mirror = f->half - k;
  const float even_re = 0.5f * (z.re[k] + z.re[mirror]);
  const float even_im = 0.5f * (z.im[k] - z.im[mirror]);
  const float odd_re = 0.5f * (z.im[k] + z.im[mirror]);
  const float odd_im = 0.5f * (z.re[mirror] - z.re[k]);
  const EdgernnNumber result = {even_re + f->cosines[k] * odd_re + f->sines[k] * odd_im,
                                even_im + f->cosines[k] * odd_im - f->sines[k] * odd_re};
  return result;
}

/* Computes the transform of x (count,) times a window (count,), or of x if `window` is null, with
 * zeros up to N numbers: N / 2 + 1 real parts, then as many imaginary parts. The workspace has N
 * numbers. The passes use y too, where the result lies as y has it, so that pairs of frequencies
 * may replace each other. */
static inline void edgernn_real_fourier(const EdgernnFourier* f, const float* window, int32_t count,
                                        const float* x, float* workspace, float* y) {
  const int32_t half = f->half;
  float* const im = y + half + 1;
  const EdgernnComplex even_odd = {workspace, workspace + half};
  const EdgernnComplex other = {y, im};
  for (int32_t i = 0; i < half; ++i) {
    const int32_t even = 2 * i, odd = even + 1;
    even_odd.re[i] = even >= count ? 0.0f : window ? window[even] * x[even] : x[even];
    even_odd.im[i] = odd >= count ? 0.0f : window ? window[odd] * x[odd] : x[odd];
  }
  const EdgernnComplex z = edgernn_fourier(f, even_odd, other);
  const float first = z.re[0], second = z.im[0];
  y[0] = first + second;
  y[half] = first - second;
  im[0] = im[half] = 0.0f;
  for (int32_t k = 1; k <= half / 2; ++k) {
    const EdgernnNumber a = edgernn_frequency(f, z, k), b = edgernn_frequency(f, z, half - k);
    y[k] = a.re;
    im[k] = a.im;
    y[half - k] = b.re;
    im[half - k] = b.im;
  }
}

#endif /* EDGERNN_FOURIER_H_ */
