// SPDX-License-Identifier: Apache-2.0
// The step of a graph that runs a point-wise program.

#pragma once

#include "kernel/step.h"
#include "program/program.h"

namespace edgernn {

// An operand or a result of a program.
struct ProgramOperand {
  Place place;
  std::int64_t strides[kRowLoops];
  std::int64_t value;  // its place among those of the program's values
};

// A program on each number of all rows and columns.
struct ProgramStep : Step {
  Program program;
  std::int64_t rows[kRowLoops];
  std::int64_t columns;
  // those that have a number for each column, those that have one for each row, and the results
  std::int64_t column_operands, row_operands, results;
  const ProgramOperand* operands;  // one after the other
};

}  // namespace edgernn
