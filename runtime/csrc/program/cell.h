// SPDX-License-Identifier: Apache-2.0
// A cell that a file brings: its gates as a table and its equations as programs.

#ifndef EDGERNN_PROGRAM_CELL_H_
#define EDGERNN_PROGRAM_CELL_H_

#include "common/cell_kernel.h"
#include "program/program.h"

namespace edgernn {

// The programs' arguments that are gates have their places in their group as indices.
struct ProgramCell : CellKernel {
  Program update_program;
  Program mid_program;  // without results if the cell has no m
  Program map_program;  // of its own vectors; without results if they are read as they are
};

}  // namespace edgernn

#endif  // EDGERNN_PROGRAM_CELL_H_
