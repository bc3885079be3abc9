// SPDX-License-Identifier: Apache-2.0
// Shapes and tensors that an op receives, and the exception for invalid ones.

#ifndef EDGERNN_COMMON_TENSOR_H_
#define EDGERNN_COMMON_TENSOR_H_

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "common/kernel.h"

namespace edgernn {

// Something the user gave is wrong.
class InvalidArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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

// As (5, 3).
std::string Print(const Shape& shape);

struct Tensor {
  Values values;
  Shape shape;

  // Whether this stands for an input that a model lacks; an empty tensor has axes.
  bool IsAbsent() const { return values.data == nullptr && shape.size() == 0; }
};

}  // namespace edgernn

#endif  // EDGERNN_COMMON_TENSOR_H_
