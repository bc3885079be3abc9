// SPDX-License-Identifier: Apache-2.0
// A cell that a user brings, for training: its gates as a table, and its equations and their
// derivatives as programs.

#ifndef EDGERNN_TRAIN_PROGRAM_CELL_H_
#define EDGERNN_TRAIN_PROGRAM_CELL_H_

#include "program/check_cell.h"
#include "train/c_api.h"

namespace edgernn {

// A checked cell and its memory. Does not move, as its programs refer to that.
class OwnedTrainCell : public ProgramTrainCell {
 public:
  // Throws InvalidArgument, a sentence, for what the drivers cannot run.
  OwnedTrainCell(const EdgernnTrainCellSource& source, const TrainCellFunctions& functions);
  OwnedTrainCell(const OwnedTrainCell&) = delete;
  OwnedTrainCell& operator=(const OwnedTrainCell&) = delete;

 private:
  CheckedCell forward_;
  ProgramCode update_back_;
  ProgramCode mid_back_;
};

}  // namespace edgernn

#endif  // EDGERNN_TRAIN_PROGRAM_CELL_H_
