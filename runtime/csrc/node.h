// SPDX-License-Identifier: Apache-2.0
// One node of a model: what it is given is checked, and what it makes is asked for, here; what runs
// it is a library's own.

#ifndef EDGERNN_NODE_H_
#define EDGERNN_NODE_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "op.h"
#include "ort_abi.h"

namespace edgernn {

// ONNX Runtime reported an error of its own, which is passed on.
struct OrtError {
  OrtStatus* status;
};

// Immutable after construction, so that threads may call Run at once.
class Node {
 public:
  Node(const Op& op, const OrtApi* api, const OrtKernelInfo* info);
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual void Run(OrtKernelContext* context) const = 0;

  const OrtApi* api() const { return api_; }

 protected:
  // Reads a node's weight inputs; false if one of them is not constant.
  bool ReadConstants(const OrtKernelInfo* info, std::vector<Tensor>* weights) const;
  std::vector<Tensor> ReadWeights(OrtKernelContext* context) const;
  Sizes CheckWeights(const std::vector<Tensor>& weights) const;
  // The call, with its outputs.
  Call MakeCall(const Sizes& sizes, OrtKernelContext* context) const;
  void Check(OrtStatus* status) const;

  const Op& op_;
  const OrtApi* api_;

 private:
  Call CheckCall(const Sizes& sizes, OrtKernelContext* context) const;
  void MakeOutputs(const Sizes& sizes, OrtKernelContext* context, Call* call) const;
  Tensor Read(const OrtValue* value) const;
  Tensor Input(OrtKernelContext* context, std::size_t index) const;

  // what the kernel keeps the weights as, which are given as floats
  NumberType type_;
};

// What a library runs nodes on: each defines these once.

// ONNX Runtime's name of it.
extern const char kProvider[];

// The ops that it runs. Throws InvalidArgument where it runs none.
const std::deque<Op>& ProviderOps();

// threads: that a call may take, of the session's.
std::unique_ptr<Node> MakeNode(const Op& op, std::int64_t threads, const OrtApi* api,
                               const OrtKernelInfo* info);

}  // namespace edgernn

#endif  // EDGERNN_NODE_H_
