// SPDX-License-Identifier: Apache-2.0
// The ops: a cell under a rule, behind an imputer if there is one. Independent of ONNX Runtime.

#ifndef EDGERNN_COMMON_OP_H_
#define EDGERNN_COMMON_OP_H_

#include <memory>
#include <string>
#include <vector>

#include "common/schema.h"
#include "common/tensor.h"
#include "program/check_cell.h"

namespace edgernn {

// Where a state goes in a call, and where it comes out.
struct StatePlace {
  const float** in;
  float** out;
};

// What runs an op: a cell's kernel, behind an imputer if there is one. Its functions are as those
// of a kernel.
struct OpKernel {
  Kernel kernel;
  const Imputer* imputer;

  std::size_t PackedBytes(const LayerSizes& sizes) const;
  void Pack(const LayerSizes& sizes, const Weights& weights, void* packed) const;
  std::size_t ScratchBytes(const LayerSizes& sizes, std::int64_t steps, std::int64_t batch) const;
  void Run(const LayerSizes& sizes, const void* packed, const Call& call, void* scratch) const;
};

struct Op : OpKernel {
  OpSpec spec;
  std::size_t cell;  // in the lists of cells and rules
  std::size_t rule;
  std::shared_ptr<const ProgramCell> program;  // the kernel's cell, if a file brings it

  // Whether `count` weights and states have the weight that a model may lack, true if none may be
  // lacking. Throws InvalidArgument for any other count.
  bool HasOptionalWeight(std::size_t count) const;

  // The sizes that the weights have, which are in the order of the spec, with an absent tensor for
  // one that the model lacks. They are to be kept as W is given. Throws InvalidArgument where they
  // do not agree with each other.
  LayerSizes CheckWeights(const std::vector<Tensor>& weights) const;

  // The weights as the kernel packs them.
  Weights Arrange(const std::vector<Tensor>& weights) const;

  // The columns of a step's input.
  std::int64_t InputWidth(const LayerSizes& sizes) const;

  // The places of one of the op's states.
  static StatePlace PlaceOf(Call* call, const StateInput& state);
};

// The op of this name with the kernels of the table, the same one at every call; null if there is
// none.
const Op* FindOp(const KernelTable& table, const std::string& name);

// The op of this name of a cell that a file brings, with the kernels of the table; null if there is
// none for the name's other parts. Throws InvalidArgument for a cell that no driver can run.
std::shared_ptr<const Op> MakeProgramOp(const KernelTable& table, const std::string& name,
                                        const CellSource& source);

// The names of all ops with the kernels of the table; * stands for the name of any cell that a file
// brings.
std::vector<std::string> OpNames(const KernelTable& table);

}  // namespace edgernn

#endif  // EDGERNN_COMMON_OP_H_
