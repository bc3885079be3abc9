// SPDX-License-Identifier: Apache-2.0
// Builds the model of a packed file in the caller's memory.

#include <string>
#include <vector>

#include "common/arena.h"
#include "packed/model.h"

namespace edgernn {
namespace {

// Finds the op of a layer, whose cell may be defined in the file.
std::shared_ptr<const Op> RequireOp(const KernelTable& table, const PackedFile& file,
                                    const PackedLayer& layer) {
  const std::string name = PackedFile::NameOf(layer);
  const std::shared_ptr<const Op> op =
      layer.cell == 0 ? std::shared_ptr<const Op>(std::shared_ptr<const Op>(), FindOp(table, name))
                      : MakeProgramOp(table, name, file.Cell(layer));
  if (op != nullptr) return op;
  throw Failure{EDGERNN_UNSUPPORTED, "the library has no kernel for " + name + "; update edgernn"};
}

// Copies a vector to the arena as floats.
float* Copy(const Tensor& vector, Arena* arena) {
  const std::int64_t count = vector.shape[0];
  float* const to = arena->Allocate<float>(count);
  for (std::int64_t i = 0; to != nullptr && i < count; ++i) to[i] = vector.values[i];
  return to;
}

class ModelBuilder {
  // A layer, and its op, which lives only while the model is built.
  struct Layer {
    std::shared_ptr<const Op> op;
    ModelLayer model;
  };

 public:
  ModelBuilder(const PackedFile& file, std::int64_t batch, void* memory)
      : file_(file), batch_(batch), arena_(memory) {
    const KernelChoice& choice = ChooseKernels();
    if (choice.table == nullptr) throw Failure{EDGERNN_UNSUPPORTED, choice.error};
    // at the start of the memory, as edgernn_open returns this address
    EdgernnModel* const place = arena_.Allocate<EdgernnModel>(1);
    model_.table = choice.table;
    BuildInput();
    BuildLayers();
    BuildHead();
    file_.CheckAllRead();
    model_.scratch = arena_.Allocate(scratch_);
    if (place != nullptr) *place = model_;
  }

  std::size_t bytes() const { return arena_.used(); }

 private:
  void BuildInput() {
    const PackedHeader& header = file_.header();
    model_.file_bytes = header.bytes;
    model_.file_checksum = header.checksum;
    model_.width = header.input;
    model_.sizes.batch = batch_;
    model_.sizes.output = header.output;
    model_.sizes.vocabulary = header.vocabulary;
    if (header.vocabulary > 0) {
      model_.embedding = file_.NextTensor("E", {header.vocabulary, header.input}).values;
    } else {
      model_.sizes.input = header.hop > 0 ? header.hop : header.input;
    }
    if (header.hop > 0) {
      model_.frontend = BuildFrontend(&file_, header.hop, header.input, &starts_, &arena_);
    }
    if ((header.flags & kStandardises) != 0) {
      model_.mean = Copy(file_.NextTensor("mean", {header.input}), &arena_);
      model_.std = Copy(file_.NextTensor("std", {header.input}), &arena_);
    }
    model_.x = arena_.Allocate<float>(batch_ * header.input);
    model_.held = arena_.Allocate<float>(batch_ * model_.sizes.input);
    model_.nonfinite = arena_.Allocate<std::int64_t>(batch_);
  }

  void BuildLayers() {
    model_.layer_count = file_.header().layers;
    model_.layers = arena_.Allocate<ModelLayer>(model_.layer_count);
    std::int64_t width = model_.width;
    std::vector<Layer> layers;
    for (std::uint32_t i = 0; i < file_.header().layers; ++i) {
      layers.push_back(BuildLayer(i, width));
      width = layers.back().model.sizes.hidden;
    }
    width_ = width;
    bool counts = false;
    for (const Layer& layer : layers) counts |= layer.model.skips;
    if (counts) {
      for (std::int64_t** to :
           {&model_.updates, &model_.macs, &model_.layer_updates, &model_.layer_macs}) {
        *to = arena_.Allocate<std::int64_t>(batch_);
      }
    }
    BuildStates(&layers);
    for (std::size_t i = 0; model_.layers != nullptr && i < layers.size(); ++i) {
      model_.layers[i] = layers[i].model;
    }
  }

