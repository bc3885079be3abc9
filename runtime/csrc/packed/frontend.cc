// SPDX-License-Identifier: Apache-2.0
// Describes the front end of a model that reads raw audio as steps. edgernn/frontends.py defines
// it:
//
//   e = M |FFT(w s)|^2, s: the last samples            v = log(1 + e / floor)
//   log: v      floor: v - n, n follows v      pcen: (e / (floor + m)^alpha + delta)^r - delta^r,
//                                                    m follows e
//
// A step may have several hops, of which each has features: the layers read those of all, side by
// side.

#include <algorithm>
#include <cmath>

#include "graph/fourier_tables.h"
#include "packed/layer_graph.h"

namespace edgernn {
namespace {

// The normalisation of energies; the numbers are those in the file.
enum class Normalisation { kLog, kFloor, kPcen };

// The largest energy, in energy floors, and the largest logarithm that count as digital silence.
constexpr float kSilent = 0.01f;

// Bands whose filters are one product: neighbouring ones read neighbouring frequencies.
constexpr std::int64_t kNeighbours = 8;

// Largest number of hops in a step, each of which has steps of its own.
constexpr std::int64_t kMostHops = 4096;

}  // namespace

// The settings of a front end in the file.
struct LayerGraph::FrontendSettings {
  float energy_floor;
  Normalisation normalisation;
  float rise, fall;
};

// The mel filter of a band: its weights of neighbouring frequencies.
struct LayerGraph::MelFilter {
  std::int64_t begin;  // first frequency
  std::vector<float> weights;

