// SPDX-License-Identifier: Apache-2.0
// Implements layer_graph.h.

#include "packed/layer_graph.h"

namespace edgernn {
namespace {

// added to the variance, as in edgernn/blocks.py
constexpr float kEpsilon = 1e-5f;

// Numbers of a ColumnProgram from this one on are results of instructions.
constexpr std::int64_t kFirstInstruction = 1 << 16;

// Word indices are floats in the graph, which are exact up to here.
constexpr std::int64_t kMostWords = 1 << 24;

void Append(const LayerGraph::Words& words, LayerGraph::Words* to) {
  to->insert(to->end(), words.begin(), words.end());
}

}  // namespace

std::int64_t ColumnProgram::Read(const ColumnOperand& operand, std::int64_t stride) {
  Append({operand.value, operand.offset, 0, 0, stride}, &operands_);
  return static_cast<std::int64_t>(operands_.size()) / 5 - 1;
}

std::int64_t ColumnProgram::Run(Operation operation, std::int64_t a, std::int64_t b,
                                std::int64_t c) {
  Append({static_cast<std::int64_t>(operation), a, b, c}, &instructions_);
  return kFirstInstruction + static_cast<std::int64_t>(instructions_.size()) / 4 - 1;
}

void ColumnProgram::Write(const ColumnOperand& to, std::int64_t number) {
  Append({to.value, to.offset, 0, 0}, &results_);
  numbers_.push_back(number);
}

std::vector<std::int64_t> ColumnProgram::Words() const {
  const auto count = [](const std::vector<std::int64_t>& list, std::size_t size) {
    return static_cast<std::int64_t>(list.size() / size);
  };
  const std::int64_t operands = count(operands_, 5);
  // operands are counted first, then instructions
  const auto place = [&](std::int64_t number) {
    return number < kFirstInstruction ? number : number - kFirstInstruction + operands;
  };
  std::vector<std::int64_t> words{1, 1, columns_, operands};
  Append(operands_, &words);
  words.push_back(count(results_, 4));
  Append(results_, &words);
  words.push_back(count(instructions_, 4));
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    words.push_back(i % 4 == 0 ? instructions_[i] : place(instructions_[i]));
  }
  for (const std::int64_t number : numbers_) words.push_back(place(number));
  return words;
}

LayerGraph::LayerGraph(PackedFile* file, GraphSource* graph) : file_(*file), graph_(*graph) {
  const PackedHeader& header = file->header();
  width_ = header.input;
  graph->input = header.hop > 0 ? header.hop : header.vocabulary > 0 ? 1 : header.input;
  graph->output = header.output;
  value_ = AddValue(ValueKind::kInput, 0, graph->input);
  output_ = AddValue(ValueKind::kOutput, 0, header.output);
}

bool LayerGraph::AddInput() {
  const PackedHeader& header = file_.header();
  if (header.vocabulary > kMostWords) {
    return file_.Fail("vocabulary: expected at most " + std::to_string(kMostWords) +
                      " words, got " + std::to_string(header.vocabulary));
  }
  if (header.vocabulary > 0) {
    std::int64_t table;
    if (!ReadTensor("E", {header.vocabulary, width_}, &table)) return false;
    const std::int64_t word = value_;
    value_ = AddBuffer(width_);
    AddStep(StepCode::kGather,
            {AddConstant(table, header.vocabulary * width_), 0, value_, 0, width_, 0, word, 0});
  }
  if (header.hop > 0 && !AddFrontend()) return false;
  if ((header.flags & kStandardises) != 0) {
    std::int64_t mean, std;
    if (!ReadTensor("mean", {width_}, &mean) || !ReadTensor("std", {width_}, &std)) return false;
    mean_ = graph_.tensors[static_cast<std::size_t>(mean)];
    ColumnProgram program(width_);
    const std::int64_t centred = program.Run(Operation::sub, program.Read({value_, 0}),
                                             program.Read({AddConstant(mean, width_), 0}));
    const std::int64_t scaled =
        program.Run(Operation::div, centred, program.Read({AddConstant(std, width_), 0}));
    value_ = AddBuffer(width_);
    program.Write({value_, 0}, scaled);
    AddProgram(program);
  }
  graph_.features = header.hop > 0 ? value_ : -1;
  return true;
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
    std::int64_t value;
    if (!ReadState(state.name, Width(state.extent, sizes), &value)) return false;
    Append({value, 0}, &states);
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
    AddMove({value_, 0}, {output_, 0}, outputs);
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
  ColumnProgram program(hidden);
  std::int64_t added = program.Read({branch, 0});
  if (has_gate) {
    const std::int64_t gated = AddBuffer(hidden);
    AddLinear(gate, value_, gated);
    added = program.Run(Operation::mul, added,
                        program.Run(Operation::sigmoid, program.Read({gated, 0})));
  }
  value_ = AddBuffer(hidden);
  program.Write({value_, 0}, program.Run(Operation::add, program.Read({u, 0}), added));
  AddProgram(program);
  width_ = hidden;
  return true;
}

