// SPDX-License-Identifier: Apache-2.0
// One node of a model. Validates inputs and allocates outputs; subclasses execute.

#ifndef EDGERNN_ONNX_NODE_H_
#define EDGERNN_ONNX_NODE_H_

#include <memory>
#include <string>
#include <vector>

#include "common/op.h"
#include "onnx/ort_abi.h"

namespace edgernn {

// ONNX Runtime reported an error of its own, which is passed on.
struct OrtError {
  OrtStatus* status;
};

// Immutable after construction, so that threads may call Run at once.
class Node {
 public:
  // Throws InvalidArgument for attributes that no kernel has, and for a wrong number of inputs.
  Node(const OrtApi* api, const OrtKernelInfo* info);
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual void Run(OrtKernelContext* context) const = 0;

  const OrtApi* api() const { return api_; }

 protected:
  // Reads a node's weight inputs; false if one of them is not constant.
  bool ReadConstants(const OrtKernelInfo* info, std::vector<Tensor>* weights) const;
  std::vector<Tensor> ReadWeights(OrtKernelContext* context) const;
  LayerSizes CheckWeights(const std::vector<Tensor>& weights) const;
  // The call, with its outputs.
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

  static constexpr std::size_t kAbsent = 0;  // X is the input there

  // what the kernel keeps the weights as, which are given as floats
  NumberType type_;
  std::int64_t rank_;
  std::vector<std::size_t> inputs_;  // of the op's weights
  std::size_t first_state_ = 1;
};

// What a library runs nodes on: each defines these once.

// ONNX Runtime's name of it.
extern const char kProvider[];

// Throws InvalidArgument where it can run none.
void CheckProvider();

// The op of this name, or null if it has no kernel; the second one's cell is a file's.
std::shared_ptr<const Op> FindProviderOp(const std::string& name);
std::shared_ptr<const Op> MakeProviderOp(const std::string& name, const CellSource& cell);

// threads: that a call may take, of the session's.
std::unique_ptr<Node> MakeNode(std::int64_t threads, const OrtApi* api, const OrtKernelInfo* info);

}  // namespace edgernn

#endif  // EDGERNN_ONNX_NODE_H_
