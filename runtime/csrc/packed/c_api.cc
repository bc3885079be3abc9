// SPDX-License-Identifier: Apache-2.0
// The C functions of edgernn.h.

#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "common/flush_subnormals.h"
#include "packed/message.h"
#include "packed/saved_state.h"

namespace edgernn {
namespace {

constexpr std::int64_t kMaxBatch = 1 << 16;
// The most memory for one sequence. Layers whose tensors share bytes of the file need more.
constexpr std::uint64_t kMostTimesTheFile = 16, kMostBeside = 1 << 20;

// Calls body(&failure) and returns the status of the failure.
template <class Body>
EdgernnStatus Guard(const Body& body) {
  Failure failure;
#if defined(__cpp_exceptions)
  // only the C++ library throws, where the system has no memory for lists and messages
  try {
#endif
    if (body(&failure)) return EDGERNN_OK;
#if defined(__cpp_exceptions)
  } catch (const std::bad_alloc&) {
    return Report(EDGERNN_BAD_ARGUMENT, "out of memory");
  }
#endif
  return Report(failure.status, failure.message.c_str());
}

bool CheckFile(const void* data, std::int64_t batch, Failure* failure) {
  if (reinterpret_cast<std::uintptr_t>(data) % 8 != 0) {
    return failure->Set(EDGERNN_BAD_ARGUMENT,
                        "data: expected an alignment of 8 bytes, got an unaligned pointer");
  }
  if (batch >= 1 && batch <= kMaxBatch) return true;
  return failure->Set(EDGERNN_BAD_ARGUMENT, "batch: expected 1 to " + std::to_string(kMaxBatch) +
                                                ", got " + std::to_string(batch));
}

// Sets *need to the bytes that the model needs, if they are in proportion to the file, and if a
// pointer can address them.
bool FindMemory(PackedFile* file, std::int64_t batch, std::size_t* need, Failure* failure) {
  std::uint64_t bytes = 0;
  if (!BuildModel(file, 1, nullptr, &bytes, failure)) return false;
  const std::uint64_t file_bytes = file->header().bytes;
  const std::uint64_t most = kMostTimesTheFile * file_bytes + kMostBeside;
  if (bytes > most) {
    return failure->Set(EDGERNN_BAD_MODEL,
                        "packed model: expected one that needs at most " + std::to_string(most) +
                            " bytes of memory, as its file has " + std::to_string(file_bytes) +
                            " bytes, got one that needs " + std::to_string(bytes) + " bytes");
  }
  if (batch > 1 && !BuildModel(file, batch, nullptr, &bytes, failure)) return false;
  *need = static_cast<std::size_t>(bytes);
  if (*need == bytes) return true;
  return failure->Set(EDGERNN_BAD_MODEL,
                      "packed model: expected a model in " +
                          std::to_string(std::uint64_t{SIZE_MAX} + 1) +
                          " bytes of memory, as this processor has no more addresses, got one of " +
                          std::to_string(bytes) + " bytes");
}

bool Open(const void* data, std::size_t bytes, std::int64_t batch, void* memory,
          std::size_t memory_bytes, Failure* failure) {
  if (!CheckFile(data, batch, failure)) return false;
  if (reinterpret_cast<std::uintptr_t>(memory) % EDGERNN_ALIGNMENT != 0) {
    return failure->Set(EDGERNN_BAD_ARGUMENT, "memory: expected an alignment of " +
                                                  std::to_string(EDGERNN_ALIGNMENT) +
                                                  " bytes, got an unaligned pointer");
  }
  // checks the file once, as the checksum reads all of it
  PackedFile file(failure);
  std::size_t need = 0;
  if (!file.Open(data, bytes) || !FindMemory(&file, batch, &need, failure)) return false;
  if (memory_bytes < need) {
    return failure->Set(EDGERNN_BAD_ARGUMENT, "memory: expected " + std::to_string(need) +
                                                  " bytes, got " + std::to_string(memory_bytes));
  }
  std::uint64_t used = 0;
  return BuildModel(&file, batch, memory, &used, failure);
}

bool AllFinite(const float* from, std::int64_t count) {
  std::uint32_t not_finite = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    not_finite |= (bits & 0x7f800000u) == 0x7f800000u;
  }
  return not_finite == 0;
}

// True if number i of a sample x (I,) is not finite. A NaN is not bad where an imputer fills it.
bool IsBad(const EdgernnModel& model, const float* x, std::int64_t i) {
  if (std::isfinite(x[i])) return false;
  if (!std::isnan(x[i]) || i >= model.features) return true;
  const std::int64_t mask = model.features + i;
  return x[mask] > (model.mean == nullptr ? 0.0f : model.mean[mask]);
}

// The index of the first bad number of x (B, I), or -1.
std::int64_t FindBad(const EdgernnModel& model, const float* x) {
  const std::int64_t width = model.sizes.input, count = model.sizes.batch * width;
  if (AllFinite(x, count)) return -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (IsBad(model, x + i / width * width, i % width)) return i;
  }
  return -1;
}

