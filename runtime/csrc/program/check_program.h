// SPDX-License-Identifier: Apache-2.0
// From a program as a file has it to one that can be run.

#ifndef EDGERNN_PROGRAM_CHECK_PROGRAM_H_
#define EDGERNN_PROGRAM_CHECK_PROGRAM_H_

#include <functional>
#include <string>
#include <vector>

#include "program/program.h"

namespace edgernn {

// A program as a file has it; see edgernn/program.py.
struct ProgramSource {
  std::vector<std::int64_t> ints;
  std::vector<float> numbers;

  bool IsAbsent() const { return ints.empty() && numbers.empty(); }
};

// A checked program and its memory.
struct ProgramCode {
  int registers = 0;
  std::vector<ProgramArgument> arguments;
  std::vector<float> constants;
  std::vector<Instruction> instructions;
  std::vector<std::uint16_t> results;
  // for each result, which arguments it depends on, by their bits
  std::vector<std::uint32_t> depends;

  Program View() const;
};

struct ProgramLimits {
  int values;
  int results;  // so many there must be
};

// The index of an argument as its reader numbers them; -1: there is none to read.
using FindArgument = std::function<int(ArgumentKind, int index)>;

// Throws InvalidArgument, a sentence that begins with `name`, for what is not a program.
ProgramCode CheckProgram(const std::string& name, const ProgramSource& source,
                         const ProgramLimits& limits, const FindArgument& find);

}  // namespace edgernn

#endif  // EDGERNN_PROGRAM_CHECK_PROGRAM_H_
