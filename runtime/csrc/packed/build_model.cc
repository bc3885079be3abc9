// SPDX-License-Identifier: Apache-2.0
// Builds the model of a packed file in the caller's memory.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/arena.h"
#include "packed/model.h"
#include "packed/read_linear.h"

namespace edgernn {
namespace {

// True if one of `count` names is not empty; `names` may be null.
bool HasName(const char* const* names, std::uint32_t count) {
  return names != nullptr &&
         std::any_of(names, names + count, [](const char* name) { return *name != '\0'; });
}

class ModelBuilder {
  // A layer, and its op, which lives only while the model is built.
  struct Layer {
    std::shared_ptr<const Op> op;
    ModelLayer model;
  };

 public:
  ModelBuilder(PackedFile* file, std::int64_t batch, void* memory, Failure* failure)
      : file_(*file), batch_(batch), failure_(*failure), arena_(memory) {}

  bool Build() {
    const KernelChoice& choice = ChooseKernels();
    if (choice.table == nullptr) return failure_.Set(EDGERNN_UNSUPPORTED, choice.error);
    // at the start of the memory, as edgernn_open returns this address
    EdgernnModel* const place = arena_.Allocate<EdgernnModel>(1);
    model_.table = choice.table;
    file_.Rewind();
    if (!BuildInput()) return false;
    const bool valid =
        file_.has_graph() ? BuildSteps() : BuildLayers() && BuildHead() && file_.CheckAllRead();
    if (!valid) return false;
    model_.scratch = arena_.Allocate(scratch_);
    if (place != nullptr) *place = model_;
    return true;
  }

  std::uint64_t bytes() const { return arena_.used(); }

 private:
  bool BuildInput() {
    const PackedHeader& header = file_.header();
    model_.file_bytes = file_.model_bytes();
    model_.file_checksum = file_.model_checksum();
    model_.sample_rate = header.sample_rate;
    if (header.names > 0) {
      const char** const outputs = arena_.Allocate<const char*>(header.output);
      const char** const inputs = arena_.Allocate<const char*>(header.input);
      if (!file_.ReadNames(outputs, inputs)) return false;
      model_.class_names = HasName(outputs, header.output) ? outputs : nullptr;
      const bool reads_channels = header.hop == 0 && header.vocabulary == 0;
      model_.channel_names = reads_channels && HasName(inputs, header.input) ? inputs : nullptr;
    }
    model_.width = header.input;
    model_.sizes.batch = batch_;
    model_.sizes.output = header.output;
    model_.sizes.vocabulary = header.vocabulary;
    if (header.vocabulary > 0) {
      Tensor embedding;
      if (!file_.NextTensor("E", {header.vocabulary, header.input}, &embedding)) return false;
      model_.embedding = embedding.values;
    } else {
      model_.sizes.input = header.hop > 0 ? header.hop : header.input;
    }
    if (header.hop > 0 && !BuildFrontend(&file_, header.hop, header.input, &starts_, &arena_,
                                         &model_.frontend, &failure_)) {
      return false;
    }
    if ((header.flags & kStandardises) != 0) {
      Tensor mean, std;
      if (!file_.NextTensor("mean", {header.input}, &mean)) return false;
      if (!file_.NextTensor("std", {header.input}, &std)) return false;
      model_.mean = CopyFloats(mean, &arena_);
      model_.std = CopyFloats(std, &arena_);
    }
    model_.x = arena_.Allocate<float>(batch_ * header.input);
    model_.held = arena_.Allocate<float>(batch_ * model_.sizes.input);
    model_.nonfinite = arena_.Allocate<std::int64_t>(batch_);
    return true;
  }

