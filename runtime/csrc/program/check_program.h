// SPDX-License-Identifier: Apache-2.0
// Turns a program from a file into a checked one that can be run.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/arena.h"
#include "program/program.h"

namespace edgernn {

// A program as it is stored in a file, see edgernn/program.py.
struct ProgramSource {
  std::vector<std::int64_t> ints;
  std::vector<float> numbers;

  bool IsAbsent() const { return ints.empty() && numbers.empty(); }
};

// A checked program, which owns its instructions.
struct ProgramCode {
  int registers = 0;
  std::vector<ProgramArgument> arguments;
  std::vector<float> constants;
  std::vector<Instruction> instructions;
  int results = 0;
  // for each result, the bit set of the arguments that it depends on
  std::vector<std::uint32_t> depends;

  Program View() const;
};

struct ProgramLimits {
  int values;
  int results;  // the exact number
};

// Returns the index under which the cell's functions read an argument, or -1 for an invalid one.
using FindArgument = std::function<int(ArgumentKind, int index)>;

// Checks a program. Returns false, and sets *error to a message that starts with `name`, for an
// invalid one.
[[nodiscard]] bool CheckProgram(const std::string& name, const ProgramSource& source,
                                const ProgramLimits& limits, const FindArgument& find,
                                ProgramCode* code, std::string* error);

// The number of operands that an instruction reads.
int ArityOf(const Instruction& instruction);

// Copies all that a program points to into the arena, if the arena has a buffer.
Program CopyProgram(Program program, Arena* arena);

}  // namespace edgernn
