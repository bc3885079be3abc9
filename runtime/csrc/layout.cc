// SPDX-License-Identifier: Apache-2.0

#include <string>
#include <vector>

#include "carver.h"
#include "model.h"

namespace edgernn {
namespace {

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

}  // namespace

std::size_t LayOut(const PackedFile& file, std::int64_t batch, void* memory) {
  return Layout(file, batch, memory).bytes();
}

}  // namespace edgernn