  bool BuildLayers() {
    model_.layer_count = file_.header().layers;
    model_.layers = arena_.Allocate<ModelLayer>(model_.layer_count);
    std::int64_t width = model_.width;
    std::vector<Layer> layers;
    for (std::uint32_t i = 0; i < file_.header().layers; ++i) {
      layers.emplace_back();
      if (!BuildLayer(i, width, &layers.back())) return false;
      width = layers.back().model.sizes.hidden;
    }
    width_ = width;
    std::int64_t widest = 0;
    for (const Layer& layer : layers) widest = std::max(widest, layer.model.sizes.hidden);
    BuildBlockWorkspace(widest);
    bool counts = false;
    for (const Layer& layer : layers) counts |= layer.model.skips;
    if (counts) {
      for (std::int64_t** to :
           {&model_.updates, &model_.macs, &model_.layer_updates, &model_.layer_macs}) {
        *to = arena_.Allocate<std::int64_t>(batch_);
      }
    }
    PlaceStates(&layers, BuildStates());
    for (std::size_t i = 0; model_.layers != nullptr && i < layers.size(); ++i) {
      model_.layers[i] = layers[i].model;
    }
    return true;
  }

  // Finds the op of a layer, whose cell may be defined in the file; null if there is none.
  std::shared_ptr<const Op> FindLayerOp(const PackedLayer& record) {
    const std::string name = PackedFile::NameOf(record);
    std::shared_ptr<const Op> op;
    if (record.cell == 0) {
      op = {std::shared_ptr<const Op>(), FindOp(*model_.table, name)};
    } else {
      CellSource cell;
      std::string error;
      if (!file_.ReadCell(record, &cell)) return nullptr;
      op = MakeProgramOp(*model_.table, name, cell, &error);
      if (!error.empty()) Refuse(error);
    }
    if (op == nullptr && failure_.status == EDGERNN_OK) {
      failure_.Set(EDGERNN_UNSUPPORTED,
                   "the library has no kernel for " + name + "; update edgernn");
    }
    return op;
  }

  bool BuildLayer(std::uint32_t index, std::int64_t width, Layer* built) {
    PackedLayer record;
    if (!file_.ReadLayer(index, &record)) return false;
    built->op = FindLayerOp(record);
    if (built->op == nullptr) return false;
    const Op& op = *built->op;
    std::string error;
    bool all = false;
    if (!op.CheckCount(record.tensors, &all, &error)) return Refuse(error);
    std::vector<Tensor> weights(op.spec.weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!all && op.spec.weights[i].MayBeAbsent()) continue;
      if (!file_.NextTensor(&weights[i])) return false;
    }
    const auto group_size = static_cast<std::int64_t>(record.group_size);
    ModelLayer& layer = built->model;
    layer = {op, op.spec.skips, {}, nullptr, {}, {}};
    if (!op.CheckWeights(weights, group_size, &layer.sizes, &error)) return Refuse(error);
    const bool has_block = file_.block() != BlockKind::kNone;
    const std::int64_t inputs = has_block ? layer.sizes.hidden : width;
    if (op.InputWidth(layer.sizes) != inputs) {
      return Refuse("layer " + std::to_string(index) + ": expected weights for " +
                    std::to_string(inputs) + " inputs, got weights for " +
                    std::to_string(op.InputWidth(layer.sizes)));
    }
    if (has_block && op.spec.imputes) {
      return Refuse("block: expected no imputer, got one in layer " + std::to_string(index));
    }
    if (index == 0 && op.spec.imputes) {
      if (model_.frontend.hop > 0) {
        return Refuse("front end: expected no imputer, got one in the first layer");
      }
      model_.features = Features(layer.sizes);
    }
    for (const StateInput& state : op.spec.states) {
      starts_.emplace_back();
      const Shape shape = {Width(state.extent, layer.sizes)};
      if (!file_.NextTensor(state.name, shape, &starts_.back())) return false;
    }
    void* const packed = arena_.Allocate(op.PackedBytes(layer.sizes));
    if (packed != nullptr) op.Pack(layer.sizes, op.Arrange(weights), packed);
    layer.packed = packed;
    // a cell that is defined in the file must live as long as the model
    if (op.program != nullptr) layer.op.kernel.cell = CopyCell(*op.program, &arena_);
    layer.call.steps = layer.call.length = 1;
    layer.call.batch = batch_;
    const std::uint64_t kept_bytes = op.KeptBytes(layer.sizes, batch_);
    layer.call.kept = arena_.Allocate(kept_bytes);
    if (layer.call.kept != nullptr) {
      std::memset(layer.call.kept, 0, static_cast<std::size_t>(kept_bytes));
    }
    if (has_block && !BuildBlock(&file_, model_.table->linear, file_.block(), width,
                                 layer.sizes.hidden, &arena_, &layer.block)) {
      return false;
    }
    model_.sizes.neurons += layer.sizes.hidden;
    Grow(op.ScratchBytes(layer.sizes, 1, batch_));
    return true;
  }

