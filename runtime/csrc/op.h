// SPDX-License-Identifier: Apache-2.0
// The ops: a cell under a rule, behind an imputer if there is one. Knows no ONNX Runtime.

#ifndef EDGERNN_OP_H_
#define EDGERNN_OP_H_

#include <deque>
#include <string>
#include <vector>

#include "schema.h"
#include "tensor.h"

namespace edgernn {

// Where a state goes in a call, and where it comes out.
struct StatePlace {
  const float** in;
  float** out;
};

struct Op {
  OpSpec spec;
  std::size_t cell;  // in the lists of cells and rules
  std::size_t rule;
  Kernel kernel;
  const Imputer* imputer;

  // The sizes that the weights have, which are in the order of the spec; they are to be kept as W
  // is given. Throws InvalidArgument where they do not agree with each other.
  Sizes CheckWeights(const std::vector<Tensor>& weights) const;

  // As those of a kernel.
  std::size_t PackedBytes(const Sizes& sizes) const;
  void Pack(const Sizes& sizes, const std::vector<Tensor>& weights, void* packed) const;
  std::size_t ScratchBytes(const Sizes& sizes, std::int64_t steps, std::int64_t batch) const;
  void Run(const Sizes& sizes, const void* packed, const Call& call, void* scratch) const;

  // The columns of a step's input.
  std::int64_t InputWidth(const Sizes& sizes) const;

  // The columns of a state.
  static std::int64_t Width(Extent extent, const Sizes& sizes);

  // The places of the op's state of this index.
  static StatePlace PlaceOf(Call* call, Extent extent, std::size_t index);
};

// All ops with the kernels of a table; made once.
const std::deque<Op>& ListOps(const KernelTable& table);

// The names of all ops, with or without a table.
std::string OpNames();

}  // namespace edgernn

#endif  // EDGERNN_OP_H_
