// SPDX-License-Identifier: Apache-2.0
// The shapes and tensors of an op's inputs.

#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "kernel/kernel.h"

namespace edgernn {

// The sizes of a tensor's axes. Allocates no memory, as every call checks several shapes. Keeps the
// first kMaxAxes sizes, which is more than any valid input has.
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

// Formats a shape, such as (5, 3).
std::string Print(const Shape& shape);

struct Tensor {
  Values values;
  Shape shape;

  // True for a missing optional input. A tensor without elements is not absent, as it has axes.
  bool IsAbsent() const { return values.data == nullptr && shape.size() == 0; }
};

}  // namespace edgernn
