// SPDX-License-Identifier: Apache-2.0
// The plain C functions of edgernn.h: a packed model, laid out in the caller's memory.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "carver.h"
#include "op.h"
#include "packed.h"

namespace edgernn {
namespace {

constexpr std::int64_t kMaxBatch = 1 << 16;

// One layer of a model.
struct Layer {
  const Op* op;
  Sizes sizes;
  const void* packed;
  Call call;  // of one step, but for x
};

}  // namespace
}  // namespace edgernn

struct EdgernnModel {
  EdgernnSizes sizes;
  std::int64_t width;  // of what the first layer reads
  const edgernn::KernelTable* table;
  edgernn::Values embedding;  // (V, I), in the file
  const float* mean;          // (I,), or null
  const float* std;           // likewise
  float* x;                   // (B, I): what the first layer reads
  edgernn::Layer* layers;
  std::int64_t layer_count;
  float* state;        // of all layers and states, (B, width) each
  const float* start;  // likewise, what a sequence starts from
  const void* head;    // or null
  void* scratch;
  std::int64_t* updates;        // (B,), or null
  std::int64_t* macs;           // likewise
  std::int64_t* layer_updates;  // (B,), of one layer
  std::int64_t* layer_macs;     // likewise
};

namespace edgernn {
namespace {

thread_local char last_message[512] = "";

EdgernnStatus Say(EdgernnStatus status, const char* message) {
  std::snprintf(last_message, sizeof last_message, "%s", message);
  return status;
}

// Calls `body`; what it throws becomes a status.
template <class Body>
EdgernnStatus Guard(const Body& body) {
  try {
    body();
    return EDGERNN_OK;
  } catch (const Failure& failure) {
    return Say(failure.status, failure.message.c_str());
  } catch (const InvalidArgument& error) {
    return Say(EDGERNN_BAD_MODEL, (std::string("the packed model: ") + error.what()).c_str());
  } catch (const std::bad_alloc&) {
    return Say(EDGERNN_BAD_ARGUMENT, "out of memory");
  } catch (const std::exception& error) {
    return Say(EDGERNN_BAD_MODEL, error.what());
  }
}

void CheckGiven(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Failure{EDGERNN_BAD_ARGUMENT, std::string(name) + " is null"};
}

const Op& FindOp(const KernelTable& table, const std::string& name) {
  for (const Op& op : ListOps(table)) {
    if (op.spec.name == name) return op;
  }
  throw Failure{EDGERNN_UNSUPPORTED, "the library has no op " + name + "; update edgernn"};
}

// The numbers of a vector, in memory of their own.
float* Copy(const Tensor& vector, Carver* carver) {
  const std::int64_t count = vector.shape[0];
  float* const to = carver->Take<float>(count);
  for (std::int64_t i = 0; to != nullptr && i < count; ++i) to[i] = vector.values[i];
  return to;
}

// Lays a model out in memory, or without any only says how much it takes.
class Layout {
 public:
  Layout(const PackedFile& file, std::int64_t batch, void* memory)
      : file_(file), batch_(batch), carver_(memory) {
    const KernelChoice& choice = ChooseKernels();
    if (choice.table == nullptr) throw Failure{EDGERNN_UNSUPPORTED, choice.error};
    // at the start of the memory, where the caller gets it
    EdgernnModel* const place = carver_.Take<EdgernnModel>(1);
    made_.table = choice.table;
    TakeInput();
    TakeLayers();
    TakeHead();
    file_.CheckAllTaken();
    made_.scratch = carver_.Take(scratch_);
    if (place != nullptr) *place = made_;
  }

  std::size_t bytes() const { return carver_.used(); }

