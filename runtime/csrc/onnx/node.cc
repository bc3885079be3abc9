// SPDX-License-Identifier: Apache-2.0
// Validates a node's inputs and allocates its outputs.

#include "onnx/node.h"

namespace edgernn {

namespace {

// The elements of a tensor of ONNX Runtime, which are floats.
const float* Floats(const Tensor& tensor) { return static_cast<const float*>(tensor.values.data); }

// Reads the attributes of a node.
class Attributes {
 public:
  Attributes(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  std::int64_t Int(const char* name, std::int64_t default_value) const {
    std::int64_t value = 0;
    return Has(ort::KernelInfoGetAttributeInt64(api_, info_, name, &value)) ? value : default_value;
  }

  // This and the following functions return an empty value if the node lacks the attribute.
  std::string String(const char* name) const {
    std::size_t size = 0;
    if (!Has(ort::KernelInfoGetAttributeString(api_, info_, name, nullptr, &size))) return "";
    std::string value(size, '\0');
    if (!Has(ort::KernelInfoGetAttributeString(api_, info_, name, value.data(), &size))) return "";
    // drops the terminating zero
    value.resize(size - 1);
    return value;
  }

  std::vector<std::int64_t> Ints(const char* name) const {
    return Array<std::int64_t>(ort::KernelInfoGetAttributeArrayInt64, name);
  }

  ProgramSource Program(const std::string& name) const {
    return {Ints(name.c_str()),
            Array<float>(ort::KernelInfoGetAttributeArrayFloat, (name + "_numbers").c_str())};
  }

 private:
  template <class Number, class Get>
  std::vector<Number> Array(const Get& get, const char* name) const {
    std::size_t size = 0;
    if (!Has(get(api_, info_, name, nullptr, &size))) return {};
    std::vector<Number> values(size);
    if (size > 0 && !Has(get(api_, info_, name, values.data(), &size))) return {};
    return values;
  }

  bool Has(OrtStatus* status) const {
    if (status != nullptr) ort::ReleaseStatus(api_, status);
    return status == nullptr;
  }

  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

// Finds the op that a node's attributes describe. A node with the attribute gates defines its cell.
std::shared_ptr<const Op> FindNodeOp(const OrtApi* api, const OrtKernelInfo* info) {
  const Attributes attributes(api, info);
  const std::int64_t schema = attributes.Int("schema", 0);
  if (schema != kSchemaVersion) {
    throw InvalidArgument("edgernn: schema: expected " + std::to_string(kSchemaVersion) + ", got " +
                          (schema == 0 ? "none" : std::to_string(schema)) + "; " +
                          (schema < kSchemaVersion ? "export the file again" : "update edgernn"));
  }
  for (const char* const name : {"cell", "rule"}) {
    if (attributes.String(name).empty()) {
      throw InvalidArgument(std::string("edgernn: ") + name + ": expected a name, got none");
    }
  }
  const std::string norm = attributes.String("norm");
  const std::string name = LayerName(attributes.String("imputer"), attributes.String("cell"),
                                     attributes.String("rule"), attributes.Int("rank", 0) > 0) +
                           (norm.empty() ? "" : "+" + norm);
  CellSource cell{attributes.String("cell"),    attributes.Ints("gates"),
                  attributes.Ints("vectors"),   attributes.Ints("layout"),
                  attributes.Program("update"), attributes.Program("mid"),
                  attributes.Program("map")};
  std::string error;
  const std::shared_ptr<const Op> op =
      cell.gates.empty() ? FindProviderOp(name) : MakeProviderOp(name, cell, &error);
  if (op != nullptr) return op;
  if (!error.empty()) throw InvalidArgument(error);
  throw InvalidArgument("edgernn: this library has no kernel for " + name +
                        "; update edgernn, or create the session without the library");
}

}  // namespace

Node::Node(const OrtApi* api, const OrtKernelInfo* info)
    : owner_(FindNodeOp(api, info)), op_(*owner_), api_(api) {
  const Attributes attributes(api, info);
  const std::int64_t bits = attributes.Int("weight_bits", 32);
  if (bits != 32 && bits != 16 && bits != 8) {
    Refuse("weight_bits", "expected 32, 16 or 8, got " + std::to_string(bits));
  }
  type_ = bits == 32   ? NumberType::kFloat32
          : bits == 16 ? NumberType::kBfloat16
                       : NumberType::kInt8;
  rank_ = attributes.Int("rank", 0);
  group_size_ = attributes.Int("group_size", 1);
  std::size_t count = 0;
  Check(ort::KernelInfoGetInputCount(api, info, &count));
  bool all = false;
  std::string error;
  if (!op_.CheckCount(count - 1, &all, &error)) throw InvalidArgument(error);
  for (const WeightInput& weight : op_.spec.weights) {
    inputs_.push_back(all || !weight.MayBeAbsent() ? first_state_++ : kAbsent);
  }
}

void Node::Refuse(const std::string& what, const std::string& why) const {
  throw InvalidArgument("edgernn: " + op_.spec.name + ": " + what + ": " + why);
}

bool Node::ReadConstants(const OrtKernelInfo* info, std::vector<Tensor>* weights) const {
  for (const std::size_t index : inputs_) {
    weights->emplace_back();
    if (index == kAbsent) continue;
    int constant = 0;
    const OrtValue* value = nullptr;
    Check(ort::KernelInfoGetConstantInput(api_, info, index, &constant, &value));
    if (constant == 0 || value == nullptr) return false;
    weights->back() = Read(value);
  }
  return true;
}

LayerSizes Node::CheckWeights(const std::vector<Tensor>& weights) const {
  LayerSizes sizes;
  std::string error;
  if (!op_.CheckWeights(weights, group_size_, &sizes, &error)) throw InvalidArgument(error);
  sizes.weights = type_;
  if (sizes.rank != rank_) {
    Refuse("rank", "expected " + std::to_string(sizes.rank) + ", the columns of R, got " +
                       std::to_string(rank_));
  }
  return sizes;
}

std::vector<Tensor> Node::ReadWeights(OrtKernelContext* context) const {
  std::vector<Tensor> weights;
  for (const std::size_t index : inputs_) {
    weights.push_back(index == kAbsent ? Tensor{} : Input(context, index));
  }
  return weights;
}

Call Node::MakeCall(const LayerSizes& sizes, OrtKernelContext* context) const {
  Call call = CheckCall(sizes, context);
  MakeOutputs(sizes, context, &call);
  return call;
}

Call Node::CheckCall(const LayerSizes& sizes, OrtKernelContext* context) const {
  const Tensor x = Input(context, 0);
  const auto refuse = [this](const char* input, const std::string& why, const Shape& got) {
    Refuse(input, why + ", got " + Print(got));
  };
  if (x.shape.size() != 3) refuse("X", "expected (T, B, I)", x.shape);
  if (x.shape[0] < 1) refuse("X", "expected (T, B, I) with T of at least 1", x.shape);
  if (x.shape[1] < 1) refuse("X", "expected (T, B, I) with B of at least 1", x.shape);
  const std::int64_t width = op_.InputWidth(sizes);
  if (x.shape[2] != width) {
    refuse("X", "expected (T, B, " + std::to_string(width) + ")", x.shape);
  }
  Call call{};
  call.steps = call.length = x.shape[0];
  call.batch = x.shape[1];
  call.x = Floats(x);
  for (std::size_t s = 0; s < op_.spec.states.size(); ++s) {
    const StateInput& input = op_.spec.states[s];
    const Tensor state = Input(context, first_state_ + s);
    const Shape expected = {call.batch, Width(input.extent, sizes)};
    if (state.shape != expected) refuse(input.name, "expected " + Print(expected), state.shape);
    *Op::PlaceOf(&call, input).in = Floats(state);
  }
  return call;
}

void Node::MakeOutputs(const LayerSizes& sizes, OrtKernelContext* context, Call* call) const {
  std::size_t count = 0;
  Check(ort::KernelContextGetOutputCount(api_, context, &count));
  const auto allocate = [&](std::size_t index, const Shape& shape) -> void* {
    OrtValue* value = nullptr;
    if (index >= count) return nullptr;
    Check(ort::KernelContextGetOutput(api_, context, index, shape.begin(), shape.size(), &value));
    if (value == nullptr) return nullptr;
    void* data = nullptr;
    Check(ort::GetTensorMutableData(api_, value, &data));
    return data;
  };
  call->y = static_cast<float*>(allocate(0, {call->steps, call->batch, sizes.hidden}));
  const bool skips = op_.spec.skips;
  // for a rule that never skips, these outputs are empty and the kernel does not write them
  void* const updates = allocate(1, skips ? Shape{call->steps, call->batch} : Shape{0, 0});
  void* const macs = allocate(2, skips ? Shape{call->batch} : Shape{0});
  if (skips) {
    call->updates = static_cast<std::int64_t*>(updates);
    call->macs = static_cast<std::int64_t*>(macs);
  }
  for (std::size_t s = 0; s < op_.spec.states.size(); ++s) {
    const StateInput& state = op_.spec.states[s];
    *Op::PlaceOf(call, state).out =
        static_cast<float*>(allocate(3 + s, {call->batch, Width(state.extent, sizes)}));
  }
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
  Tensor tensor{};
  for (std::size_t i = 0; i < axes; ++i) tensor.shape.push_back(i < kept ? sizes[i] : 0);
  void* data = nullptr;
  Check(ort::GetTensorMutableData(api_, const_cast<OrtValue*>(value), &data));
  tensor.values.data = data;
  return tensor;
}

Tensor Node::Input(OrtKernelContext* context, std::size_t index) const {
  const OrtValue* value = nullptr;
  Check(ort::KernelContextGetInput(api_, context, index, &value));
  if (value == nullptr) {
    Refuse("input " + std::to_string(index), "expected a tensor, got none");
  }
  return Read(value);
}

void Node::Check(OrtStatus* status) const {
  if (status != nullptr) throw OrtError{status};
}

}  // namespace edgernn