  std::int64_t end() const { return begin + static_cast<std::int64_t>(weights.size()); }
};

bool LayerGraph::ReadSettings(FrontendSettings* to) {
  Tensor tensor;
  if (!file_.NextTensor("settings of the front end", {4}, &tensor)) return false;
  const Values& values = tensor.values;
  const float kind = values[1];
  if (kind != 0.0f && kind != 1.0f && kind != 2.0f) {
    return file_.Fail("front end: normalisation: expected 0, 1 or 2, got another number");
  }
  to->energy_floor = values[0];
  to->normalisation = static_cast<Normalisation>(static_cast<int>(kind));
  to->rise = values[2];
  // a smooth energy falls as it rises
  to->fall = to->normalisation == Normalisation::kPcen ? to->rise : values[3];
  const bool positive = to->energy_floor > 0.0f && to->rise > 0.0f && to->fall > 0.0f;
  return (positive && to->rise <= 1.0f && to->fall <= 1.0f && std::isfinite(to->energy_floor)) ||
         file_.Fail(
             "front end: settings: expected a positive floor and shares from 0 to 1, got others");
}

bool LayerGraph::ReadFilters(std::int64_t* frequencies, std::vector<MelFilter>* filters) {
  Tensor weights, ranges;
  if (!file_.NextTensor(&weights)) return false;
  const Values& values = weights.values;
  if (weights.shape.size() == 2) {
    // a matrix, as earlier versions stored it
    const std::int64_t columns = weights.shape[1];
    *frequencies = columns;
    for (std::int64_t row = 0; row < weights.shape[0]; ++row) {
      std::int64_t begin = 0, end = columns;
      while (begin + 1 < end && values[row * columns + begin] == 0.0f) ++begin;
      while (begin + 1 < end && values[row * columns + end - 1] == 0.0f) --end;
      filters->push_back({begin, {}});
      for (std::int64_t k = begin; k < end; ++k) {
        filters->back().weights.push_back(values[row * columns + k]);
      }
    }
    return true;
  }
  if (!file_.NextTensor(&ranges)) return false;
  if (ranges.shape.size() != 2 || ranges.shape[1] != 2) {
    return file_.Fail("front end: filters: expected ranges (bands, 2), got " + Print(ranges.shape));
  }
  std::int64_t read = 0, begin = 0, end = 1;
  for (std::int64_t band = 0; band < ranges.shape[0]; ++band) {
    const float first = ranges.values[2 * band], count = ranges.values[2 * band + 1];
    // bands in their order keep the products with all filters as small as the file
    const bool valid = first >= static_cast<float>(begin) && count >= 1.0f &&
                       first + count >= static_cast<float>(end) &&
                       first + count <= static_cast<float>(*frequencies) &&
                       count <= static_cast<float>(weights.shape[0] - read);
    if (!valid) {
      return file_.Fail("front end: filters: expected ranges of " + std::to_string(*frequencies) +
                        " frequencies in their order, with " + std::to_string(weights.shape[0]) +
                        " weights, got others");
    }
    begin = static_cast<std::int64_t>(first);
    end = begin + static_cast<std::int64_t>(count);
    filters->push_back({begin, {}});
    for (std::int64_t k = begin; k < end; ++k) filters->back().weights.push_back(values[read++]);
  }
  return true;
}

bool LayerGraph::AddFrontend() {
  const std::int64_t samples = file_.header().hop, features = file_.header().input;
  FrontendSettings settings;
  Tensor window;
  const auto window_index = static_cast<std::int64_t>(graph_.tensors.size());
  if (!ReadSettings(&settings) || !file_.NextTensor(&window)) return false;
  graph_.tensors.push_back(window);
  std::int64_t frequencies = 2;
  while (2 * (frequencies - 1) < window.shape[0]) frequencies = 2 * frequencies - 1;
  std::vector<MelFilter> filters;
  if (!ReadFilters(&frequencies, &filters)) return false;
  const auto bands = static_cast<std::int64_t>(filters.size()), half = frequencies - 1;
  if (features % bands != 0 || samples % (features / bands) != 0) {
    return file_.Fail("front end: filters: expected rows that divide " + std::to_string(features) +
                      " features, and hops that divide " + std::to_string(samples) +
                      " samples, got " + std::to_string(bands));
  }
  const std::int64_t hops = features / bands, hop = samples / hops;
  if (hops > kMostHops) {
    return file_.Fail("front end: expected at most " + std::to_string(kMostHops) +
                      " hops in a step, got " + std::to_string(hops));
  }
  if (window.shape.size() != 1 || window.shape[0] < hop) {
    return file_.Fail("front end: window: expected at least " + std::to_string(hop) +
                      " numbers, got " + Print(window.shape));
  }
  const std::int64_t size = window.shape[0], overlap = size - hop;
  if (half < 1 || (half & (half - 1)) != 0 || 2 * half > kMaxFourier || 2 * half < size) {
    return file_.Fail(
        "front end: filters: expected N/2 + 1 frequencies for a power of two N from " +
        std::to_string(size) + ", got " + std::to_string(frequencies));
  }
  const Normalisation kind = settings.normalisation;
  std::int64_t pcen[3] = {};
  for (std::int64_t& parameter : pcen) {
    if (kind != Normalisation::kPcen) break;
    if (!ReadTensor("a parameter of pcen", {bands}, &parameter)) return false;
  }
  const std::int64_t x = value_, signal = AddBuffer(overlap + samples);
  AddMove({x, 0}, {signal, overlap}, samples);
  if (overlap > 0) {
    std::int64_t kept;
    if (!ReadState("samples", overlap, &kept)) return false;
    keeps_samples_ = true;
    AddMove({kept, 0}, {signal, 0}, overlap);
    AddMove({signal, samples}, {kept, 0}, overlap);
  }
  if (kind != Normalisation::kLog &&
      !ReadState("noise floor or smooth energy", bands, &followed_)) {
    return false;
  }
  const std::int64_t spectrum_size = 2 * half + 2, spectrum = AddBuffer(hops * spectrum_size),
                     power = AddBuffer(hops * (half + 1)), energy = AddBuffer(features);
  AddStep(StepCode::kFourier,
          {signal, 0, spectrum, 0, hops, hop, spectrum_size, 2 * half, window_index});
  for (std::int64_t i = 0; i < hops; ++i) {
    ColumnProgram squares(half + 1);
    const std::int64_t re = squares.Read({spectrum, i * spectrum_size}),
                       im = squares.Read({spectrum, i * spectrum_size + half + 1});
    squares.Write({power, i * (half + 1)},
                  squares.Run(Operation::add, squares.Run(Operation::mul, re, re),
                              squares.Run(Operation::mul, im, im)));
    AddProgram(squares);
  }
  AddFilters(filters, hops, frequencies, power, energy);
  value_ = AddBuffer(features);
  for (std::int64_t i = 0; i < hops; ++i) {
    AddFeatures(settings, pcen, {energy, i * bands}, {value_, i * bands}, bands);
  }
  return true;
}

void LayerGraph::AddFilters(const std::vector<MelFilter>& filters, std::int64_t hops,
                            std::int64_t frequencies, std::int64_t power, std::int64_t energy) {
  const auto bands = static_cast<std::int64_t>(filters.size());
  for (std::int64_t first = 0; first < bands; first += kNeighbours) {
    const std::int64_t rows = std::min(kNeighbours, bands - first);
    std::int64_t begin = frequencies, end = 0;
    for (std::int64_t row = first; row < first + rows; ++row) {
      begin = std::min(begin, filters[row].begin);
      end = std::max(end, filters[row].end());
    }
    std::vector<float> part(rows * (end - begin));
    for (std::int64_t row = 0; row < rows; ++row) {
      const MelFilter& filter = filters[first + row];
      std::copy(filter.weights.begin(), filter.weights.end(),
                part.begin() + row * (end - begin) + filter.begin - begin);
    }
    AddStep(StepCode::kLinear, {power, begin, energy, first, AddNumbers(part, {rows, end - begin}),
                                -1, 1, 0, 0, hops, frequencies, bands});
  }
}

void LayerGraph::AddFeatures(const FrontendSettings& settings, const std::int64_t (&pcen)[3],
                             const ColumnProgram::ColumnOperand& energy,
                             const ColumnProgram::ColumnOperand& features, std::int64_t bands) {
  const Normalisation kind = settings.normalisation;
  ColumnProgram program(bands);
  const auto number = [&](float value) { return program.Read({AddNumber(value), 0}, 0); };
  const auto run = [&](Operation operation, std::int64_t a, std::int64_t b = -1,
                       std::int64_t c = -1) { return program.Run(operation, a, b, c); };
  const std::int64_t e = program.Read(energy), floor = number(settings.energy_floor),
                     one = number(1.0f);
  std::int64_t result = e;
  if (kind != Normalisation::kPcen) {
    result = run(Operation::log, run(Operation::add, one, run(Operation::div, e, floor)));
  }
  if (kind != Normalisation::kLog) {
    const std::int64_t last = program.Read({followed_, 0}), value = result;
    const std::int64_t silent =
        number(kind == Normalisation::kPcen ? kSilent * settings.energy_floor : kSilent);
    const std::int64_t quiet = run(Operation::min, last, silent);
    const std::int64_t progress = run(Operation::div, quiet, silent);
    const std::int64_t start = run(Operation::sub, one, run(Operation::mul, progress, progress));
    const std::int64_t usual = run(Operation::select, run(Operation::less, value, last),
                                   number(settings.fall), number(settings.rise));
    const std::int64_t share = run(Operation::max, start, usual);
    const std::int64_t moved =
        run(Operation::add, last, run(Operation::mul, share, run(Operation::sub, value, last)));
    const std::int64_t next = run(Operation::max, moved, quiet);
    program.Write({followed_, 0}, next);
    if (kind == Normalisation::kFloor) {
      result = run(Operation::sub, value, next);
    } else {
      const auto column = [&](std::int64_t tensor) {
        return program.Read({AddConstant(tensor, bands), 0});
      };
      const std::int64_t alpha = column(pcen[0]), delta = column(pcen[1]), r = column(pcen[2]);
      const auto power = [&](std::int64_t base, std::int64_t exponent) {
        return run(Operation::exp, run(Operation::mul, exponent, run(Operation::log, base)));
      };
      const std::int64_t gain = power(run(Operation::add, floor, next), alpha);
      const std::int64_t shifted = run(Operation::add, run(Operation::div, e, gain), delta);
      result = run(Operation::sub, power(shifted, r), power(delta, r));
    }
  }
  program.Write(features, result);
  AddProgram(program);
}

}  // namespace edgernn
