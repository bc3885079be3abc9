// SPDX-License-Identifier: Apache-2.0
// Point-wise programs: equations that are stored in a file and interpreted by the library.
// Independent of ONNX Runtime and of the instruction set.
//
// A program is a list of values without branches: its arguments, its constants, then the value of
// each instruction. A program is checked before it is run.

#ifndef EDGERNN_PROGRAM_PROGRAM_H_
#define EDGERNN_PROGRAM_PROGRAM_H_

#include <cstdint>

#include "program/ops.h"

namespace edgernn {

// The ops, with their codes in files. `copy` is internal and does not occur in files.
enum class Operation : std::uint8_t {
#define EDGERNN_OPERATION(name, code, arity) name = code,
  EDGERNN_PROGRAM_OPS(EDGERNN_OPERATION)
#undef EDGERNN_OPERATION
      copy
};

// The referent of an argument: a gate, x, a vector or a state of the cell, or a result's gradient.
enum class ArgumentKind : std::uint8_t { kGate, kX, kVector, kState, kResultGrad };
constexpr int kArgumentKinds = 5;
constexpr int kArgumentIndices = 16;

constexpr int kMaxProgramArguments = 32;
// Limits of gradient programs, which are larger than those of files.
constexpr int kMaxGradientValues = 512;
constexpr int kMaxGradientResults = kMaxProgramArguments;
// Maximum number of constants and registers.
constexpr int kMaxLiveValues = 256;
// Maximum number of places: arguments, constants and registers.
constexpr int kMaxPlaces = kMaxProgramArguments + kMaxLiveValues;

struct ProgramArgument {
  ArgumentKind kind;
  std::uint8_t index;
};

// The operands and the result `to` are places. `to` is a register, possibly that of an operand.
struct Instruction {
  Operation operation;
  std::uint16_t operands[3];
  std::uint16_t to;
};

// A view of a checked program. Places count its arguments, then its constants, then its registers.
struct Program {
  int arguments;
  int constants;
  int instructions;
  int results;
  int registers;
  const ProgramArgument* argument;
  const float* constant;
  const Instruction* instruction;
  const std::uint16_t* result;  // places, all registers
};

}  // namespace edgernn

#endif  // EDGERNN_PROGRAM_PROGRAM_H_
