// SPDX-License-Identifier: Apache-2.0
// Implements layer_graph.h.

#include "packed/layer_graph.h"

namespace edgernn {
namespace {

// added to the variance, as in edgernn/blocks.py
constexpr float kEpsilon = 1e-5f;

constexpr std::int64_t Code(Operation operation) { return static_cast<std::int64_t>(operation); }

void Append(const LayerGraph::Words& words, LayerGraph::Words* to) {
  to->insert(to->end(), words.begin(), words.end());
}

}  // namespace

LayerGraph::LayerGraph(PackedFile* file, GraphSource* graph) : file_(*file), graph_(*graph) {
  const PackedHeader& header = file->header();
  graph->input = width_ = header.input;
  graph->output = header.output;
  value_ = AddValue(ValueKind::kInput, 0, header.input);
  output_ = AddValue(ValueKind::kOutput, 0, header.output);
}

bool LayerGraph::AddLayer(std::uint32_t index) {
  GraphLayer& layer = graph_.layers[index];
  const Op& op = *layer.op;
  const bool has_block = file_.block() != BlockKind::kNone;
  std::string error;
  bool all = false;
  if (!op.CheckCount(layer.tensors, &all, &error)) return file_.Fail(error);
  layer.tensors -= op.spec.states.size();
  const auto first = static_cast<std::int64_t>(graph_.tensors.size());
  std::vector<Tensor> weights(op.spec.weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!all && op.spec.weights[i].MayBeAbsent()) continue;
    if (!file_.NextTensor(&weights[i])) return false;
    graph_.tensors.push_back(weights[i]);
  }
  LayerSizes sizes;
  if (!op.CheckWeights(weights, layer.group_size, &sizes, &error)) return file_.Fail(error);
  const std::int64_t inputs = has_block ? sizes.hidden : width_;
  if (op.InputWidth(sizes) != inputs) {
    return file_.Fail("layer " + std::to_string(index) + ": expected weights for " +
                      std::to_string(inputs) + " inputs, got weights for " +
                      std::to_string(op.InputWidth(sizes)));
  }
  if (op.spec.imputes && has_block) {
    return file_.Fail("block: expected no imputer, got one in layer " + std::to_string(index));
  }
  if (op.spec.imputes && index == 0) {
    if (file_.header().hop > 0) {
      return file_.Fail("front end: expected no imputer, got one in the first layer");
    }
    features_ = Features(sizes);
  }
  Words states;
  for (const StateInput& state : op.spec.states) {
    const std::int64_t width = Width(state.extent, sizes);
    std::int64_t tensor;
    if (!ReadTensor(state.name, {width}, &tensor)) return false;
    Append({AddValue(ValueKind::kState, 0, width, tensor), 0}, &states);
  }
  const auto add = [&] {
    Words words{index, first, value_, 0, -1,
                0,     1,     1,      0, static_cast<std::int64_t>(states.size()) / 2};
    Append(states, &words);
    AddStep(StepCode::kRecurrent, words);
    // the first state is the layer's output
    value_ = states[0];
  };
  if (has_block) return AddBlock(sizes.hidden, add);
  add();
  width_ = sizes.hidden;
  return true;
}

bool LayerGraph::AddOutput() {
  const std::int64_t outputs = file_.header().output;
  if ((file_.header().flags & kHasHead) == 0) {
    if (outputs != width_) {
      return file_.Fail("output: expected " + std::to_string(width_) +
                        ", as there is no head, got " + std::to_string(outputs));
    }
    AddStep(StepCode::kMove, {value_, 0, output_, 0, 1, outputs, 1, 1});
    return true;
  }
  LinearTensors head;
  if (!ReadLinear("the head", width_, outputs, &head)) return false;
  AddLinear(head, value_, output_);
  return true;
}

template <class AddCell>
bool LayerGraph::AddBlock(std::int64_t hidden, const AddCell& add_cell) {
  LinearTensors encoder, linear, gate;
  std::int64_t scale, shift;
  const bool has_encoder = width_ != hidden, has_gate = file_.block() == BlockKind::kGated;
  if ((has_encoder && !ReadLinear("the encoder", width_, hidden, &encoder)) ||
      !ReadTensor("scale of a block", {hidden}, &scale) ||
      !ReadTensor("shift of a block", {hidden}, &shift) ||
      !ReadLinear("a block", hidden, hidden, &linear) ||
      (has_gate && !ReadLinear("the gate of a block", hidden, hidden, &gate))) {
    return false;
  }
  if (has_encoder) {
    const std::int64_t encoded = AddBuffer(hidden);
    AddLinear(encoder, value_, encoded);
    value_ = encoded;
  }
  const std::int64_t u = value_;
  AddNorm(hidden, AddConstant(scale, hidden), AddConstant(shift, hidden));
  add_cell();
  const std::int64_t branch = AddBuffer(hidden);
  AddLinear(linear, value_, branch);
  if (has_gate) {
    const std::int64_t gated = AddBuffer(hidden);
    AddLinear(gate, value_, gated);
    value_ = AddBuffer(hidden);
    AddProgram(hidden, {{u, 1}, {branch, 1}, {gated, 1}}, {value_},
               {Code(Operation::sigmoid), 2, -1, -1, Code(Operation::mul), 1, 3, -1,
                Code(Operation::add), 0, 4, -1},
               {5});
  } else {
    value_ = AddBuffer(hidden);
    AddProgram(hidden, {{u, 1}, {branch, 1}}, {value_}, {Code(Operation::add), 0, 1, -1}, {2});
  }
  width_ = hidden;
  return true;
}

