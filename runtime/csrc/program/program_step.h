// SPDX-License-Identifier: Apache-2.0
// The step of a graph that runs a point-wise program.

#pragma once

#include "kernel/step.h"
#include "program/program.h"

namespace edgernn {

// An operand or a result of a program.
struct ProgramOperand {
  Place place;
  bool is_constant;
  std::int64_t strides[kRowLoops];
};

// A program on each number of all rows and columns. The places of its program are those of the
// operands with a number for each column, of those with one for each row, of the results, of the
// constants and of the registers.
struct ProgramStep : Step {
  Program program;
  std::int64_t rows[kRowLoops];
  std::int64_t columns;
  std::int64_t column_operands, row_operands, results;
  const ProgramOperand* operands;  // in the order of their places
  bool is_block;                   // there is one row, which is one block
  std::int64_t outside_count;
  // Operands and results for each column that move from call to call. If the last vector of a block
  // is incomplete, these are all operands that are copied at each call: constants are copied once.
  const std::int64_t* outside;
  // Memory of the step. Set are the places of constants and registers, of the copies of numbers for
  // each row, and, for one block, of operands and results for each column that are not outside.
  Places* places;
  std::int64_t copy_floats;  // of an operand
  float* copies;  // (operands and results, copy_floats): numbers of rows, and incomplete vectors

  std::int64_t Operands() const { return column_operands + row_operands + results; }
};

}  // namespace edgernn
