// SPDX-License-Identifier: Apache-2.0
// The front end of a model that reads raw audio: log-mel features with a real FFT.
// edgernn/frontends.py defines them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../firmware/engine/edgernn_frontend.h"
#include "common/arena.h"
#include "op/tensor.h"

namespace edgernn {

class PackedFile;
struct Failure;

// The normalisation of energies; the numbers are those in the file.
enum class Normalisation { kLog, kFloor, kPcen };

// The nonzero weights of a mel filter: `count` from the frequency `first` on.
struct MelFilter {
  std::int32_t first, count;
  const float* weights;
};

// The front end in C, without its filters, of which this one has only the nonzero weights; `hop` is
// 0 for a model without a front end.
struct Frontend : EdgernnFrontend {
  Normalisation normalisation;
  const MelFilter* mel_filters;  // (bands,)
  float* samples;                // state (B, window_size - hop), or null if that is empty
  float* followed;               // state (B, bands) of kFloor and kPcen, or null
  float* workspace;              // (5 N/2 + 1,)
};

// Reads a front end of a file with `bands` features, and appends the initial values of its states
// to `starts`. Sets the failure and returns false if it is invalid.
[[nodiscard]] bool BuildFrontend(PackedFile* file, std::int64_t hop, std::int64_t bands,
                                 std::vector<Tensor>* starts, Arena* arena, Frontend* to,
                                 Failure* failure);

// Computes the features (B, bands) of one hop of samples x (B, hop), and the next states.
void RunFrontend(const Frontend& frontend, std::int64_t batch, const float* x, float* features);

}  // namespace edgernn