void LayerGraph::AddNorm(std::int64_t size, std::int64_t scale, std::int64_t shift) {
  const std::int64_t sum = AddBuffer(1), centred = AddBuffer(size), squares = AddBuffer(size),
                     factor = AddBuffer(1), count = AddNumber(static_cast<float>(size));
  const auto add_sum = [&](std::int64_t from) {
    AddStep(StepCode::kReduce, {0, from, 0, sum, 0, 1, 0, 1, 0, 1, 0, size, 1, 1, 0});
  };
  add_sum(value_);
  AddProgram(size, {{value_, 1}, {sum, 0}, {count, 0}}, {centred, squares},
             {Code(Operation::div), 1, 2, -1, Code(Operation::sub), 0, 3, -1, Code(Operation::mul),
              4, 4, -1},
             {4, 5});
  add_sum(squares);
  AddProgram(1, {{sum, 0}, {count, 0}, {AddNumber(kEpsilon), 0}, {AddNumber(1.0f), 0}}, {factor},
             {Code(Operation::div), 0, 1, -1, Code(Operation::add), 4, 2, -1, Code(Operation::sqrt),
              5, -1, -1, Code(Operation::div), 3, 6, -1},
             {7});
  value_ = AddBuffer(size);
  AddProgram(size, {{centred, 1}, {factor, 0}, {scale, 1}, {shift, 1}}, {value_},
             {Code(Operation::mul), 0, 1, -1, Code(Operation::mul), 4, 2, -1, Code(Operation::add),
              5, 3, -1},
             {6});
}

bool LayerGraph::ReadTensor(const std::string& name, const Shape& shape, std::int64_t* index) {
  *index = static_cast<std::int64_t>(graph_.tensors.size());
  graph_.tensors.emplace_back();
  return file_.NextTensor(name.c_str(), shape, &graph_.tensors.back());
}

bool LayerGraph::ReadLinear(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                            LinearTensors* to) {
  return ReadTensor("W of " + name, {outputs, inputs}, &to->w) &&
         ReadTensor("b of " + name, {outputs}, &to->b);
}

std::int64_t LayerGraph::AddValue(ValueKind kind, std::int64_t offset, std::int64_t size,
                                  std::int64_t tensor) {
  graph_.values.push_back({static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(offset),
                           static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(tensor)});
  return static_cast<std::int64_t>(graph_.values.size()) - 1;
}

std::int64_t LayerGraph::AddBuffer(std::int64_t size) {
  constexpr std::int64_t kAligned = kAlignment / sizeof(float);
  const std::int64_t offset = graph_.arena;
  graph_.arena += (size + kAligned - 1) / kAligned * kAligned;
  return AddValue(ValueKind::kArena, offset, size);
}

std::int64_t LayerGraph::AddConstant(std::int64_t tensor, std::int64_t size) {
  return AddValue(ValueKind::kConstant, tensor, size);
}

std::int64_t LayerGraph::AddNumber(float number) {
  numbers_.push_back(number);
  graph_.tensors.push_back({{&numbers_.back()}, {1}});
  return AddConstant(static_cast<std::int64_t>(graph_.tensors.size()) - 1, 1);
}

void LayerGraph::AddStep(StepCode code, const Words& arguments) {
  graph_.steps.push_back(static_cast<std::int32_t>(code));
  graph_.steps.push_back(static_cast<std::int32_t>(arguments.size()));
  for (const std::int64_t word : arguments) {
    graph_.steps.push_back(static_cast<std::int32_t>(word));
  }
}

void LayerGraph::AddLinear(const LinearTensors& tensors, std::int64_t from, std::int64_t to) {
  AddStep(StepCode::kLinear, {from, 0, to, 0, tensors.w, tensors.b, 1, 0, 0, 1, 0, 0});
}

void LayerGraph::AddProgram(std::int64_t columns, const std::vector<ColumnOperand>& operands,
                            const Words& results, const Words& instructions, const Words& values) {
  const auto count = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
  Words words{1, 1, columns, count(operands)};
  for (const ColumnOperand& operand : operands) {
    Append({operand.value, 0, 0, 0, operand.stride}, &words);
  }
  words.push_back(count(results));
  for (const std::int64_t result : results) Append({result, 0, 0, 0}, &words);
  words.push_back(count(instructions) / 4);
  Append(instructions, &words);
  Append(values, &words);
  AddStep(StepCode::kProgram, words);
}

}  // namespace edgernn
