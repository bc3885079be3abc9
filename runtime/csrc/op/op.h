// SPDX-License-Identifier: Apache-2.0
// An op: a cell under an update rule, with an optional imputer. Independent of ONNX Runtime.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "op/schema.h"
#include "op/tensor.h"
#include "program/check_cell.h"

namespace edgernn {

// The pointers of a Call to one state: its input and its output.
struct StatePlace {
  const float** in;
  float** out;
};

// The kernel of an op: that of its cell and rule, with an optional imputer. The functions have the
// same meaning as those of Kernel.
struct OpKernel {
  Kernel kernel;
  const Imputer* imputer;

  std::uint64_t PackedBytes(const LayerSizes& sizes) const;
  void Pack(const LayerSizes& sizes, const Weights& weights, void* packed) const;
  std::uint64_t ScratchBytes(const LayerSizes& sizes, std::int64_t steps, std::int64_t batch) const;
  std::uint64_t KeptBytes(const LayerSizes& sizes, std::int64_t batch) const;
  void Run(const LayerSizes& sizes, const void* packed, const Call& call, void* scratch) const;
};

struct Op : OpKernel {
  OpSpec spec;
  std::size_t cell;                            // index in the list of cells
  std::size_t rule;                            // index in the list of rules
  std::shared_ptr<const ProgramCell> program;  // the kernel's cell, if it is defined in a file

  // Checks the number of weights and states. Sets *all to true if it includes the optional weight
  // or the op has none. Returns false, and sets *error, for a wrong number.
  [[nodiscard]] bool CheckCount(std::size_t count, bool* all, std::string* error) const;

  // Derives the sizes of a layer from its weights, in the order of the spec, with an absent tensor
  // for an optional weight that is missing. The storage type is that of W. Returns false, and sets
  // *error, for shapes that do not match, and for a group size that the rule does not support.
  [[nodiscard]] bool CheckWeights(const std::vector<Tensor>& weights, std::int64_t group_size,
                                  LayerSizes* sizes, std::string* error) const;

  // Sorts the weights into the fields that Pack reads.
  Weights Arrange(const std::vector<Tensor>& weights) const;

  // The number of columns of X.
  std::int64_t InputWidth(const LayerSizes& sizes) const;

  // The pointers of `call` to one of the op's states.
  static StatePlace PlaceOf(Call* call, const StateInput& state);
};

// Returns the op of this name with the kernels of the table, or null if it does not exist. The op
// lives as long as the process.
const Op* FindOp(const KernelTable& table, const std::string& name);

// Makes the op of this name for a cell that is defined in a file, with the kernels of the table.
// Returns null if the name's rule, imputer or norm has no kernel, and for an invalid cell, for
// which it sets *error.
std::shared_ptr<const Op> MakeProgramOp(const KernelTable& table, const std::string& name,
                                        const CellSource& source, std::string* error);

// The names of all ops with the kernels of the table. A * stands for the name of any cell that is
// defined in a file.
std::vector<std::string> OpNames(const KernelTable& table);

}  // namespace edgernn
