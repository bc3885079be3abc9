// SPDX-License-Identifier: Apache-2.0
// A node of a model. Validates its inputs and allocates its outputs; subclasses run the op.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/invalid_argument.h"
#include "edgernn.h"
#include "onnx/ort_abi.h"
#include "op/op.h"

namespace edgernn {

// An error of ONNX Runtime, which is passed on to the caller.
struct OrtError {
  OrtStatus* status;
};

// Several threads may call Run at once: it changes no member but the cached workspace, which one
// call at a time owns.
class Node {
 public:
  // Throws InvalidArgument for attributes without a kernel, and for a wrong number of inputs.
  Node(const OrtApi* api, const OrtKernelInfo* info);
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual void Run(OrtKernelContext* context) const = 0;

  const OrtApi* api() const { return api_; }

 protected:
  // Reads the weights when the node is created. Returns false if one of them is not constant.
  bool ReadConstants(const OrtKernelInfo* info, std::vector<Tensor>* weights) const;
  // Reads the weights of a call.
  std::vector<Tensor> ReadWeights(OrtKernelContext* context) const;
  LayerSizes CheckWeights(const std::vector<Tensor>& weights) const;
  // Checks the inputs of a call and allocates its outputs.
  Call MakeCall(const LayerSizes& sizes, OrtKernelContext* context) const;
  void Check(OrtStatus* status) const;
  [[noreturn]] void Refuse(const std::string& what, const std::string& why) const;

  const std::shared_ptr<const Op> owner_;
  const Op& op_;
  const OrtApi* api_;

 private:
  Call CheckCall(const LayerSizes& sizes, OrtKernelContext* context) const;
  void MakeOutputs(const LayerSizes& sizes, OrtKernelContext* context, Call* call) const;
  Tensor Read(const OrtValue* value) const;
  Tensor Input(OrtKernelContext* context, std::size_t index) const;

  static constexpr std::size_t kAbsent = 0;  // never a weight: input 0 is X

  NumberType type_;  // storage type of the packed weights, whose inputs are floats
  std::int64_t rank_;
  std::int64_t group_size_;
  std::vector<std::size_t> inputs_;  // indices of the op's weights among the node's inputs
  std::size_t first_state_ = 1;
};

// The execution provider of a library. cpu_node.cc and cuda_node.cc each define the following.

// ONNX Runtime's name of the provider.
extern const char kProvider[];

// Throws InvalidArgument if the provider cannot run on this machine.
void CheckProvider();

// Returns the op of this name, or null if it has no kernel. MakeProviderOp makes the op of a cell
// that is defined in a file.
std::shared_ptr<const Op> FindProviderOp(const std::string& name);
std::shared_ptr<const Op> MakeProviderOp(const std::string& name, const CellSource& cell,
                                         std::string* error);

// threads: Maximum number of the session's threads that a call uses.
std::unique_ptr<Node> MakeNode(std::int64_t threads, const OrtApi* api, const OrtKernelInfo* info);

}  // namespace edgernn
