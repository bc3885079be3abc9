// SPDX-License-Identifier: Apache-2.0
// The tables through which edgernn_train.cc calls the kernels of one instruction set.

#pragma once

#include <cstddef>

#include "program/program.h"
#include "train/edgernn_train.h"

namespace edgernn {

struct TrainPointwiseArgs;
struct TrainRuleArgs;

// The point-wise maps of a cell, forward and backward.
struct TrainCellFunctions {
  void (*update)(const TrainPointwiseArgs&);
  void (*mid)(const TrainPointwiseArgs&);
  void (*update_back)(const TrainPointwiseArgs&);
  void (*mid_back)(const TrainPointwiseArgs&);
};

// A cell as the driver sees it.
struct TrainCell : CellTable, TrainCellFunctions {};

// A user-defined cell. The programs of m have no results if the cell has no m.
struct ProgramTrainCell : TrainCell {
  Program update_program;
  Program update_back_program;
  Program mid_program;
  Program mid_back_program;
};

// A rule and its functions, forward and backward. decide runs before the products of a step for
// kColumn, and before the update for other kinds; it is null for kTime. remember runs after the
// update, for rules with memories and equations. Only rules with equations have functions for
// backward: under the others, the gradient passes through no decision.
struct TrainRule : RuleSpec {
  void (*decide)(const TrainRuleArgs&);
  void (*remember)(const TrainRuleArgs&);
  void (*remember_back)(const TrainRuleArgs&);
  void (*decide_back)(const TrainRuleArgs&);
};

// The training kernels of one instruction set. `packed` holds the parameters packed for one
// direction, shared by all threads; `scratch` is the workspace of one thread, for the rows [first,
// end).
struct TrainTable {
  const char* isa;
  const TrainCell* cells;
  int cell_count;
  const TrainCellFunctions* program;  // for user-defined cells
  const TrainRule* rules;
  int rule_count;
  std::int64_t (*gates)(const EdgernnTrainCall&);
  std::size_t (*packed_bytes)(const EdgernnTrainCall&);
  std::size_t (*scratch_bytes)(const EdgernnTrainCall&, std::int64_t rows);
  void (*pack)(const EdgernnTrainCall&, bool back, void* packed);
  void (*forward)(const EdgernnTrainCall&, void* packed, std::int64_t first, std::int64_t end,
                  void* scratch);
  void (*backward)(const EdgernnTrainCall&, void* packed, std::int64_t first, std::int64_t end,
                   void* scratch);
  // sums the parameters' gradients over the workspaces of all threads and writes them
  void (*sum_grads)(const EdgernnTrainCall&, void* const* scratch, int count);
};

}  // namespace edgernn
