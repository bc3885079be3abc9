// SPDX-License-Identifier: Apache-2.0
// From a cell as a file has it to one that drivers run.

#ifndef EDGERNN_PROGRAM_CHECK_CELL_H_
#define EDGERNN_PROGRAM_CHECK_CELL_H_

#include "common/arena.h"
#include "program/cell.h"
#include "program/check_program.h"

namespace edgernn {

// A cell as a file has it, under the names of its attributes.
struct CellSource {
  std::string name;
  std::vector<std::int64_t> gates;    // terms, see cells/gate.h
  std::vector<std::int64_t> vectors;  // 0: (H,), 1: (I,), 2: one number
  std::vector<std::int64_t> layout;   // states, M is I, reads_last, square, mid_vanishes
  ProgramSource update;
  ProgramSource mid;
  ProgramSource map;
};

// A checked cell and its memory.
struct CheckedCell {
  std::string name;
  CellTable table;
  ProgramCode update;
  ProgramCode mid;
  ProgramCode map;

  // With functions of an instruction set. Must not outlive this.
  ProgramCell View(const CellFunctions& functions) const;
};

// Throws InvalidArgument, a sentence, for what no driver can run; most_term: see FindFault.
CheckedCell CheckCell(const CellSource& source, int most_term = kMaxTerm);

// What update, or mid, may read of a cell, for CheckProgram.
FindArgument ArgumentsOf(const CellTable& cell, bool for_mid);

// A copy of a cell that lies in the arena with all that it refers to; null if that only counts.
const ProgramCell* CopyCell(const ProgramCell& cell, Arena* arena);

}  // namespace edgernn

#endif  // EDGERNN_PROGRAM_CHECK_CELL_H_