// Sets the state of one sequence of the batch to its initial value.
void ResetState(EdgernnModel* model, std::int64_t row) {
  const float* start = model->start;
  float* state = model->state;
  for (std::int64_t s = 0; s < model->state_count; ++s) {
    const std::int64_t width = model->state_widths[s];
    std::memcpy(state + row * width, start, static_cast<std::size_t>(width) * sizeof(float));
    start += width;
    state += model->sizes.batch * width;
  }
}

// Sets the held numbers and the count of bad steps of a sequence to their initial values.
void ResetInput(EdgernnModel* model, std::int64_t row) {
  model->nonfinite[row] = 0;
  const std::int64_t width = model->sizes.input;
  for (std::int64_t i = 0; i < width; ++i) {
    model->held[row * width + i] = model->mean != nullptr ? model->mean[i] : 0.0f;
  }
}

// Keeps the finite numbers of x (B, I) in model->held, which holds the last ones of the others.
// Counts the samples with bad numbers, and resets their states if the model is told to.
void Hold(EdgernnModel* model, const float* x) {
  const std::int64_t width = model->sizes.input;
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    bool bad = false;
    for (std::int64_t i = 0; i < width; ++i) {
      const float* const sample = x + b * width;
      bad |= IsBad(*model, sample, i);
      if (std::isfinite(sample[i])) model->held[b * width + i] = sample[i];
    }
    if (!bad) continue;
    ++model->nonfinite[b];
    if (model->on_nonfinite == EDGERNN_NONFINITE_RESET) ResetState(model, b);
  }
}

// Runs the graph on x. Adds the time of each step to `nanoseconds`, unless it is null.
void RunStep(EdgernnModel* model, const float* x, float* y, std::int64_t* nanoseconds = nullptr) {
  const std::int64_t batch = model->sizes.batch;
  for (std::int64_t b = 0; model->macs != nullptr && b < batch; ++b) {
    if (model->updates != nullptr) model->updates[b] = model->graph.updates;
    model->macs[b] = model->graph.macs;
  }
  RunGraph(model->graph, {0, x, y, model->scratch, model->updates, model->macs, nanoseconds});
}

// Sets *name to one of `count` names, or to null if `names` is.
EdgernnStatus FindName(const char* const* names, std::int64_t count, std::int64_t index,
                       const char** name) {
  if (index < 0 || index >= count) {
    Text text;
    text.Add("index: expected 0 to ").Add(count - 1);
    return text.Add(", got ").Add(index).Report(EDGERNN_BAD_ARGUMENT);
  }
  *name = names == nullptr ? nullptr : names[index];
  return EDGERNN_OK;
}

// Runs a step of a model of numbers.
EdgernnStatus StepOnNumbers(EdgernnModel* model, const float* x, float* y,
                            std::int64_t* nanoseconds) {
  if (IsNull(model, "model") || IsNull(x, "x") || IsNull(y, "y")) return EDGERNN_BAD_ARGUMENT;
  if (model->sizes.vocabulary > 0) {
    return Report(
        EDGERNN_BAD_ARGUMENT,
        "x: expected words, as the model reads words, got floats; use edgernn_step_words");
  }
  const FlushSubnormals flush;
  if (model->on_nonfinite != EDGERNN_NONFINITE_ERROR) {
    Hold(model, x);
    x = model->held;
  } else if (const std::int64_t bad = FindBad(*model, x); bad >= 0) {
    const char* const got = std::isnan(x[bad]) ? "nan" : x[bad] > 0.0f ? "inf" : "-inf";
    return Text()
        .Add("x: expected finite numbers, got ")
        .Add(got)
        .Add(" at index ")
        .Add(bad)
        .Report(EDGERNN_BAD_INPUT);
  }
  RunStep(model, x, y, nanoseconds);
  return EDGERNN_OK;
}

}  // namespace
}  // namespace edgernn

