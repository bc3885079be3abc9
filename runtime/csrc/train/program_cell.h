// SPDX-License-Identifier: Apache-2.0
// A user-defined cell for training: its gates as a table, its equations and their derivatives as
// programs.

#pragma once

#include "program/check_cell.h"
#include "train/train_table.h"

namespace edgernn {

// A checked cell that owns its programs' memory. Neither copied nor moved: the programs point into
// it.
class OwnedTrainCell : public ProgramTrainCell {
 public:
  // Throws InvalidArgument if the drivers cannot run the cell.
  OwnedTrainCell(const EdgernnTrainCellSource& source, const TrainCellFunctions& functions);
  OwnedTrainCell(const OwnedTrainCell&) = delete;
  OwnedTrainCell& operator=(const OwnedTrainCell&) = delete;

 private:
  CheckedCell forward_;
  ProgramCode update_back_;
  ProgramCode mid_back_;
};

}  // namespace edgernn
