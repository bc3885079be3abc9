/* SPDX-License-Identifier: Apache-2.0 */
/* Features of raw audio: the energies of mel bands of one window of samples, normalised. */

#ifndef EDGERNN_FRONTEND_H_
#define EDGERNN_FRONTEND_H_

#include <stdint.h>

#include "edgernn_math.h"

typedef struct EdgernnFrontend {
  int32_t hop;         /* new samples of a step */
  int32_t window_size; /* samples of a window, hop or more */
  int32_t half;        /* N / 2; N, a power of two, is the size of the transform */
  int32_t bands;
  const float* window;            /* (window_size,) */
  const float* cosines;           /* (half,): cosine of k / N turns */
  const float* sines;             /* (half,) */
  const uint16_t* first;          /* (bands,): first frequency of a filter */
  const uint16_t* count;          /* (bands,): its number of frequencies */
  const float* filters;           /* weights of all filters, one after the other */
  const float *alpha, *delta, *r; /* (bands,), for edgernn_pcen */
  float energy_floor, rise, fall;
} EdgernnFrontend;

typedef struct EdgernnComplex {
  float* re;
  float* im;
} EdgernnComplex;

/* One pass of a transform in radix 4. */
static inline void edgernn_radix_4(const EdgernnFrontend* f, int32_t size, int32_t stride,
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
static inline EdgernnComplex edgernn_fourier(const EdgernnFrontend* f, EdgernnComplex from,
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

/* Computes |X_k|^2, (N / 2 + 1,), of one window: `samples`, then `x`. Returns a pointer to the
 * result in the workspace (5 N / 2 + 1,). Even samples are the real parts of a complex transform of
 * half the size, odd samples the imaginary ones. */
static inline const float* edgernn_power_spectrum(const EdgernnFrontend* f, const float* samples,
                                                  const float* x, float* workspace) {
  const int32_t half = f->half, overlap = f->window_size - f->hop;
  const EdgernnComplex even_odd = {workspace, workspace + half};
  const EdgernnComplex other = {workspace + 2 * half, workspace + 3 * half};
  float* const power = workspace + 4 * half;
  float* const windowed = other.re; /* (N,) */
  for (int32_t i = 0; i < overlap; ++i) windowed[i] = f->window[i] * samples[i];
  for (int32_t i = overlap; i < f->window_size; ++i) windowed[i] = f->window[i] * x[i - overlap];
  for (int32_t i = f->window_size; i < 2 * half; ++i) windowed[i] = 0.0f;
  for (int32_t i = 0; i < half; ++i) {
    even_odd.re[i] = windowed[2 * i];
    even_odd.im[i] = windowed[2 * i + 1];
  }
  const EdgernnComplex z = edgernn_fourier(f, even_odd, other);
  power[0] = (z.re[0] + z.im[0]) * (z.re[0] + z.im[0]);
  power[half] = (z.re[0] - z.im[0]) * (z.re[0] - z.im[0]);
  for (int32_t k = 1; k < half; ++k) {
    const int32_t mirror = half - k;
    const float even_re = 0.5f * (z.re[k] + z.re[mirror]);
    const float even_im = 0.5f * (z.im[k] - z.im[mirror]);
    const float odd_re = 0.5f * (z.im[k] + z.im[mirror]);
    const float odd_im = 0.5f * (z.re[mirror] - z.re[k]);
    const float re = even_re + f->cosines[k] * odd_re + f->sines[k] * odd_im;
    const float im = even_im + f->cosines[k] * odd_im - f->sines[k] * odd_re;
    power[k] = re * re + im * im;
  }
  return power;
}

/* The largest energy, in energy floors, and the largest logarithm that count as digital silence. */
#define EDGERNN_SILENT 0.01f

/* Moves `last` by a share of the gap to `value`: by the whole gap if it is 0. From `silent` on, it
 * moves by the shares of the front end, and stays at or above `silent`. */
static inline float edgernn_follow(const EdgernnFrontend* f, float last, float value,
                                   float silent) {
  const float quiet = edgernn_min(last, silent), progress = quiet / silent;
  const float share = edgernn_max(1.0f - progress * progress, value < last ? f->fall : f->rise);
  return edgernn_max(quiet, last + share * (value - last));
}

static inline float edgernn_power(float a, float exponent) {
  return a > 0.0f ? edgernn_exp(exponent * edgernn_log(a)) : 0.0f;
}

/* The feature of a band with this energy, in the three normalisations. `followed` is the noise
 * floor or the smooth energy, or null. */
static inline float edgernn_feature_log(const EdgernnFrontend* f, int32_t band, float energy,
                                        float* followed) {
  (void)band;
  (void)followed;
  return edgernn_log(1.0f + energy / f->energy_floor);
}

static inline float edgernn_feature_floor(const EdgernnFrontend* f, int32_t band, float energy,
                                          float* followed) {
  const float value = edgernn_feature_log(f, band, energy, followed);
  *followed = edgernn_follow(f, *followed, value, EDGERNN_SILENT);
  return value - *followed;
}

static inline float edgernn_feature_pcen(const EdgernnFrontend* f, int32_t band, float energy,
                                         float* followed) {
  *followed = edgernn_follow(f, *followed, energy, EDGERNN_SILENT * f->energy_floor);
  const float alpha = f->alpha[band], delta = f->delta[band], r = f->r[band];
  const float gain = edgernn_power(f->energy_floor + *followed, alpha);
  return edgernn_power(energy / gain + delta, r) - edgernn_power(delta, r);
}

typedef float EdgernnFeature(const EdgernnFrontend* f, int32_t band, float energy, float* followed);

/* Computes the features (bands,) of a step from x (hop,), and keeps the samples of the window that
 * the next step reads. */
static inline void edgernn_features(const EdgernnFrontend* f, EdgernnFeature* feature,
                                    const float* x, float* samples, float* followed,
                                    float* workspace, float* features) {
  const float* const power = edgernn_power_spectrum(f, samples, x, workspace);
  const float* filter = f->filters;
  for (int32_t band = 0; band < f->bands; ++band) {
    float energy = 0.0f;
    for (int32_t k = 0; k < f->count[band]; ++k) energy += *filter++ * power[f->first[band] + k];
    features[band] = feature(f, band, energy, followed ? followed + band : followed);
  }
  const int32_t overlap = f->window_size - f->hop;
  const int32_t kept = overlap > f->hop ? overlap - f->hop : 0, added = overlap - kept;
  for (int32_t i = 0; i < kept; ++i) samples[i] = samples[i + f->hop];
  for (int32_t i = 0; i < added; ++i) samples[kept + i] = x[f->hop - added + i];
}

#endif /* EDGERNN_FRONTEND_H_ */