extern "C" {

using edgernn::Failure;
using edgernn::Guard;
using edgernn::IsNull;
using edgernn::PackedFile;
using edgernn::Report;
using edgernn::Text;

const char* edgernn_message(void) { return edgernn::LastMessage(); }

EdgernnStatus edgernn_memory(const void* data, std::size_t bytes, std::int64_t batch,
                             std::size_t* memory) {
  if (IsNull(data, "data") || IsNull(memory, "memory")) return EDGERNN_BAD_ARGUMENT;
  return Guard([&](Failure* failure) {
    PackedFile file(failure);
    return edgernn::CheckFile(data, batch, failure) && file.Open(data, bytes) &&
           edgernn::FindMemory(&file, batch, memory, failure);
  });
}

EdgernnStatus edgernn_open(const void* data, std::size_t bytes, std::int64_t batch, void* memory,
                           std::size_t memory_bytes, EdgernnModel** model) {
  if (IsNull(data, "data") || IsNull(memory, "memory") || IsNull(model, "model")) {
    return EDGERNN_BAD_ARGUMENT;
  }
  const EdgernnStatus status = Guard([&](Failure* failure) {
    return edgernn::Open(data, bytes, batch, memory, memory_bytes, failure);
  });
  if (status != EDGERNN_OK) return status;
  *model = static_cast<EdgernnModel*>(memory);
  return edgernn_reset(*model);
}

EdgernnStatus edgernn_sizes(const EdgernnModel* model, EdgernnSizes* sizes) {
  if (IsNull(model, "model") || IsNull(sizes, "sizes")) return EDGERNN_BAD_ARGUMENT;
  *sizes = model->sizes;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_step(EdgernnModel* model, const float* x, float* y) {
  return edgernn::StepOnNumbers(model, x, y, nullptr);
}

EdgernnStatus edgernn_profile(EdgernnModel* model, const float* x, float* y,
                              std::int64_t* nanoseconds, std::int64_t count) {
  if (IsNull(model, "model") || IsNull(nanoseconds, "nanoseconds")) return EDGERNN_BAD_ARGUMENT;
  const std::int64_t operations = model->graph.groups[0].step_count;
  if (count != operations) {
    Text text;
    text.Add("count: expected ").Add(operations).Add(", the operations of the model, got ");
    return text.Add(count).Report(EDGERNN_BAD_ARGUMENT);
  }
  return edgernn::StepOnNumbers(model, x, y, nanoseconds);
}

EdgernnStatus edgernn_step_words(EdgernnModel* model, const std::int64_t* x, float* y) {
  if (IsNull(model, "model") || IsNull(x, "x") || IsNull(y, "y")) return EDGERNN_BAD_ARGUMENT;
  if (model->sizes.vocabulary == 0) {
    return Report(EDGERNN_BAD_ARGUMENT,
                  "x: expected floats, as the model reads numbers, got words; use edgernn_step");
  }
  const edgernn::FlushSubnormals flush;
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    if (x[b] >= 0 && x[b] < model->sizes.vocabulary) continue;
    Text text;
    text.Add("x: expected word indices from 0 to ").Add(model->sizes.vocabulary - 1);
    return text.Add(", got ").Add(x[b]).Add(" at index ").Add(b).Report(EDGERNN_BAD_INPUT);
  }
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    model->words[b] = static_cast<float>(x[b]);
  }
  edgernn::RunStep(model, model->words, y);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_on_nonfinite(EdgernnModel* model, EdgernnNonfinite action) {
  if (IsNull(model, "model")) return EDGERNN_BAD_ARGUMENT;
  // a caller may pass any integer
  const int value = static_cast<int>(action);
  if (value < EDGERNN_NONFINITE_ERROR || value > EDGERNN_NONFINITE_RESET) {
    Text text;
    text.Add("action: expected a value of EdgernnNonfinite, got ").Add(std::int64_t{value});
    return text.Report(EDGERNN_BAD_ARGUMENT);
  }
  model->on_nonfinite = action;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_nonfinite(const EdgernnModel* model, const std::int64_t** counts) {
  if (IsNull(model, "model") || IsNull(counts, "counts")) return EDGERNN_BAD_ARGUMENT;
  *counts = model->nonfinite;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_reset(EdgernnModel* model) {
  if (IsNull(model, "model")) return EDGERNN_BAD_ARGUMENT;
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    edgernn::ResetState(model, b);
    edgernn::ResetInput(model, b);
  }
  return EDGERNN_OK;
}

EdgernnStatus edgernn_reset_row(EdgernnModel* model, std::int64_t row) {
  if (IsNull(model, "model")) return EDGERNN_BAD_ARGUMENT;
  if (row < 0 || row >= model->sizes.batch) {
    Text text;
    text.Add("row: expected 0 to ").Add(model->sizes.batch - 1);
    text.Add(", a sequence of the batch, got ").Add(row);
    return text.Report(EDGERNN_BAD_ARGUMENT);
  }
  edgernn::ResetState(model, row);
  edgernn::ResetInput(model, row);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_state(EdgernnModel* model, float** state) {
  if (IsNull(model, "model") || IsNull(state, "state")) return EDGERNN_BAD_ARGUMENT;
  *state = model->state;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_state_bytes(const EdgernnModel* model, std::size_t* bytes) {
  if (IsNull(model, "model") || IsNull(bytes, "bytes")) return EDGERNN_BAD_ARGUMENT;
  *bytes = edgernn::SavedStateBytes(*model);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_save_state(const EdgernnModel* model, void* data, std::size_t bytes) {
  if (IsNull(model, "model") || IsNull(data, "data")) return EDGERNN_BAD_ARGUMENT;
  return Guard([&](Failure* failure) {
    const std::size_t need = edgernn::SavedStateBytes(*model);
    if (bytes >= need) return edgernn::SaveState(*model, data, failure);
    return failure->Set(EDGERNN_BAD_ARGUMENT, "data: expected " + std::to_string(need) +
                                                  " bytes, got " + std::to_string(bytes) +
                                                  "; ask edgernn_state_bytes");
  });
}

EdgernnStatus edgernn_restore_state(EdgernnModel* model, const void* data, std::size_t bytes) {
  if (IsNull(model, "model") || IsNull(data, "data")) return EDGERNN_BAD_ARGUMENT;
  return Guard(
      [&](Failure* failure) { return edgernn::RestoreState(data, bytes, model, failure); });
}

EdgernnStatus edgernn_work(const EdgernnModel* model, const std::int64_t** updates,
                           const std::int64_t** macs) {
  if (IsNull(model, "model") || IsNull(updates, "updates") || IsNull(macs, "macs")) {
    return EDGERNN_BAD_ARGUMENT;
  }
  *updates = model->updates;
  *macs = model->macs;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_sample_rate(const EdgernnModel* model, std::int64_t* rate) {
  if (IsNull(model, "model") || IsNull(rate, "rate")) return EDGERNN_BAD_ARGUMENT;
  *rate = model->sample_rate;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_detection(const EdgernnModel* model, EdgernnDetection* detection) {
  if (IsNull(model, "model") || IsNull(detection, "detection")) return EDGERNN_BAD_ARGUMENT;
  *detection = model->detection;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_class_name(const EdgernnModel* model, std::int64_t index, const char** name) {
  if (IsNull(model, "model") || IsNull(name, "name")) return EDGERNN_BAD_ARGUMENT;
  return edgernn::FindName(model->class_names, model->sizes.output, index, name);
}

EdgernnStatus edgernn_channel_name(const EdgernnModel* model, std::int64_t index,
                                   const char** name) {
  if (IsNull(model, "model") || IsNull(name, "name")) return EDGERNN_BAD_ARGUMENT;
  return edgernn::FindName(model->channel_names, model->sizes.input, index, name);
}

EdgernnStatus edgernn_features(const EdgernnModel* model, const float** features,
                               std::int64_t* bands) {
  if (IsNull(model, "model") || IsNull(features, "features") || IsNull(bands, "bands")) {
    return EDGERNN_BAD_ARGUMENT;
  }
  *features = model->graph.features;
  *bands = model->graph.bands;
  return EDGERNN_OK;
}

}  // extern "C"