void LayerGraph::AddNorm(std::int64_t size, std::int64_t scale, std::int64_t shift) {
  const std::int64_t sum = AddBuffer(1), centred = AddBuffer(size), squares = AddBuffer(size),
                     count = AddNumber(static_cast<float>(size));
  const auto add_sum = [&](std::int64_t from) {
    AddStep(StepCode::kReduce, {0, from, 0, sum, 0, 1, 0, 1, 0, 1, 0, size, 1, 1, 0});
  };
  add_sum(value_);
  ColumnProgram centre(size);
  const std::int64_t mean =
      centre.Run(Operation::div, centre.Read({sum, 0}, 0), centre.Read({count, 0}, 0));
  const std::int64_t difference = centre.Run(Operation::sub, centre.Read({value_, 0}), mean);
  centre.Write({centred, 0}, difference);
  centre.Write({squares, 0}, centre.Run(Operation::mul, difference, difference));
  AddProgram(centre);
  add_sum(squares);
  value_ = AddBuffer(size);
  ColumnProgram norm(size);
  const std::int64_t variance =
      norm.Run(Operation::div, norm.Read({sum, 0}, 0), norm.Read({count, 0}, 0));
  const std::int64_t deviation = norm.Run(
      Operation::sqrt, norm.Run(Operation::add, variance, norm.Read({AddNumber(kEpsilon), 0}, 0)));
  const std::int64_t scaled =
      norm.Run(Operation::mul, norm.Run(Operation::div, norm.Read({centred, 0}), deviation),
               norm.Read({scale, 0}));
  norm.Write({value_, 0}, norm.Run(Operation::add, scaled, norm.Read({shift, 0})));
  AddProgram(norm);
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

bool LayerGraph::ReadState(const std::string& name, std::int64_t width, std::int64_t* value) {
  std::int64_t tensor;
  if (!ReadTensor(name, {width}, &tensor)) return false;
  *value = AddValue(ValueKind::kState, 0, width, tensor);
  return true;
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
  return AddConstant(AddNumbers({number}, {1}), 1);
}

std::int64_t LayerGraph::AddNumbers(const std::vector<float>& numbers, const Shape& shape) {
  numbers_.push_back(numbers);
  graph_.tensors.push_back({{numbers_.back().data()}, shape});
  return static_cast<std::int64_t>(graph_.tensors.size()) - 1;
}

void LayerGraph::AddStep(StepCode code, const Words& arguments) {
  graph_.steps.push_back(static_cast<std::int32_t>(code));
  graph_.steps.push_back(static_cast<std::int32_t>(arguments.size()));
  for (const std::int64_t word : arguments) {
    graph_.steps.push_back(static_cast<std::int32_t>(word));
  }
}

void LayerGraph::AddMove(const ColumnProgram::ColumnOperand& from,
                         const ColumnProgram::ColumnOperand& to, std::int64_t count) {
  AddStep(StepCode::kMove, {from.value, from.offset, to.value, to.offset, 1, count, 1, 1});
}

void LayerGraph::AddLinear(const LinearTensors& tensors, std::int64_t from, std::int64_t to) {
  AddStep(StepCode::kLinear, {from, 0, to, 0, tensors.w, tensors.b, 1, 0, 0, 1, 0, 0});
}

}  // namespace edgernn
