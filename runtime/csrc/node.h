// SPDX-License-Identifier: Apache-2.0
// One node of a model: its weights, packed, and how a call is checked and run.

#ifndef EDGERNN_NODE_H_
#define EDGERNN_NODE_H_

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

struct FreeBuffer {
  void operator()(void* buffer) const;
};
using Buffer = std::unique_ptr<void, FreeBuffer>;

// Immutable after construction, so that threads may call Run at once.
class Node {
 public:
  Node(const Op& op, std::int64_t threads, const OrtApi* api, const OrtKernelInfo* info);

  void Run(OrtKernelContext* context) const;

  const OrtApi* api() const { return api_; }

 private:
  // Reads a node's weight inputs; false if one of them is not constant.
  bool ReadConstants(const OrtKernelInfo* info, std::vector<Tensor>* weights) const;
  Sizes CheckWeights(const std::vector<Tensor>& weights) const;
  Buffer Pack(const Sizes& sizes, const std::vector<Tensor>& weights) const;
  Call CheckCall(const Sizes& sizes, OrtKernelContext* context) const;
  void MakeOutputs(const Sizes& sizes, OrtKernelContext* context, Call* call) const;

  Tensor Read(const OrtValue* value) const;
  Tensor Input(OrtKernelContext* context, std::size_t index) const;
  void Check(OrtStatus* status) const;

  const Op& op_;
  const std::int64_t threads_;
  const OrtApi* api_;
  // what the kernel keeps the weights as, which are given as floats
  NumberType type_;
  bool packed_once_;
  Sizes sizes_{};
  Buffer packed_;
};

}  // namespace edgernn

#endif  // EDGERNN_NODE_H_
