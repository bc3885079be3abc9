// SPDX-License-Identifier: Apache-2.0
// Turns a cell's description from a file into a checked cell that drivers can run.

#pragma once

#include "program/cell.h"
#include "program/check_program.h"

namespace edgernn {

// A cell's description in a file. The fields have the names of the node's attributes.
struct CellSource {
  std::string name;
  std::vector<std::int64_t> gates;    // terms, see cells/gate.h
  std::vector<std::int64_t> vectors;  // size of each: 0 for (H,), 1 for (I,), 2 for one number
  // number of states, then flags: mid_is_input, reads_last, square, mid_vanishes
  std::vector<std::int64_t> layout;
  ProgramSource update;
  ProgramSource mid;
  ProgramSource map;
};

// A checked cell, which owns its programs.
struct CheckedCell {
  std::string name;
  CellTable table;
  ProgramCode update;
  ProgramCode mid;
  ProgramCode map;

  // A view with the functions of an instruction set. Must not outlive this.
  ProgramCell View(const CellFunctions& functions) const;
};

// Checks a cell. Returns false, and sets *error, for a cell that no driver can run. most_term: see
// FindFault.
[[nodiscard]] bool CheckCell(const CellSource& source, CheckedCell* cell, std::string* error,
                             int most_term = kMaxTerm);

// The arguments that a cell's update program, or its mid program, may read.
FindArgument ArgumentsOf(const CellTable& cell, bool for_mid);

// Copies a cell and all that it points to into the arena; null if the arena has no buffer.
const ProgramCell* CopyCell(const ProgramCell& cell, Arena* arena);

}  // namespace edgernn
