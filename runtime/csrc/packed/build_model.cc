// SPDX-License-Identifier: Apache-2.0
// Builds the model of a packed file in the caller's memory.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/arena.h"
#include "packed/layer_graph.h"
#include "packed/model.h"

namespace edgernn {
namespace {

// True if one of `count` names is not empty; `names` may be null.
bool HasName(const char* const* names, std::uint32_t count) {
  return names != nullptr &&
         std::any_of(names, names + count, [](const char* name) { return *name != '\0'; });
}

class ModelBuilder {
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
    if (!BuildSizes() || !BuildSteps()) return false;
    model_.scratch = arena_.Allocate(model_.graph.scratch_bytes);
    if (place != nullptr) *place = model_;
    return true;
  }

  std::uint64_t bytes() const { return arena_.used(); }

 private:
  bool BuildSizes() {
    const PackedHeader& header = file_.header();
    model_.file_bytes = file_.model_bytes();
    model_.file_checksum = file_.model_checksum();
    model_.sample_rate = header.sample_rate;
    model_.detection = {0.3, 0.5, 0.8};
    if (header.names > 0) {
      const char** const outputs = arena_.Allocate<const char*>(header.output);
      const char** const inputs = arena_.Allocate<const char*>(header.input);
      if (!file_.ReadNames(outputs, inputs, &model_.detection)) return false;
      model_.class_names = HasName(outputs, header.output) ? outputs : nullptr;
      const bool reads_channels = header.hop == 0 && header.vocabulary == 0;
      model_.channel_names = reads_channels && HasName(inputs, header.input) ? inputs : nullptr;
    }
    model_.sizes.batch = batch_;
    model_.sizes.output = header.output;
    model_.sizes.vocabulary = header.vocabulary;
    if (header.vocabulary > 0) {
      model_.words = arena_.Allocate<float>(batch_);
    } else {
      model_.sizes.input = header.hop > 0 ? header.hop : header.input;
    }
    model_.held = arena_.Allocate<float>(batch_ * model_.sizes.input);
    model_.nonfinite = arena_.Allocate<std::int64_t>(batch_);
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

  // Reads the ops of all layers.
  bool ReadLayers(std::vector<GraphLayer>* layers) {
    for (std::uint32_t i = 0; i < file_.header().layers; ++i) {
      PackedLayer record;
      if (!file_.ReadLayer(i, &record)) return false;
      std::shared_ptr<const Op> op = FindLayerOp(record);
      if (op == nullptr) return false;
      layers->push_back(
          {std::move(op), record.tensors, static_cast<std::int64_t>(record.group_size)});
    }
    return true;
  }

  // Describes a file without a graph as one.
  bool AddLayers(LayerGraph* layers) {
    if (!layers->AddInput()) return false;
    for (std::uint32_t i = 0; i < file_.header().layers; ++i) {
      if (!layers->AddLayer(i)) return false;
    }
    model_.features = layers->features();
    model_.keeps_samples = layers->keeps_samples();
    // with a front end it is the mean of features
    if (!layers->mean().IsAbsent() && file_.header().hop == 0) {
      model_.mean = CopyFloats(layers->mean(), &arena_);
    }
    return layers->AddOutput() && file_.CheckAllRead();
  }

  bool BuildSteps() {
    GraphSource source{};
    if (!ReadLayers(&source.layers)) return false;
    // outputs of a file without a step graph are those of its ONNX file, which does not quantize
    source.quantizes = file_.has_graph();
    source.features = -1;
    LayerGraph layers(&file_, &source);
    if (!(file_.has_graph() ? file_.ReadGraph(&source) : AddLayers(&layers))) return false;
    std::string error;
    if (!CheckValues(source, &starts_, &error)) return Refuse(error);
    const std::vector<float*> states = BuildStates();
    if (!BuildGraph(source, *model_.table, batch_, states, &arena_, &model_.graph, &error)) {
      return Refuse(error);
    }
    model_.sizes.neurons = model_.graph.neurons;
    if (model_.graph.skips) {
      // a graph with branches may have no layers
      if (model_.graph.neurons > 0) model_.updates = arena_.Allocate<std::int64_t>(batch_);
      model_.macs = arena_.Allocate<std::int64_t>(batch_);
    }
    return true;
  }

  // Allocates the states contiguously, and their initial values.
  // Returns the place of each.
  std::vector<float*> BuildStates() {
    for (const Tensor& start : starts_) model_.sizes.state += batch_ * start.shape[0];
    model_.state = arena_.Allocate<float>(model_.sizes.state);
    float* start = arena_.Allocate<float>(model_.sizes.state / batch_);
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
        for (std::int64_t i = 0; i < width; ++i) *start++ = value.values[i];
      }
      places.push_back(model_.state == nullptr ? nullptr : model_.state + at);
      at += batch_ * width;
    }
    return places;
  }

  // Sets the failure and returns false.
  bool Refuse(const std::string& message) {
    return failure_.Set(EDGERNN_BAD_MODEL, "packed model: " + message);
  }

  PackedFile& file_;
  const std::int64_t batch_;
  Failure& failure_;
  Arena arena_;
  EdgernnModel model_{};
  std::vector<Tensor> starts_;  // initial values of the states
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