 private:
  void TakeInput() {
    const PackedHeader& header = file_.header();
    made_.width = header.input;
    made_.sizes.batch = batch_;
    made_.sizes.output = header.output;
    made_.sizes.vocabulary = header.vocabulary;
    if (header.vocabulary > 0) {
      made_.embedding = file_.Take("E", {header.vocabulary, header.input}).values;
    } else {
      made_.sizes.input = header.input;
    }
    if ((header.flags & kStandardises) != 0) {
      made_.mean = Copy(file_.Take("mean", {header.input}), &carver_);
      made_.std = Copy(file_.Take("std", {header.input}), &carver_);
    }
    made_.x = carver_.Take<float>(batch_ * header.input);
  }

  void TakeLayers() {
    made_.layer_count = file_.header().layers;
    made_.layers = carver_.Take<Layer>(made_.layer_count);
    std::int64_t width = made_.width;
    std::vector<Tensor> starts;
    std::vector<Layer> layers;
    for (std::uint32_t i = 0; i < file_.header().layers; ++i) {
      layers.push_back(TakeLayer(i, width, &starts));
      width = layers.back().sizes.hidden;
    }
    width_ = width;
    bool counts = false;
    for (const Layer& layer : layers) counts |= layer.op->spec.skips;
    if (counts) {
      for (std::int64_t** to :
           {&made_.updates, &made_.macs, &made_.layer_updates, &made_.layer_macs}) {
        *to = carver_.Take<std::int64_t>(batch_);
      }
    }
    TakeStates(starts, &layers);
    for (std::size_t i = 0; made_.layers != nullptr && i < layers.size(); ++i) {
      made_.layers[i] = layers[i];
    }
  }

  Layer TakeLayer(std::uint32_t index, std::int64_t width, std::vector<Tensor>* starts) {
    const Op& op = FindOp(*made_.table, file_.Op(index));
    std::vector<Tensor> weights;
    for (std::size_t i = 0; i < op.spec.weights.size(); ++i) weights.push_back(file_.Take());
    Layer layer{&op, op.CheckWeights(weights), nullptr, {}};
    if (op.InputWidth(layer.sizes) != width) {
      throw Failure{EDGERNN_BAD_MODEL, "the packed model: layer " + std::to_string(index) +
                                           " reads " + std::to_string(op.InputWidth(layer.sizes)) +
                                           " numbers and is given " + std::to_string(width)};
    }
    for (const StateInput& state : op.spec.states) {
      starts->push_back(file_.Take(state.name, {Op::Width(state.extent, layer.sizes)}));
    }
    void* const packed = carver_.Take(op.PackedBytes(layer.sizes));
    if (packed != nullptr) op.Pack(layer.sizes, weights, packed);
    layer.packed = packed;
    layer.call.steps = layer.call.length = 1;
    layer.call.batch = batch_;
    made_.sizes.neurons += layer.sizes.hidden;
    Grow(op.ScratchBytes(layer.sizes, 1, batch_));
    return layer;
  }

  // All states side by side, and what they start from.
  void TakeStates(const std::vector<Tensor>& starts, std::vector<Layer>* layers) {
    for (const Tensor& start : starts) made_.sizes.state += batch_ * start.shape[0];
    made_.state = carver_.Take<float>(made_.sizes.state);
    float* const start = carver_.Take<float>(made_.sizes.state);
    made_.start = start;
    std::int64_t at = 0;
    std::size_t tensor = 0;
    for (Layer& layer : *layers) {
      if (layer.op->spec.skips) {
        layer.call.updates = made_.layer_updates;
        layer.call.macs = made_.layer_macs;
      }
      for (std::size_t s = 0; s < layer.op->spec.states.size(); ++s, ++tensor) {
        const std::int64_t width = starts[tensor].shape[0];
        if (made_.state != nullptr) {
          const Extent extent = layer.op->spec.states[s].extent;
          const StatePlace place = Op::PlaceOf(&layer.call, extent, s);
          *place.in = *place.out = made_.state + at;
          for (std::int64_t i = 0; i < batch_ * width; ++i) {
            start[at + i] = starts[tensor].values[i % width];
          }
        }
        at += batch_ * width;
      }
    }
  }

