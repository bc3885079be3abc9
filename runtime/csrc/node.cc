// SPDX-License-Identifier: Apache-2.0
// Checks what a node is given.

#include "node.h"

namespace edgernn {

namespace {

// Of a tensor that ONNX Runtime gave.
const float* Floats(const Tensor& tensor) { return static_cast<const float*>(tensor.values.data); }

}  // namespace

Node::Node(const Op& op, const OrtApi* api, const OrtKernelInfo* info) : op_(op), api_(api) {
  const std::string prefix = "ai.edgernn." + op.spec.name + ": ";
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
  std::int64_t bits = 32;
  if (OrtStatus* missing = ort::KernelInfoGetAttributeInt64(api, info, "weight_bits", &bits)) {
    // a file of floats does not say so
    ort::ReleaseStatus(api, missing);
  }
  if (bits != 32 && bits != 16 && bits != 8) {
    throw InvalidArgument(prefix + "weight_bits: expected 32, 16 or 8, got " +
                          std::to_string(bits));
  }
  type_ = bits == 32   ? NumberType::kFloat32
          : bits == 16 ? NumberType::kBfloat16
                       : NumberType::kInt8;
}

bool Node::ReadConstants(const OrtKernelInfo* info, std::vector<Tensor>* weights) const {
  for (std::size_t i = 0; i < op_.spec.weights.size(); ++i) {
    int constant = 0;
    const OrtValue* value = nullptr;
    Check(ort::KernelInfoGetConstantInput(api_, info, 1 + i, &constant, &value));
    if (constant == 0 || value == nullptr) return false;
    weights->push_back(Read(value));
  }
  return true;
}

Sizes Node::CheckWeights(const std::vector<Tensor>& weights) const {
  Sizes sizes = op_.CheckWeights(weights);
  sizes.weights = type_;
  return sizes;
}

std::vector<Tensor> Node::ReadWeights(OrtKernelContext* context) const {
  std::vector<Tensor> weights;
  for (std::size_t i = 0; i < op_.spec.weights.size(); ++i) {
    weights.push_back(Input(context, 1 + i));
  }
  return weights;
}

Call Node::MakeCall(const Sizes& sizes, OrtKernelContext* context) const {
  Call call = CheckCall(sizes, context);
  MakeOutputs(sizes, context, &call);
  return call;
}

Call Node::CheckCall(const Sizes& sizes, OrtKernelContext* context) const {
  const Tensor x = Input(context, 0);
  const auto refuse = [this](const char* input, const std::string& why, const Shape& got) {
    throw InvalidArgument("ai.edgernn." + op_.spec.name + ": " + input + ": " + why + ", got " +
                          Print(got));
  };
  if (x.shape.size() != 3) refuse("X", "expected (T, B, I)", x.shape);
  if (x.shape[0] < 1) refuse("X", "T must be at least 1", x.shape);
  if (x.shape[1] < 1) refuse("X", "B must be at least 1", x.shape);
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
    const Tensor state = Input(context, op_.spec.FirstStateInput() + s);
    const Shape expected = {call.batch, Op::Width(input.extent, sizes)};
    if (state.shape != expected) refuse(input.name, "expected " + Print(expected), state.shape);
    *Op::PlaceOf(&call, input.extent, s).in = Floats(state);
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
  for (std::size_t s = 0; s < op_.spec.states.size(); ++s, ++index) {
    const Extent extent = op_.spec.states[s].extent;
    *Op::PlaceOf(call, extent, s).out =
        static_cast<float*>(make(index, {call->batch, Op::Width(extent, sizes)}));
  }
  if (!op_.spec.skips) return;
  call->updates = static_cast<std::int64_t*>(make(index, {call->steps, call->batch}));
  call->macs = static_cast<std::int64_t*>(make(index + 1, {call->batch}));
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
    throw InvalidArgument("ai.edgernn." + op_.spec.name + ": input " + std::to_string(index) +
                          " is missing");
  }
  return Read(value);
}

void Node::Check(OrtStatus* status) const {
  if (status != nullptr) throw OrtError{status};
}

}  // namespace edgernn
