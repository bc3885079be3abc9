// SPDX-License-Identifier: Apache-2.0
// Builds and runs the front end of a model that reads raw audio.

#include "packed/frontend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "graph/fourier_tables.h"
#include "packed/file.h"

namespace edgernn {

namespace {

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
  to->mel_filters = filters;
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
  to->hop = static_cast<std::int32_t>(hop);
  to->bands = static_cast<std::int32_t>(bands);
  Tensor window, filters;
  if (!ReadSettings(file, to, failure)) return false;
  if (!file->NextTensor(&window) || !file->NextTensor(&filters)) return false;
  if (window.shape.size() != 1 || window.shape[0] < hop) {
    return Refuse(failure, "window: expected at least " + std::to_string(hop) + " numbers, got " +
                               Print(window.shape));
  }
  const std::int64_t window_size = window.shape[0];
  const bool is_matrix = filters.shape.size() == 2 && filters.shape[0] == bands;
  const std::int64_t half = is_matrix ? filters.shape[1] - 1 : 0;
  if (half < 1 || (half & (half - 1)) != 0 || 2 * half > kMaxFourier || 2 * half < window_size) {
    return Refuse(failure, "filters: expected (" + std::to_string(bands) +
                               ", N/2 + 1) for a power of two N from " +
                               std::to_string(window_size) + ", got " + Print(filters.shape));
  }
  to->window_size = static_cast<std::int32_t>(window_size);
  to->half = static_cast<std::int32_t>(half);
  to->window = CopyFloats(window, arena);
  BuildFilters(filters, to, arena);
  to->cosines = MakeFourierTables(half, arena);
  to->sines = to->cosines == nullptr ? nullptr : to->cosines + half;
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
  if (window_size > hop && !add_state("samples", window_size - hop)) return false;
  if (to->normalisation != Normalisation::kLog &&
      !add_state("noise floor or smooth energy", bands)) {
    return false;
  }
  to->workspace = arena->Allocate<float>(5 * half + 1);
  return true;
}

void RunFrontend(const Frontend& frontend, std::int64_t batch, const float* x, float* features) {
  const std::int64_t overlap = frontend.window_size - frontend.hop, bands = frontend.bands;
  for (std::int64_t b = 0; b < batch; ++b) {
    float* const samples = frontend.samples == nullptr ? nullptr : frontend.samples + b * overlap;
    float* const followed = frontend.followed == nullptr ? nullptr : frontend.followed + b * bands;
    const float* const hop = x + b * frontend.hop;
    const float* const power = edgernn_power_spectrum(&frontend, samples, hop, frontend.workspace);
    for (std::int64_t band = 0; band < bands; ++band) {
      const MelFilter& filter = frontend.mel_filters[band];
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