  // Builds the steps of a graph.
  bool BuildSteps() {
    GraphSource source;
    if (!file_.ReadGraph(&source)) return false;
    for (std::uint32_t i = 0; i < file_.header().layers; ++i) {
      PackedLayer record;
      if (!file_.ReadLayer(i, &record)) return false;
      std::shared_ptr<const Op> op = FindLayerOp(record);
      if (op == nullptr) return false;
      source.layers.push_back(
          {std::move(op), record.tensors, static_cast<std::int64_t>(record.group_size)});
    }
    std::string error;
    if (!CheckValues(source, &starts_, &error)) return Refuse(error);
    const std::vector<float*> states = BuildStates();
    if (!BuildGraph(source, *model_.table, batch_, states, &arena_, &model_.graph, &error)) {
      return Refuse(error);
    }
    model_.sizes.neurons = model_.graph.neurons;
    Grow(model_.graph.scratch_bytes);
    if (model_.graph.skips) {
      model_.updates = arena_.Allocate<std::int64_t>(batch_);
      model_.macs = arena_.Allocate<std::int64_t>(batch_);
    }
    return true;
  }

  // Allocates all states contiguously, and their initial values. Returns the place of each.
  std::vector<float*> BuildStates() {
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
    return places;
  }

  // Sets the pointers to the states of the front end and of all layers.
  void PlaceStates(std::vector<Layer>* layers, const std::vector<float*>& places) {
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

  // Allocates what the blocks of layers with at most `hidden` neurons compute.
  void BuildBlockWorkspace(std::int64_t hidden) {
    if (file_.block() == BlockKind::kNone) return;
    model_.has_blocks = true;
    BlockWorkspace& workspace = model_.block_workspace;
    workspace.u = arena_.Allocate<float>(batch_ * hidden);
    workspace.branch = arena_.Allocate<float>(batch_ * hidden);
    if (file_.block() == BlockKind::kGated) {
      workspace.gate = arena_.Allocate<float>(batch_ * hidden);
    }
    Grow(model_.table->linear.scratch_bytes(hidden, batch_));
  }

  bool BuildHead() {
    const PackedHeader& header = file_.header();
    const std::int64_t outputs = header.output;
    if ((header.flags & kHasHead) == 0) {
      if (outputs == width_) return true;
      return Refuse("output: expected " + std::to_string(width_) + ", as there is no head, got " +
                    std::to_string(outputs));
    }
    const Linear& linear = model_.table->linear;
    Grow(linear.scratch_bytes(outputs, batch_));
    return ReadLinear(&file_, "the head", linear, width_, outputs, &arena_, &model_.head);
  }

  // Sets the failure and returns false.
  bool Refuse(const std::string& message) {
    return failure_.Set(EDGERNN_BAD_MODEL, "packed model: " + message);
  }

  void Grow(std::uint64_t bytes) { scratch_ = bytes > scratch_ ? bytes : scratch_; }

  PackedFile& file_;
  const std::int64_t batch_;
  Failure& failure_;
  Arena arena_;
  EdgernnModel model_{};
  std::vector<Tensor> starts_;  // initial values of the states
  std::int64_t width_ = 0;
  std::uint64_t scratch_ = 0;
};

}  // namespace

bool BuildModel(PackedFile* file, std::int64_t batch, void* memory, std::uint64_t* bytes,
                Failure* failure) {
  ModelBuilder builder(file, batch, memory, failure);
  if (!builder.Build()) return false;
  *bytes = builder.bytes();
  return true;
}

}  // namespace edgernn
