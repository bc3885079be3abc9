// SPDX-License-Identifier: Apache-2.0
// The C functions of edgernn.h.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "packed/saved_state.h"

namespace edgernn {
namespace {

constexpr std::int64_t kMaxBatch = 1 << 16;

thread_local char last_message[512] = "";

// Stores the message that edgernn_message returns, and returns `status`.
EdgernnStatus Report(EdgernnStatus status, const char* message) {
  std::snprintf(last_message, sizeof last_message, "%s", message);
  return status;
}

// Calls `body` and turns its exceptions into a status.
template <class Body>
EdgernnStatus Guard(const Body& body) {
  try {
    body();
    return EDGERNN_OK;
  } catch (const Failure& failure) {
    return Report(failure.status, failure.message.c_str());
  } catch (const InvalidArgument& error) {
    return Report(EDGERNN_BAD_MODEL, (std::string("packed model: ") + error.what()).c_str());
  } catch (const std::bad_alloc&) {
    return Report(EDGERNN_BAD_ARGUMENT, "out of memory");
  } catch (const std::exception& error) {
    return Report(EDGERNN_BAD_MODEL, error.what());
  }
}

// Returns true, and stores a message, if the pointer is null.
bool IsNull(const void* pointer, const char* name) {
  if (pointer != nullptr) return false;
  std::snprintf(last_message, sizeof last_message, "%s: expected a pointer, got null", name);
  return true;
}

void CheckNotNull(const void* pointer, const char* name) {
  if (IsNull(pointer, name)) throw Failure{EDGERNN_BAD_ARGUMENT, last_message};
}

void CheckFile(const void* data, std::int64_t batch) {
  CheckNotNull(data, "data");
  if (reinterpret_cast<std::uintptr_t>(data) % 8 != 0) {
    throw Failure{EDGERNN_BAD_ARGUMENT,
                  "data: expected an alignment of 8 bytes, got an unaligned pointer"};
  }
  if (batch < 1 || batch > kMaxBatch) {
    throw Failure{EDGERNN_BAD_ARGUMENT, "batch: expected 1 to " + std::to_string(kMaxBatch) +
                                            ", got " + std::to_string(batch)};
  }
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

// Number i of the input, as the first layer reads it.
float Standardise(const EdgernnModel& model, float number, std::int64_t i) {
  return model.mean == nullptr ? number : (number - model.mean[i]) / model.std[i];
}

// True if number i of a sample x (I,) is not finite. A NaN is not bad where an imputer fills it.
bool IsBad(const EdgernnModel& model, const float* x, std::int64_t i) {
  if (std::isfinite(x[i])) return false;
  if (!std::isnan(x[i]) || i >= model.features) return true;
  const std::int64_t mask = model.features + i;
  return Standardise(model, x[mask], mask) > 0.0f;
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
  const std::int64_t batch = model->sizes.batch;
  std::int64_t at = 0;
  for (std::int64_t s = 0; s < model->state_count; ++s) {
    const std::int64_t width = model->state_widths[s], of_row = at + row * width;
    std::memcpy(model->state + of_row, model->start + of_row,
                static_cast<std::size_t>(width) * sizeof(float));
    at += batch * width;
  }
}

// Sets what a sequence keeps of its inputs to its initial value.
void ResetInput(EdgernnModel* model, std::int64_t row) {
  model->nonfinite[row] = 0;
  const std::int64_t width = model->sizes.input;
  for (std::int64_t i = 0; i < width; ++i) {
    // the mean of a model with a front end is that of its features
    const bool has_mean = model->mean != nullptr && model->frontend.hop == 0;
    model->held[row * width + i] = has_mean ? model->mean[i] : 0.0f;
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

// Runs one step of all layers and the head, from x (B, width).
void Step(EdgernnModel* model, const float* x, float* y) {
  const std::int64_t batch = model->sizes.batch;
  const bool counts = model->updates != nullptr;
  for (std::int64_t b = 0; counts && b < batch; ++b) model->updates[b] = model->macs[b] = 0;
  for (std::int64_t i = 0; i < model->layer_count; ++i) {
    ModelLayer& layer = model->layers[i];
    layer.call.x = x;
    layer.op.Run(layer.sizes, layer.packed, layer.call, model->scratch);
    x = layer.call.state_out[0];
    if (!layer.skips) continue;
    for (std::int64_t b = 0; b < batch; ++b) {
      model->updates[b] += model->layer_updates[b];
      model->macs[b] += model->layer_macs[b];
    }
  }
  const std::int64_t width = model->layers[model->layer_count - 1].sizes.hidden;
  if (model->head == nullptr) {
    std::memcpy(y, x, static_cast<std::size_t>(batch * width) * sizeof(float));
  } else {
    model->table->linear.run(model->head, width, model->sizes.output, x, batch, y, model->scratch);
  }
}

}  // namespace
}  // namespace edgernn

extern "C" {

using edgernn::BuildModel;
using edgernn::CheckNotNull;
using edgernn::Failure;
using edgernn::Guard;
using edgernn::IsNull;
using edgernn::PackedFile;
using edgernn::Report;

const char* edgernn_message(void) { return edgernn::last_message; }

EdgernnStatus edgernn_memory(const void* data, std::size_t bytes, std::int64_t batch,
                             std::size_t* memory) {
  return Guard([&] {
    edgernn::CheckFile(data, batch);
    CheckNotNull(memory, "memory");
    *memory = BuildModel(PackedFile(data, bytes), batch, nullptr);
  });
}

EdgernnStatus edgernn_open(const void* data, std::size_t bytes, std::int64_t batch, void* memory,
                           std::size_t memory_bytes, EdgernnModel** model) {
  return Guard([&] {
    edgernn::CheckFile(data, batch);
    CheckNotNull(memory, "memory");
    CheckNotNull(model, "model");
    if (reinterpret_cast<std::uintptr_t>(memory) % EDGERNN_ALIGNMENT != 0) {
      throw Failure{EDGERNN_BAD_ARGUMENT, "memory: expected an alignment of " +
                                              std::to_string(EDGERNN_ALIGNMENT) +
                                              " bytes, got an unaligned pointer"};
    }
    // checks the file once, as the checksum reads all of it
    const PackedFile file(data, bytes);
    const std::size_t need = BuildModel(file, batch, nullptr);
    if (memory_bytes < need) {
      throw Failure{EDGERNN_BAD_ARGUMENT, "memory: expected " + std::to_string(need) +
                                              " bytes, got " + std::to_string(memory_bytes)};
    }
    BuildModel(file, batch, memory);
    *model = static_cast<EdgernnModel*>(memory);
    edgernn_reset(*model);
  });
}

EdgernnStatus edgernn_sizes(const EdgernnModel* model, EdgernnSizes* sizes) {
  if (IsNull(model, "model") || IsNull(sizes, "sizes")) return EDGERNN_BAD_ARGUMENT;
  *sizes = model->sizes;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_step(EdgernnModel* model, const float* x, float* y) {
  if (IsNull(model, "model") || IsNull(x, "x") || IsNull(y, "y")) return EDGERNN_BAD_ARGUMENT;
  if (model->sizes.vocabulary > 0) {
    return Report(
        EDGERNN_BAD_ARGUMENT,
        "x: expected words, as the model reads words, got floats; use edgernn_step_words");
  }
  if (model->on_nonfinite != EDGERNN_NONFINITE_ERROR) {
    edgernn::Hold(model, x);
    x = model->held;
  } else if (const std::int64_t bad = edgernn::FindBad(*model, x); bad >= 0) {
    char text[96];
    std::snprintf(text, sizeof text, "x: expected finite numbers, got %g at index %lld",
                  static_cast<double>(x[bad]), static_cast<long long>(bad));
    return Report(EDGERNN_BAD_INPUT, text);
  }
  if (model->frontend.hop > 0) {
    edgernn::RunFrontend(model->frontend, model->sizes.batch, x, model->x);
    x = model->x;
  }
  if (model->mean == nullptr) {
    edgernn::Step(model, x, y);
    return EDGERNN_OK;
  }
  const std::int64_t width = model->width;
  for (std::int64_t i = 0; i < model->sizes.batch * width; ++i) {
    model->x[i] = edgernn::Standardise(*model, x[i], i % width);
  }
  edgernn::Step(model, model->x, y);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_step_words(EdgernnModel* model, const std::int64_t* x, float* y) {
  if (IsNull(model, "model") || IsNull(x, "x") || IsNull(y, "y")) return EDGERNN_BAD_ARGUMENT;
  if (model->sizes.vocabulary == 0) {
    return Report(EDGERNN_BAD_ARGUMENT,
                  "x: expected floats, as the model reads numbers, got words; use edgernn_step");
  }
  const std::int64_t width = model->width;
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    if (x[b] >= 0 && x[b] < model->sizes.vocabulary) continue;
    char text[96];
    std::snprintf(text, sizeof text,
                  "x: expected word indices from 0 to %lld, got %lld at index %lld",
                  static_cast<long long>(model->sizes.vocabulary - 1), static_cast<long long>(x[b]),
                  static_cast<long long>(b));
    return Report(EDGERNN_BAD_INPUT, text);
  }
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    for (std::int64_t i = 0; i < width; ++i) {
      model->x[b * width + i] = model->embedding[x[b] * width + i];
    }
  }
  edgernn::Step(model, model->x, y);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_on_nonfinite(EdgernnModel* model, EdgernnNonfinite action) {
  if (IsNull(model, "model")) return EDGERNN_BAD_ARGUMENT;
  // a caller may pass any integer
  const int value = static_cast<int>(action);
  if (value < EDGERNN_NONFINITE_ERROR || value > EDGERNN_NONFINITE_RESET) {
    char text[96];
    std::snprintf(text, sizeof text, "action: expected a value of EdgernnNonfinite, got %d", value);
    return Report(EDGERNN_BAD_ARGUMENT, text);
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
  std::memcpy(model->state, model->start,
              static_cast<std::size_t>(model->sizes.state) * sizeof(float));
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) edgernn::ResetInput(model, b);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_reset_row(EdgernnModel* model, std::int64_t row) {
  if (IsNull(model, "model")) return EDGERNN_BAD_ARGUMENT;
  if (row < 0 || row >= model->sizes.batch) {
    char text[96];
    std::snprintf(text, sizeof text, "row: expected 0 to %lld, a sequence of the batch, got %lld",
                  static_cast<long long>(model->sizes.batch - 1), static_cast<long long>(row));
    return Report(EDGERNN_BAD_ARGUMENT, text);
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
  return Guard([&] {
    CheckNotNull(model, "model");
    CheckNotNull(data, "data");
    const std::size_t need = edgernn::SavedStateBytes(*model);
    if (bytes < need) {
      throw Failure{EDGERNN_BAD_ARGUMENT, "data: expected " + std::to_string(need) +
                                              " bytes, got " + std::to_string(bytes) +
                                              "; ask edgernn_state_bytes"};
    }
    edgernn::SaveState(*model, data);
  });
}

EdgernnStatus edgernn_restore_state(EdgernnModel* model, const void* data, std::size_t bytes) {
  return Guard([&] {
    CheckNotNull(model, "model");
    CheckNotNull(data, "data");
    edgernn::RestoreState(data, bytes, model);
  });
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

}  // extern "C"