  void TakeHead() {
    const PackedHeader& header = file_.header();
    const std::int64_t outputs = header.output;
    if ((header.flags & kHasHead) == 0) {
      if (outputs == width_) return;
      throw Failure{EDGERNN_BAD_MODEL, "the packed model: " + std::to_string(outputs) +
                                           " outputs of " + std::to_string(width_) +
                                           " neurons and no head"};
    }
    const Tensor w = file_.Take("W of the head", {outputs, width_});
    const Tensor b = file_.Take("b of the head", {outputs});
    const Linear& linear = made_.table->linear;
    void* const packed = carver_.Take(linear.packed_bytes(width_, outputs));
    if (packed != nullptr) linear.pack(w.values, b.values, width_, outputs, packed);
    made_.head = packed;
    Grow(linear.scratch_bytes(outputs, batch_));
  }

  void Grow(std::size_t bytes) { scratch_ = bytes > scratch_ ? bytes : scratch_; }

  PackedFile file_;
  const std::int64_t batch_;
  Carver carver_;
  EdgernnModel made_{};
  std::int64_t width_ = 0;
  std::size_t scratch_ = 0;
};

void CheckFile(const void* data, std::int64_t batch) {
  CheckGiven(data, "data");
  if (reinterpret_cast<std::uintptr_t>(data) % 8 != 0) {
    throw Failure{EDGERNN_BAD_ARGUMENT, "data: expected to start at a multiple of 8 bytes"};
  }
  if (batch < 1 || batch > kMaxBatch) {
    throw Failure{EDGERNN_BAD_ARGUMENT, "batch: expected 1 to " + std::to_string(kMaxBatch) +
                                            ", got " + std::to_string(batch)};
  }
}

// The first of `count` numbers that is not finite, or -1.
std::int64_t FindNotFinite(const float* from, std::int64_t count) {
  std::uint32_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    found |= (bits & 0x7f800000u) == 0x7f800000u;
  }
  if (found == 0) return -1;
  std::int64_t at = 0;
  while (std::isfinite(from[at])) ++at;
  return at;
}

// One step of what is in model->x, or at `x`.
void Step(EdgernnModel* model, const float* x, float* y) {
  const std::int64_t batch = model->sizes.batch;
  const bool counts = model->updates != nullptr;
  for (std::int64_t b = 0; counts && b < batch; ++b) model->updates[b] = model->macs[b] = 0;
  for (std::int64_t i = 0; i < model->layer_count; ++i) {
    Layer& layer = model->layers[i];
    layer.call.x = x;
    layer.op->Run(layer.sizes, layer.packed, layer.call, model->scratch);
    x = layer.call.state_out[0];
    if (!layer.op->spec.skips) continue;
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

using edgernn::CheckGiven;
using edgernn::Failure;
using edgernn::Guard;
using edgernn::Layout;
using edgernn::PackedFile;
using edgernn::Say;

const char* edgernn_message(void) { return edgernn::last_message; }

EdgernnStatus edgernn_memory(const void* data, std::size_t bytes, std::int64_t batch,
                             std::size_t* memory) {
  return Guard([&] {
    edgernn::CheckFile(data, batch);
    CheckGiven(memory, "memory");
    *memory = Layout(PackedFile(data, bytes), batch, nullptr).bytes();
  });
}

EdgernnStatus edgernn_open(const void* data, std::size_t bytes, std::int64_t batch, void* memory,
                           std::size_t memory_bytes, EdgernnModel** model) {
  return Guard([&] {
    edgernn::CheckFile(data, batch);
    CheckGiven(memory, "memory");
    CheckGiven(model, "model");
    if (reinterpret_cast<std::uintptr_t>(memory) % EDGERNN_ALIGNMENT != 0) {
      throw Failure{EDGERNN_BAD_ARGUMENT, "memory: expected to start at a multiple of " +
                                              std::to_string(EDGERNN_ALIGNMENT) + " bytes"};
    }
    // which reads all of the file, for its checksum
    const PackedFile file(data, bytes);
    const std::size_t need = Layout(file, batch, nullptr).bytes();
    if (memory_bytes < need) {
      throw Failure{EDGERNN_BAD_ARGUMENT, "memory: expected " + std::to_string(need) +
                                              " bytes, got " + std::to_string(memory_bytes)};
    }
    Layout(file, batch, memory);
    *model = static_cast<EdgernnModel*>(memory);
    edgernn_reset(*model);
  });
}

EdgernnStatus edgernn_sizes(const EdgernnModel* model, EdgernnSizes* sizes) {
  if (model == nullptr || sizes == nullptr) return Say(EDGERNN_BAD_ARGUMENT, "a null pointer");
  *sizes = model->sizes;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_step(EdgernnModel* model, const float* x, float* y) {
  if (model == nullptr || x == nullptr || y == nullptr) {
    return Say(EDGERNN_BAD_ARGUMENT, "a null pointer");
  }
  if (model->sizes.vocabulary > 0) {
    return Say(EDGERNN_BAD_ARGUMENT, "x: this model reads words; use edgernn_step_words");
  }
  const std::int64_t width = model->width, count = model->sizes.batch * width;
  const std::int64_t bad = edgernn::FindNotFinite(x, count);
  if (bad >= 0) {
    char text[96];
    std::snprintf(text, sizeof text, "x: expected finite numbers, got %g at index %lld",
                  static_cast<double>(x[bad]), static_cast<long long>(bad));
    return Say(EDGERNN_BAD_INPUT, text);
  }
  if (model->mean == nullptr) {
    edgernn::Step(model, x, y);
    return EDGERNN_OK;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t column = i % width;
    model->x[i] = (x[i] - model->mean[column]) / model->std[column];
  }
  edgernn::Step(model, model->x, y);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_step_words(EdgernnModel* model, const std::int64_t* x, float* y) {
  if (model == nullptr || x == nullptr || y == nullptr) {
    return Say(EDGERNN_BAD_ARGUMENT, "a null pointer");
  }
  if (model->sizes.vocabulary == 0) {
    return Say(EDGERNN_BAD_ARGUMENT, "x: this model reads numbers; use edgernn_step");
  }
  const std::int64_t width = model->width;
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    if (x[b] >= 0 && x[b] < model->sizes.vocabulary) continue;
    char text[96];
    std::snprintf(text, sizeof text, "x: expected words from 0 to %lld, got %lld at index %lld",
                  static_cast<long long>(model->sizes.vocabulary - 1), static_cast<long long>(x[b]),
                  static_cast<long long>(b));
    return Say(EDGERNN_BAD_INPUT, text);
  }
  for (std::int64_t b = 0; b < model->sizes.batch; ++b) {
    for (std::int64_t i = 0; i < width; ++i) {
      model->x[b * width + i] = model->embedding[x[b] * width + i];
    }
  }
  edgernn::Step(model, model->x, y);
  return EDGERNN_OK;
}

EdgernnStatus edgernn_reset(EdgernnModel* model) {
  if (model == nullptr) return Say(EDGERNN_BAD_ARGUMENT, "a null pointer");
  std::memcpy(model->state, model->start,
              static_cast<std::size_t>(model->sizes.state) * sizeof(float));
  return EDGERNN_OK;
}

EdgernnStatus edgernn_state(EdgernnModel* model, float** state) {
  if (model == nullptr || state == nullptr) return Say(EDGERNN_BAD_ARGUMENT, "a null pointer");
  *state = model->state;
  return EDGERNN_OK;
}

EdgernnStatus edgernn_work(const EdgernnModel* model, const std::int64_t** updates,
                           const std::int64_t** macs) {
  if (model == nullptr || updates == nullptr || macs == nullptr) {
    return Say(EDGERNN_BAD_ARGUMENT, "a null pointer");
  }
  *updates = model->updates;
  *macs = model->macs;
  return EDGERNN_OK;
}

}  // extern "C"
