// SPDX-License-Identifier: Apache-2.0
// Checks what a node is given and runs its kernel.

#include "node.h"

#include <new>

#include "imputer.h"

namespace edgernn {

namespace {

Buffer Allocate(std::size_t bytes) {
  return Buffer(::operator new(bytes, std::align_val_t(kAlignment)));
}

std::string Print(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.kept(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  if (shape.size() > shape.kept()) text += ", ...";
  return text + (shape.size() == 1 ? ",)" : ")");
}

[[noreturn]] void Refuse(const std::string& op, const std::string& input,
                         const std::string& expected, const Shape& got) {
  throw InvalidArgument("ai.edgernn." + op + ": " + input + ": " + expected + ", got " +
                        Print(got));
}

Shape ExpectedShape(const WeightSpec& spec, const Sizes& sizes) {
  const Rows& rows = spec.rows;
  Shape shape = {rows.hidden * sizes.hidden + rows.input * sizes.input + rows.one +
                 rows.rank * sizes.rank + rows.features * Features(sizes)};
  if (spec.columns == Columns::kInput) shape.push_back(sizes.input);
  if (spec.columns == Columns::kInputTwice) shape.push_back(2 * sizes.input);
  if (spec.columns == Columns::kHidden) shape.push_back(sizes.hidden);
  if (spec.columns == Columns::kRank) shape.push_back(sizes.rank);
  if (spec.columns == Columns::kFeatures) shape.push_back(Features(sizes));
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
  add(spec.rows.rank, "rank");
  add(spec.rows.features, "F");
  const char* columns[] = {",)", ", I)", ", 2 * I)", ", H)", ", rank)", ", F)"};
  return "(" + text + columns[static_cast<int>(spec.columns)];
}

bool TellsHidden(const WeightSpec& spec) {
  return spec.rows.hidden > 0 || spec.columns == Columns::kHidden;
}

const float** Field(Weights* weights, int slot) {
  const float** const first[kOwnSlot] = {&weights->w, &weights->r, &weights->c, &weights->v,
                                         &weights->b};
  if (slot < kOwnSlot) return first[slot];
  if (slot == kFactorSlot) return &weights->q;
  if (slot < kRuleSlot) return &weights->own[slot - kOwnSlot];
  return slot < kImputerSlot ? &weights->rule[slot - kRuleSlot]
                             : &weights->impute[slot - kImputerSlot];
}

// I, given the shape of W; 0 if it fits none.
std::int64_t FindInput(const WeightSpec& spec, const Shape& shape) {
  const std::int64_t parts = spec.columns == Columns::kInputTwice ? 2 : 1;
  return shape.size() == 2 && shape[1] % parts == 0 ? shape[1] / parts : 0;
}

// H, given I and the shape of a weight that tells it; 0 if the shape fits no H.
std::int64_t FindHidden(const WeightSpec& spec, std::int64_t input, const Shape& shape) {
  if (shape.size() != (spec.columns == Columns::kNone ? 1 : 2)) return 0;
  if (spec.rows.hidden == 0) return shape[1];
  const std::int64_t rows = shape[0] - spec.rows.input * input - spec.rows.one;
  return rows > 0 && rows % spec.rows.hidden == 0 ? rows / spec.rows.hidden : 0;
}

std::int64_t Width(Extent extent, const Sizes& sizes) {
  switch (extent) {
    case Extent::kHidden:
      return sizes.hidden;
    case Extent::kInput:
      return sizes.input;
    case Extent::kFeatures:
      return Features(sizes);
    default:
      return 1;
  }
}

}  // namespace

void FreeBuffer::operator()(void* buffer) const {
  ::operator delete(buffer, std::align_val_t(kAlignment));
}

Node::Node(const OpSpec& op, const Kernel& kernel, const Imputer* imputer, const OrtApi* api,
           const OrtKernelInfo* info)
    : op_(op), kernel_(kernel), imputer_(imputer), api_(api) {
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
  const std::int64_t input = FindInput(spec, w);
  if (input < 1) refuse(0, PrintLetters(spec));
  // H is in the first weight that has rows or columns of that size, mostly W itself
  std::size_t source = 0;
  while (!TellsHidden(op_.weights[source].spec)) ++source;
  const Shape& told = weights[source].shape;
  Sizes sizes{input, FindHidden(op_.weights[source].spec, input, told)};
  if (source > 0 && w != ExpectedShape(spec, sizes)) refuse(0, PrintLetters(spec));
  if (sizes.hidden < 1) refuse(source, PrintLetters(op_.weights[source].spec));
  std::string reason = " as W is " + Print(w);
  if (source > 0)
    reason += std::string(" and ") + op_.weights[source].spec.name + " is " + Print(told);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (op_.weights[i].spec.columns == Columns::kRank) {
      const Shape& r = weights[i].shape;
      sizes.rank = r.size() == 2 ? r[1] : 0;
      if (sizes.rank < 1) refuse(i, PrintLetters(op_.weights[i].spec));
      reason += " and R is " + Print(r);
    }
    const Shape expected = ExpectedShape(op_.weights[i].spec, sizes);
    if (weights[i].shape != expected) refuse(i, Print(expected) + reason);
  }
  if (op_.imputes && sizes.input % 2 != 0) {
    refuse(0, "an even number of inputs, values and masks");
  }
  if (op_.square && sizes.input != sizes.hidden) {
    refuse(0, "as many inputs as neurons, here I = H = " + std::to_string(sizes.hidden));
  }
  return sizes;
}

Buffer Node::Pack(const Sizes& sizes, const std::vector<Tensor>& weights) const {
  Weights from{};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    *Field(&from, op_.weights[i].slot) = weights[i].data;
  }
  if (imputer_ != nullptr) {
    Buffer packed = Allocate(ImputedPackedBytes(*imputer_, kernel_, sizes));
    PackImputed(*imputer_, kernel_, sizes, from, packed.get());
    return packed;
  }
  Buffer packed = Allocate(kernel_.PackedBytes(sizes));
  kernel_.Pack(sizes, from, packed.get());
  return packed;
}

