// SPDX-License-Identifier: Apache-2.0
// One node of a model: its weights, packed, and how a call is checked and run.

#ifndef EDGERNN_NODE_H_
#define EDGERNN_NODE_H_

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_abi.h"
#include "schema.h"

namespace edgernn {

// Something the user gave is wrong; becomes ORT_INVALID_ARGUMENT.
class InvalidArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// ONNX Runtime reported an error of its own, which is passed on.
struct OrtError {
  OrtStatus* status;
};

struct FreeBuffer {
  void operator()(void* buffer) const;
};
using Buffer = std::unique_ptr<void, FreeBuffer>;

// The sizes of a tensor's axes, without an allocation: a call looks at several. Of a tensor with
// more axes than any input has, the first ones.
class Shape {
 public:
  static constexpr std::size_t kMaxAxes = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) {
    for (const std::int64_t size : sizes) push_back(size);
  }

  void push_back(std::int64_t size) {
    if (axes_ < kMaxAxes) sizes_[axes_] = size;
    ++axes_;
  }

  std::size_t size() const { return axes_; }
  std::size_t kept() const { return axes_ < kMaxAxes ? axes_ : kMaxAxes; }
  std::int64_t operator[](std::size_t axis) const { return sizes_[axis]; }
  const std::int64_t* begin() const { return sizes_; }
  const std::int64_t* end() const { return sizes_ + kept(); }

  bool operator==(const Shape& other) const {
    return axes_ == other.axes_ && std::equal(begin(), end(), other.begin());
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }

 private:
  std::size_t axes_ = 0;
  std::int64_t sizes_[kMaxAxes] = {};
};

struct Tensor {
  const float* data;
  Shape shape;
};

// Immutable after construction, so that threads may call Run at once.
class Node {
 public:
  Node(const OpSpec& op, const Kernel& kernel, const Imputer* imputer, const OrtApi* api,
       const OrtKernelInfo* info);

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

  const OpSpec& op_;
  const Kernel& kernel_;
  const Imputer* imputer_;
  const OrtApi* api_;
  bool packed_once_;
  Sizes sizes_{};
  Buffer packed_;
};

}  // namespace edgernn

#endif  // EDGERNN_NODE_H_
