// SPDX-License-Identifier: Apache-2.0
// Checks what a node is given and runs its kernel.

#include "node.h"

#include <new>

namespace edgernn {

namespace {

using Shape = std::vector<std::int64_t>;

Buffer Allocate(std::size_t bytes) {
  return Buffer(::operator new(bytes, std::align_val_t(kAlignment)));
}

std::string Print(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

[[noreturn]] void Refuse(const std::string& op, const std::string& input,
                         const std::string& expected, const Shape& got) {
  throw InvalidArgument("ai.edgernn." + op + ": " + input + ": " + expected + ", got " +
                        Print(got));
}

Shape ExpectedShape(const WeightSpec& spec, const Sizes& sizes) {
  const Rows& rows = spec.rows;
  Shape shape = {rows.hidden * sizes.hidden + rows.input * sizes.input + rows.one};
  if (spec.columns == Columns::kInput) shape.push_back(sizes.input);
  if (spec.columns == Columns::kHidden) shape.push_back(sizes.hidden);
  return shape;
}

// The shape in letters, as (H + 2 * I, H).
std::string PrintLetters(const WeightSpec& spec) {
  std::string text;
  const auto add = [&text](int count, const std::string& letter) {
    if (count == 0) return;
    if (!text.empty()) text += " + ";
    text += count == 1 ? letter : std::to_string(count) + " * " + letter;
  };
  add(spec.rows.hidden, "H");
  add(spec.rows.input, "I");
  add(spec.rows.one, "1");
  const char* columns[] = {",)", ", I)", ", H)"};
  return "(" + text + columns[static_cast<int>(spec.columns)];
}

bool TellsHidden(const WeightSpec& spec) {
  return spec.rows.hidden > 0 || spec.columns == Columns::kHidden;
}

// H, given I and the shape of a weight that tells it; 0 if the shape fits no H.
std::int64_t FindHidden(const WeightSpec& spec, std::int64_t input, const Shape& shape) {
  if (shape.size() != (spec.columns == Columns::kNone ? 1 : 2)) return 0;
  if (spec.rows.hidden == 0) return shape[1];
  const std::int64_t rows = shape[0] - spec.rows.input * input - spec.rows.one;
  return rows > 0 && rows % spec.rows.hidden == 0 ? rows / spec.rows.hidden : 0;
}

}  // namespace

void FreeBuffer::operator()(void* buffer) const {
  ::operator delete(buffer, std::align_val_t(kAlignment));
}

Node::Node(const OpSpec& op, const Kernel& kernel, const OrtApi* api, const OrtKernelInfo* info)
    : op_(op), kernel_(kernel), api_(api) {
  const std::string prefix = "ai.edgernn." + op.name + ": ";
  std::int64_t schema = 0;
  if (OrtStatus* missing = ort::KernelInfoGetAttributeInt64(api, info, "schema", &schema)) {
    ort::ReleaseStatus(api, missing);
    throw InvalidArgument(prefix + "the node lacks the int attribute schema");
  }
  if (schema != kSchemaVersion) {
    throw InvalidArgument(prefix + "this file needs schema " + std::to_string(schema) +
                          ", the library has " + std::to_string(kSchemaVersion) +
                          "; update edgernn");
  }
  std::vector<Tensor> weights;
  packed_once_ = ReadConstants(info, &weights);
  if (!packed_once_) return;
  sizes_ = CheckWeights(weights);
  packed_ = Pack(sizes_, weights);
}

bool Node::ReadConstants(const OrtKernelInfo* info, std::vector<Tensor>* weights) const {
  for (std::size_t i = 0; i < op_.weights.size(); ++i) {
    int constant = 0;
    const OrtValue* value = nullptr;
    Check(ort::KernelInfoGetConstantInput(api_, info, 1 + i, &constant, &value));
    if (constant == 0 || value == nullptr) return false;
    weights->push_back(Read(value));
  }
  return true;
}

Sizes Node::CheckWeights(const std::vector<Tensor>& weights) const {
  const auto refuse = [&](std::size_t i, const std::string& expected) {
    Refuse(op_.name, op_.weights[i].spec.name, "expected " + expected, weights[i].shape);
  };
  const WeightSpec& spec = op_.weights[0].spec;
  const Shape& w = weights[0].shape;
  if (w.size() != 2 || w[1] < 1) refuse(0, PrintLetters(spec));
  // H is in the first weight that has rows or columns of that size, mostly W itself
  std::size_t source = 0;
  while (!TellsHidden(op_.weights[source].spec)) ++source;
  const Shape& told = weights[source].shape;
  const Sizes sizes{w[1], FindHidden(op_.weights[source].spec, w[1], told)};
  if (source > 0 && w != ExpectedShape(spec, sizes)) refuse(0, PrintLetters(spec));
  if (sizes.hidden < 1) refuse(source, PrintLetters(op_.weights[source].spec));
  std::string reason = " as W is " + Print(w);
  if (source > 0)
    reason += std::string(" and ") + op_.weights[source].spec.name + " is " + Print(told);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Shape expected = ExpectedShape(op_.weights[i].spec, sizes);
    if (weights[i].shape != expected) refuse(i, Print(expected) + reason);
  }
  return sizes;
}

Buffer Node::Pack(const Sizes& sizes, const std::vector<Tensor>& weights) const {
  Weights from{};
  for (std::size_t i = 0; i < weights.size(); ++i) *op_.weights[i].field(&from) = weights[i].data;
  Buffer packed = Allocate(kernel_.packed_bytes(sizes));
  kernel_.pack(sizes, from, packed.get());
  return packed;
}

Call Node::CheckCall(const Sizes& sizes, OrtKernelContext* context) const {
  const Tensor x = Input(context, 0);
  if (x.shape.size() != 3) Refuse(op_.name, "X", "expected (T, B, I)", x.shape);
  if (x.shape[0] < 1) Refuse(op_.name, "X", "T must be at least 1", x.shape);
  if (x.shape[1] < 1) Refuse(op_.name, "X", "B must be at least 1", x.shape);
  if (x.shape[2] != sizes.input) {
    Refuse(op_.name, "X", "expected (T, B, " + std::to_string(sizes.input) + ")", x.shape);
  }
  Call call{};
  call.steps = x.shape[0];
  call.batch = x.shape[1];
  call.x = x.data;
  const Shape expected = {call.batch, sizes.hidden};
  for (std::size_t s = 0; s < op_.states.size(); ++s) {
    const Tensor state = Input(context, op_.FirstStateInput() + s);
    if (state.shape != expected) {
      Refuse(op_.name, op_.states[s], "expected " + Print(expected), state.shape);
    }
    call.state_in[s] = state.data;
  }
  return call;
}

void Node::MakeOutputs(const Sizes& sizes, OrtKernelContext* context, Call* call) const {
  std::size_t count = 0;
  Check(ort::KernelContextGetOutputCount(api_, context, &count));
  const auto make = [&](std::size_t index, const Shape& shape) -> void* {
    OrtValue* value = nullptr;
    if (index >= count) return nullptr;
    Check(ort::KernelContextGetOutput(api_, context, index, shape.data(), shape.size(), &value));
    if (value == nullptr) return nullptr;
    void* data = nullptr;
    Check(ort::GetTensorMutableData(api_, value, &data));
    return data;
  };
  call->y = static_cast<float*>(make(0, {call->steps, call->batch, sizes.hidden}));
  std::size_t index = 1;
  for (std::size_t s = 0; s < op_.states.size(); ++s, ++index) {
    call->state_out[s] = static_cast<float*>(make(index, {call->batch, sizes.hidden}));
  }
  if (!op_.skips) return;
  call->updates = static_cast<std::int64_t*>(make(index, {call->steps, call->batch}));
  call->macs = static_cast<std::int64_t*>(make(index + 1, {call->batch}));
}

void Node::Run(OrtKernelContext* context) const {
  Sizes sizes = sizes_;
  Buffer packed_now;
  const void* packed = packed_.get();
  if (!packed_once_) {
    std::vector<Tensor> weights;
    for (std::size_t i = 0; i < op_.weights.size(); ++i) weights.push_back(Input(context, 1 + i));
    sizes = CheckWeights(weights);
    packed_now = Pack(sizes, weights);
    packed = packed_now.get();
  }
  Call call = CheckCall(sizes, context);
  const Buffer scratch = Allocate(kernel_.scratch_bytes(sizes, call.steps, call.batch));
  MakeOutputs(sizes, context, &call);
  kernel_.run(sizes, packed, call, scratch.get());
}

Tensor Node::Read(const OrtValue* value) const {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(ort::GetTensorTypeAndShape(api_, value, &info));
  std::size_t rank = 0;
  OrtStatus* status = ort::GetDimensionsCount(api_, info, &rank);
  Tensor tensor{nullptr, Shape(rank)};
  if (status == nullptr) status = ort::GetDimensions(api_, info, tensor.shape.data(), rank);
  ort::ReleaseTensorTypeAndShapeInfo(api_, info);
  Check(status);
  void* data = nullptr;
  Check(ort::GetTensorMutableData(api_, const_cast<OrtValue*>(value), &data));
  tensor.data = static_cast<const float*>(data);
  return tensor;
}

Tensor Node::Input(OrtKernelContext* context, std::size_t index) const {
  const OrtValue* value = nullptr;
  Check(ort::KernelContextGetInput(api_, context, index, &value));
  if (value == nullptr) {
    throw InvalidArgument("ai.edgernn." + op_.name + ": input " + std::to_string(index) +
                          " is missing");
  }
  return Read(value);
}

void Node::Check(OrtStatus* status) const {
  if (status != nullptr) throw OrtError{status};
}

}  // namespace edgernn
