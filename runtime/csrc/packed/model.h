// SPDX-License-Identifier: Apache-2.0
// An open model of edgernn.h, which is stored in the caller's memory.

#pragma once

#include <cstddef>
#include <cstdint>

#include "edgernn.h"
#include "graph/graph.h"
#include "packed/file.h"

struct EdgernnModel {
  EdgernnSizes sizes;
  std::uint64_t file_bytes;  // size of the file without the names
  std::uint32_t file_checksum;
  std::int64_t sample_rate;  // 0 if it is not known
  EdgernnDetection detection;
  const char* const* class_names;    // (O,), see PackedFile::ReadNames, or null
  const char* const* channel_names;  // (I,), or null
  const edgernn::KernelTable* table;
  float* words;           // (B,), x of a model of words as floats
  const float* mean;      // (I,): what a model that standardises x subtracts from it; else null
  std::int64_t features;  // F if the first layer has an imputer, else 0
  EdgernnNonfinite on_nonfinite;
  float* held;              // (B, I): the last finite numbers of x; empty for a model of words
  std::int64_t* nonfinite;  // (B,): steps at which x had a number that is not finite
  edgernn::Graph graph;
  float* state;        // all states, (B, width) each
  const float* start;  // their initial values, (width,) each
  const std::int64_t* state_widths;
  std::int64_t state_count;  // number of states
  bool keeps_samples;        // the first state has numbers of x
  void* scratch;
  std::int64_t* updates;  // (B,), or null
  std::int64_t* macs;     // (B,), or null
};

namespace edgernn {

// Builds the model of a file in `memory`, which starts with the EdgernnModel, and sets *bytes to
// its size; if `memory` is null, only computes that. Returns false for an invalid file.
[[nodiscard]] bool BuildModel(PackedFile* file, std::int64_t batch, void* memory,
                              std::uint64_t* bytes, Failure* failure);

}  // namespace edgernn
