// SPDX-License-Identifier: Apache-2.0
// A cell that is defined in a file: a table of gates, and equations as programs.

#pragma once

#include "kernel/cell_kernel.h"
#include "program/program.h"

namespace edgernn {

// Arguments that are gates are numbered within their group: the gates marked kMid, or the others.
struct ProgramCell : CellKernel {
  Program update_program;
  Program mid_program;  // without results if the cell has no m
  Program map_program;  // maps the cell's own vectors; without results if they have no maps
};

}  // namespace edgernn
