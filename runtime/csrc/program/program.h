// SPDX-License-Identifier: Apache-2.0
// Point-wise programs: equations as data, which a file brings and the library runs. Free of
// ONNX Runtime and of instruction sets.
//
// A program has values without branches: its arguments, its constants, then one value for each
// instruction. Nothing here is run before it is checked.

#ifndef EDGERNN_PROGRAM_PROGRAM_H_
#define EDGERNN_PROGRAM_PROGRAM_H_

#include <cstdint>

#include "program/ops.h"

namespace edgernn {

// The ops, by their codes in files, and one that no file has.
enum class Operation : std::uint8_t {
#define EDGERNN_OPERATION(name, code, arity) name = code,
  EDGERNN_PROGRAM_OPS(EDGERNN_OPERATION)
#undef EDGERNN_OPERATION
      copy
};

// What an argument is. Its index: of a gate, a vector or a state of the cell, or of a result.
enum class ArgumentKind : std::uint8_t { kGate, kX, kVector, kState, kResultGrad };
constexpr int kArgumentKinds = 5;
constexpr int kArgumentIndices = 16;

constexpr int kMaxProgramArguments = 32;
// Gradients have more values and results than what a file has.
constexpr int kMaxGradientValues = 512;
constexpr int kMaxGradientResults = kMaxProgramArguments;
// So many constants and values are there at a time.
constexpr int kMaxLiveValues = 256;
// What operands refer to: arguments, constants and registers.
constexpr int kMaxPlaces = kMaxProgramArguments + kMaxLiveValues;

struct ProgramArgument {
  ArgumentKind kind;
  std::uint8_t index;
};

// operands, to: places. `to` is a register, and may be that of an operand.
struct Instruction {
  Operation operation;
  std::uint16_t operands[3];
  std::uint16_t to;
};

// A checked program. Places are numbered: arguments, constants, registers.
struct Program {
  int arguments;
  int constants;
  int instructions;
  int results;
  int registers;
  const ProgramArgument* argument;
  const float* constant;
  const Instruction* instruction;
  const std::uint16_t* result;  // places, all of them registers
};

}  // namespace edgernn

#endif  // EDGERNN_PROGRAM_PROGRAM_H_
