// SPDX-License-Identifier: Apache-2.0
// Builds and runs the front end of a model that reads raw audio.

#include "packed/frontend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "packed/read_linear.h"

namespace edgernn {

namespace {

constexpr double kTwoPi = 6.283185307179586;

// Sets the failure and returns false.
bool Refuse(Failure* failure, const std::string& message) {
  return failure->Set(EDGERNN_BAD_MODEL, "packed model: front end: " + message);
}

// Reads the settings: energy_floor, the normalisation, rise and fall.
bool ReadSettings(PackedFile* file, Frontend* to, Failure* failure) {
  Tensor settings;
  if (!file->NextTensor("settings of the front end", {4}, &settings)) return false;
  to->energy_floor = settings.values[0];
  const float kind = settings.values[1];
  to->rise = settings.values[2];
  // a smooth energy falls as it rises
  to->fall = kind == 2.0f ? to->rise : settings.values[3];
  if (kind != 0.0f && kind != 1.0f && kind != 2.0f) {
    return Refuse(failure, "normalisation: expected 0, 1 or 2, got another number");
  }
  to->normalisation = static_cast<Normalisation>(static_cast<int>(kind));
  const bool positive = to->energy_floor > 0.0f && to->rise > 0.0f && to->fall > 0.0f;
  if (!positive || to->rise > 1.0f || to->fall > 1.0f || !std::isfinite(to->energy_floor)) {
    return Refuse(failure,
                  "settings: expected a positive floor and shares from 0 to 1, got others");
  }
  return true;
}

// Copies the nonzero weights of each filter (bands, N/2 + 1).
void BuildFilters(const Tensor& weights, Frontend* to, Arena* arena) {
  const std::int64_t columns = to->half + 1;
  MelFilter* const filters = arena->Allocate<MelFilter>(to->bands);
  to->filters = filters;
  for (std::int64_t b = 0; b < to->bands; ++b) {
    std::int64_t first = 0, last = columns;
    while (first < columns && weights.values[b * columns + first] == 0.0f) ++first;
    while (last > first && weights.values[b * columns + last - 1] == 0.0f) --last;
    float* const values = arena->Allocate<float>(last - first);
    if (values == nullptr) continue;
    for (std::int64_t k = first; k < last; ++k) {
      values[k - first] = weights.values[b * columns + k];
    }
    filters[b] = {static_cast<std::int32_t>(first), static_cast<std::int32_t>(last - first),
                  values};
  }
}

struct Complex {
  float* re;
  float* im;
};

// One pass of a transform in radix 4, from `from` to `to`.
void Radix4(const Frontend& f, std::int64_t size, std::int64_t stride, Complex from, Complex to) {
  const std::int64_t quarter = size / 4;
  for (std::int64_t p = 0; p < quarter; ++p) {
    // the table has the angles of a transform of twice the length
    const float ur = f.cos[2 * p * stride], ui = -f.sin[2 * p * stride];
    const float vr = f.cos[4 * p * stride], vi = -f.sin[4 * p * stride];
    const float wr = ur * vr - ui * vi, wi = ur * vi + ui * vr;
    const float* const ar = from.re + stride * p;
    const float* const ai = from.im + stride * p;
    float* const yr = to.re + stride * 4 * p;
    float* const yi = to.im + stride * 4 * p;
    const std::int64_t b = stride * quarter, c = 2 * b, d = 3 * b;
    for (std::int64_t q = 0; q < stride; ++q) {
      const float even_sum_re = ar[q] + ar[q + c], even_sum_im = ai[q] + ai[q + c];
      const float even_re = ar[q] - ar[q + c], even_im = ai[q] - ai[q + c];
      const float odd_sum_re = ar[q + b] + ar[q + d], odd_sum_im = ai[q + b] + ai[q + d];
      // times -i
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

// Computes the FFT of N/2 complex numbers. The passes alternate between the buffers `from` and
// `to`; returns the one that has the result. Stockham's order needs no bit reversal.
Complex Fourier(const Frontend& f, Complex from, Complex to) {
  std::int64_t size = f.half, stride = 1;
  for (; size >= 4; size /= 4, stride *= 4) {
    Radix4(f, size, stride, from, to);
    std::swap(from, to);
  }
  if (size == 1) return from;
  for (std::int64_t q = 0; q < stride; ++q) {
    to.re[q] = from.re[q] + from.re[q + stride];
    to.im[q] = from.im[q] + from.im[q + stride];
    to.re[q + stride] = from.re[q] - from.re[q + stride];
    to.im[q + stride] = from.im[q] - from.im[q + stride];
  }
  return to;
}

// Computes |X_k|² (N/2 + 1,) of one window of samples: `samples`, then `x`. Even samples are the
// real parts of a complex transform of half the size, odd samples the imaginary ones.
void PowerSpectrum(const Frontend& f, const float* samples, const float* x, float* power) {
  const std::int64_t half = f.half, overlap = f.window_size - f.hop;
  const Complex even_odd{f.workspace, f.workspace + half};
  const Complex other{f.workspace + 2 * half, f.workspace + 3 * half};
  float* const windowed = other.re;  // (N,)
  for (std::int64_t i = 0; i < overlap; ++i) windowed[i] = f.window[i] * samples[i];
  for (std::int64_t i = 0; i < f.hop; ++i) windowed[overlap + i] = f.window[overlap + i] * x[i];
  for (std::int64_t i = f.window_size; i < 2 * half; ++i) windowed[i] = 0.0f;
  for (std::int64_t i = 0; i < half; ++i) {
    even_odd.re[i] = windowed[2 * i];
    even_odd.im[i] = windowed[2 * i + 1];
  }
  const Complex z = Fourier(f, even_odd, other);
  power[0] = (z.re[0] + z.im[0]) * (z.re[0] + z.im[0]);
  power[half] = (z.re[0] - z.im[0]) * (z.re[0] - z.im[0]);
  for (std::int64_t k = 1; k < half; ++k) {
    const std::int64_t mirror = half - k;
    const float even_re = 0.5f * (z.re[k] + z.re[mirror]);
    const float even_im = 0.5f * (z.im[k] - z.im[mirror]);
    const float odd_re = 0.5f * (z.im[k] + z.im[mirror]);
    const float odd_im = 0.5f * (z.re[mirror] - z.re[k]);
    const float re = even_re + f.cos[k] * odd_re + f.sin[k] * odd_im;
    const float im = even_im + f.cos[k] * odd_im - f.sin[k] * odd_re;
    power[k] = re * re + im * im;
  }
}

// The largest energy, in energy floors, and the largest logarithm that count as digital silence.
constexpr float kSilent = 0.01f;

// Moves `last` by a share of the gap to `value`: by the whole gap if it is 0. From `silent` on, it
// moves by the shares of the front end, and stays at or above `silent`.
float Follow(const Frontend& f, float last, float value, float silent) {
  const float quiet = std::min(last, silent), progress = quiet / silent;
  const float share = std::max(1.0f - progress * progress, value < last ? f.fall : f.rise);
  // in this order, NaN stays NaN
  return std::max(last + share * (value - last), quiet);
}

// The feature of a band with this energy; `followed` is its noise floor or smooth energy.
float Feature(const Frontend& f, std::int64_t band, float energy, float* followed) {
  if (f.normalisation == Normalisation::kPcen) {
    *followed = Follow(f, *followed, energy, kSilent * f.energy_floor);
    const float alpha = f.alpha[band], delta = f.delta[band], r = f.r[band];
    const float gain = std::pow(f.energy_floor + *followed, alpha);
    return std::pow(energy / gain + delta, r) - std::pow(delta, r);
  }
  const float value = std::log(1.0f + energy / f.energy_floor);
  if (f.normalisation == Normalisation::kLog) return value;
  *followed = Follow(f, *followed, value, kSilent);
  return value - *followed;
}

// Keeps the last samples of the window, without its first hop.
void KeepSamples(const Frontend& f, const float* x, float* samples) {
  const std::int64_t overlap = f.window_size - f.hop;
  const std::int64_t kept = overlap > f.hop ? overlap - f.hop : 0, added = overlap - kept;
  std::memmove(samples, samples + (overlap - kept), static_cast<std::size_t>(kept) * sizeof(float));
  std::memcpy(samples + kept, x + (f.hop - added), static_cast<std::size_t>(added) * sizeof(float));
}

}  // namespace

bool BuildFrontend(PackedFile* file, std::int64_t hop, std::int64_t bands,
                   std::vector<Tensor>* starts, Arena* arena, Frontend* to, Failure* failure) {
  to->hop = hop;
  to->bands = bands;
  Tensor window, filters;
  if (!ReadSettings(file, to, failure)) return false;
  if (!file->NextTensor(&window) || !file->NextTensor(&filters)) return false;
  if (window.shape.size() != 1 || window.shape[0] < hop) {
    return Refuse(failure, "window: expected at least " + std::to_string(hop) + " numbers, got " +
                               Print(window.shape));
  }
  to->window_size = window.shape[0];
  const bool is_matrix = filters.shape.size() == 2 && filters.shape[0] == bands;
  const std::int64_t half = is_matrix ? filters.shape[1] - 1 : 0;
  to->half = half;
  if (half < 1 || (half & (half - 1)) != 0 || 2 * half < to->window_size) {
    return Refuse(failure, "filters: expected (" + std::to_string(bands) +
                               ", N/2 + 1) for a power of two N from " +
                               std::to_string(to->window_size) + ", got " + Print(filters.shape));
  }
  to->window = CopyFloats(window, arena);
  BuildFilters(filters, to, arena);
  float* const cos = arena->Allocate<float>(half);
  float* const sin = arena->Allocate<float>(half);
  for (std::int64_t k = 0; cos != nullptr && k < half; ++k) {
    const double angle = kTwoPi * static_cast<double>(k) / static_cast<double>(2 * half);
    cos[k] = static_cast<float>(std::cos(angle));
    sin[k] = static_cast<float>(std::sin(angle));
  }
  to->cos = cos;
  to->sin = sin;
  if (to->normalisation == Normalisation::kPcen) {
    for (const float** values : {&to->alpha, &to->delta, &to->r}) {
      Tensor tensor;
      if (!file->NextTensor("a parameter of pcen", {bands}, &tensor)) return false;
      *values = CopyFloats(tensor, arena);
    }
  }
  const auto add_state = [&](const char* name, std::int64_t width) {
    starts->emplace_back();
    return file->NextTensor(name, {width}, &starts->back());
  };
  if (to->window_size > hop && !add_state("samples", to->window_size - hop)) return false;
  if (to->normalisation != Normalisation::kLog &&
      !add_state("noise floor or smooth energy", bands)) {
    return false;
  }
  to->workspace = arena->Allocate<float>(5 * half + 1);
  return true;
}

void RunFrontend(const Frontend& frontend, std::int64_t batch, const float* x, float* features) {
  const std::int64_t overlap = frontend.window_size - frontend.hop, bands = frontend.bands;
  float* const power = frontend.workspace + 4 * frontend.half;
  for (std::int64_t b = 0; b < batch; ++b) {
    float* const samples = frontend.samples == nullptr ? nullptr : frontend.samples + b * overlap;
    float* const followed = frontend.followed == nullptr ? nullptr : frontend.followed + b * bands;
    const float* const hop = x + b * frontend.hop;
    PowerSpectrum(frontend, samples, hop, power);
    for (std::int64_t band = 0; band < bands; ++band) {
      const MelFilter& filter = frontend.filters[band];
      float energy = 0.0f;
      for (std::int32_t k = 0; k < filter.count; ++k) {
        energy += filter.weights[k] * power[filter.first + k];
      }
      features[b * bands + band] =
          Feature(frontend, band, energy, followed == nullptr ? nullptr : followed + band);
    }
    if (samples != nullptr) KeepSamples(frontend, hop, samples);
  }
}

}  // namespace edgernn