Call Node::CheckCall(const Sizes& sizes, OrtKernelContext* context) const {
  const Tensor x = Input(context, 0);
  if (x.shape.size() != 3) Refuse(op_.name, "X", "expected (T, B, I)", x.shape);
  if (x.shape[0] < 1) Refuse(op_.name, "X", "T must be at least 1", x.shape);
  if (x.shape[1] < 1) Refuse(op_.name, "X", "B must be at least 1", x.shape);
  const std::int64_t width = op_.imputes ? 3 * Features(sizes) : sizes.input;
  if (x.shape[2] != width) {
    Refuse(op_.name, "X", "expected (T, B, " + std::to_string(width) + ")", x.shape);
  }
  Call call{};
  call.steps = call.length = x.shape[0];
  call.batch = x.shape[1];
  call.x = x.data;
  for (std::size_t s = 0; s < op_.states.size(); ++s) {
    const Tensor state = Input(context, op_.FirstStateInput() + s);
    const Shape expected = {call.batch, Width(op_.states[s].extent, sizes)};
    if (state.shape != expected) {
      Refuse(op_.name, op_.states[s].name, "expected " + Print(expected), state.shape);
    }
    switch (op_.states[s].extent) {
      case Extent::kHidden:
        call.state_in[s] = state.data;
        break;
      case Extent::kOne:
        call.memory_in = state.data;
        break;
      case Extent::kFeatures:
        call.seen_in = state.data;
        break;
      case Extent::kInput:
        call.last_in = state.data;
    }
  }
  return call;
}

void Node::MakeOutputs(const Sizes& sizes, OrtKernelContext* context, Call* call) const {
  std::size_t count = 0;
  Check(ort::KernelContextGetOutputCount(api_, context, &count));
  const auto make = [&](std::size_t index, const Shape& shape) -> void* {
    OrtValue* value = nullptr;
    if (index >= count) return nullptr;
    Check(ort::KernelContextGetOutput(api_, context, index, shape.begin(), shape.size(), &value));
    if (value == nullptr) return nullptr;
    void* data = nullptr;
    Check(ort::GetTensorMutableData(api_, value, &data));
    return data;
  };
  call->y = static_cast<float*>(make(0, {call->steps, call->batch, sizes.hidden}));
  std::size_t index = 1;
  for (std::size_t s = 0; s < op_.states.size(); ++s, ++index) {
    const Extent extent = op_.states[s].extent;
    float* const out = static_cast<float*>(make(index, {call->batch, Width(extent, sizes)}));
    switch (extent) {
      case Extent::kHidden:
        call->state_out[s] = out;
        break;
      case Extent::kOne:
        call->memory_out = out;
        break;
      case Extent::kFeatures:
        call->seen_out = out;
        break;
      case Extent::kInput:
        call->last_out = out;
    }
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
  MakeOutputs(sizes, context, &call);
  if (imputer_ != nullptr) {
    const Buffer scratch = Allocate(ImputedScratchBytes(*imputer_, kernel_, sizes, call.batch));
    RunImputed(*imputer_, kernel_, sizes, packed, call, scratch.get());
    return;
  }
  const Buffer scratch = Allocate(kernel_.ScratchBytes(sizes, call.steps, call.batch));
  kernel_.Run(sizes, packed, call, scratch.get());
}

Tensor Node::Read(const OrtValue* value) const {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(ort::GetTensorTypeAndShape(api_, value, &info));
  std::size_t axes = 0;
  std::int64_t sizes[Shape::kMaxAxes] = {};
  OrtStatus* status = ort::GetDimensionsCount(api_, info, &axes);
  const std::size_t kept = axes < Shape::kMaxAxes ? axes : Shape::kMaxAxes;
  if (status == nullptr) status = ort::GetDimensions(api_, info, sizes, kept);
  ort::ReleaseTensorTypeAndShapeInfo(api_, info);
  Check(status);
  Tensor tensor{nullptr, {}};
  for (std::size_t i = 0; i < axes; ++i) tensor.shape.push_back(i < kept ? sizes[i] : 0);
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
