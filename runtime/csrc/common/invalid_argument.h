// SPDX-License-Identifier: Apache-2.0
// The exception of the libraries for ONNX Runtime, training and GPUs. The functions that check and
// run packed models throw none.

#pragma once

#include <stdexcept>

namespace edgernn {

// An invalid input or attribute. The message names the input.
class InvalidArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace edgernn