  Layer BuildLayer(std::uint32_t index, std::int64_t width) {
    const PackedLayer record = file_.Layer(index);
    const std::shared_ptr<const Op> owner = RequireOp(*model_.table, file_, record);
    const Op& op = *owner;
    const bool all = op.HasOptionalWeight(record.tensors);
    std::vector<Tensor> weights;
    for (const WeightInput& weight : op.spec.weights) {
      weights.push_back(all || !weight.MayBeAbsent() ? file_.NextTensor() : Tensor{});
    }
    const auto group_size = static_cast<std::int64_t>(record.group_size);
    ModelLayer layer{op, op.spec.skips, op.CheckWeights(weights, group_size), nullptr, {}};
    if (op.InputWidth(layer.sizes) != width) {
      throw Failure{EDGERNN_BAD_MODEL, "packed model: layer " + std::to_string(index) +
                                           ": expected weights for " + std::to_string(width) +
                                           " inputs, got weights for " +
                                           std::to_string(op.InputWidth(layer.sizes))};
    }
    if (index == 0 && op.spec.imputes) {
      if (model_.frontend.hop > 0) {
        throw Failure{EDGERNN_BAD_MODEL,
                      "packed model: front end: expected no imputer, got one in the first layer"};
      }
      model_.features = Features(layer.sizes);
    }
    for (const StateInput& state : op.spec.states) {
      starts_.push_back(file_.NextTensor(state.name, {Width(state.extent, layer.sizes)}));
    }
    void* const packed = arena_.Allocate(op.PackedBytes(layer.sizes));
    if (packed != nullptr) op.Pack(layer.sizes, op.Arrange(weights), packed);
    layer.packed = packed;
    // a cell that is defined in the file must live as long as the model
    if (op.program != nullptr) layer.op.kernel.cell = CopyCell(*op.program, &arena_);
    layer.call.steps = layer.call.length = 1;
    layer.call.batch = batch_;
    model_.sizes.neurons += layer.sizes.hidden;
    Grow(op.ScratchBytes(layer.sizes, 1, batch_));
    return {owner, layer};
  }

  // Allocates the states of the front end and of all layers contiguously, and their initial values.
  void BuildStates(std::vector<Layer>* layers) {
    for (const Tensor& start : starts_) model_.sizes.state += batch_ * start.shape[0];
    model_.state = arena_.Allocate<float>(model_.sizes.state);
    float* const start = arena_.Allocate<float>(model_.sizes.state);
    model_.start = start;
    model_.state_count = static_cast<std::int64_t>(starts_.size());
    std::int64_t* const widths = arena_.Allocate<std::int64_t>(model_.state_count);
    model_.state_widths = widths;
    // places of the states, in the order of the file
    std::vector<float*> places;
    std::int64_t at = 0;
    for (const Tensor& value : starts_) {
      const std::int64_t width = value.shape[0];
      if (model_.state != nullptr) {
        widths[places.size()] = width;
        for (std::int64_t i = 0; i < batch_ * width; ++i) start[at + i] = value.values[i % width];
      }
      places.push_back(model_.state == nullptr ? nullptr : model_.state + at);
      at += batch_ * width;
    }
    std::size_t next = 0;
    const Frontend& frontend = model_.frontend;
    if (frontend.window_size > frontend.hop) model_.frontend.samples = places[next++];
    if (frontend.normalisation != Normalisation::kLog) model_.frontend.followed = places[next++];
    for (Layer& layer : *layers) {
      Call& call = layer.model.call;
      if (layer.model.skips) {
        call.updates = model_.layer_updates;
        call.macs = model_.layer_macs;
      }
      for (const StateInput& state : layer.op->spec.states) {
        float* const values = places[next++];
        if (values == nullptr) continue;
        const StatePlace place = Op::PlaceOf(&call, state);
        *place.in = *place.out = values;
      }
    }
  }

  void BuildHead() {
    const PackedHeader& header = file_.header();
    const std::int64_t outputs = header.output;
    if ((header.flags & kHasHead) == 0) {
      if (outputs == width_) return;
      throw Failure{EDGERNN_BAD_MODEL, "packed model: output: expected " + std::to_string(width_) +
                                           ", as there is no head, got " + std::to_string(outputs)};
    }
    const Tensor w = file_.NextTensor("W of the head", {outputs, width_});
    const Tensor b = file_.NextTensor("b of the head", {outputs});
    const Linear& linear = model_.table->linear;
    void* const packed = arena_.Allocate(linear.packed_bytes(width_, outputs));
    if (packed != nullptr) linear.pack(w.values, b.values, width_, outputs, packed);
    model_.head = packed;
    Grow(linear.scratch_bytes(outputs, batch_));
  }

  void Grow(std::size_t bytes) { scratch_ = bytes > scratch_ ? bytes : scratch_; }

  PackedFile file_;
  const std::int64_t batch_;
  Arena arena_;
  EdgernnModel model_{};
  std::vector<Tensor> starts_;  // initial values of the states
  std::int64_t width_ = 0;
  std::size_t scratch_ = 0;
};

}  // namespace

std::size_t BuildModel(const PackedFile& file, std::int64_t batch, void* memory) {
  return ModelBuilder(file, batch, memory).bytes();
}

}  // namespace edgernn
