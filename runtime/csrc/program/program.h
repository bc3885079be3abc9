// SPDX-License-Identifier: Apache-2.0
// Point-wise programs: equations that are stored in a file and interpreted by the library.
// Independent of ONNX Runtime and of the instruction set.
//
// A program is a list of values without branches: its arguments, its constants, then the value of
// each instruction. A program is checked before it is run.

#pragma once

#include <cstdint>

#include "cells/gate.h"
#include "program/ops.h"

namespace edgernn {

// X(name, code, arity) of ops that do not occur in files: ops with the products, and the
// activations of operands, that they read. A new one needs a row in kFusions of check_program.cc.
#define EDGERNN_FUSED_OPS(X)          \
  X(copy, , 1)                        \
  X(mul_add, , 3)                     \
  X(sigmoid_mul, , 2)                 \
  X(sigmoid_mul_tanh, , 2)            \
  X(sigmoid_mul_add, , 3)             \
  X(sigmoid_mul_tanh_add, , 3)        \
  X(mul_tanh_add, , 3)                \
  X(lerp_sigmoid, , 3)                \
  X(tanh_lerp_sigmoid, , 3)           \
  X(lerp_tanh_sigmoid, , 3)           \
  X(sigmoid_mul_add_sigmoid_mul, , 4) \
  X(sigmoid_mul_tanh_add_sigmoid_mul, , 4)

// The ops, with their codes in files.
enum class Operation : std::uint8_t {
#define EDGERNN_OPERATION(name, code, arity) name,
  EDGERNN_PROGRAM_OPS(EDGERNN_OPERATION) EDGERNN_FUSED_OPS(EDGERNN_OPERATION)
#undef EDGERNN_OPERATION
};

// The referent of an argument: a gate, x, a vector or a state of the cell, a result's gradient, or
// an operand of a step of a graph, which has a number for each column or one for each row.
enum class ArgumentKind : std::uint8_t { kGate, kX, kVector, kState, kResultGrad, kColumns, kRow };
constexpr int kArgumentKinds = 7;
constexpr int kArgumentIndices = 16;

constexpr int kMaxProgramArguments = 32;
// The place of an argument is the first place of its kind plus its index.
constexpr int kCellPlaces = kMaxGates + 1 + kMaxParams + 2 * kMaxStates;
constexpr int kFirstPlaces[kArgumentKinds] = {0,
                                              kMaxGates,
                                              kMaxGates + 1,
                                              kMaxGates + 1 + kMaxParams,
                                              kMaxGates + 1 + kMaxParams + kMaxStates,
                                              kCellPlaces,
                                              kCellPlaces + kArgumentIndices};
constexpr int kArgumentPlaces = kCellPlaces + 2 * kArgumentIndices;
// Limits of gradient programs, which are larger than those of files.
constexpr int kMaxGradientValues = 512;
constexpr int kMaxGradientResults = kMaxProgramArguments;
// Maximum number of results and registers.
constexpr int kMaxLiveValues = 256;
// Places: those of all arguments, then results, constants and registers.
constexpr int kFirstResult = kArgumentPlaces;
constexpr int kFirstConstant = kFirstResult + kMaxGradientResults;
constexpr int kMaxPlaces = kFirstConstant + kMaxGradientValues + kMaxLiveValues;
// Maximum number of vectors in a block: enough to amortise the dispatch of instructions, few enough
// for the L1 cache.
constexpr int kProgramBlock = 16;
// Number of copies of a constant: the lanes of the longest vector.
constexpr int kConstantCopies = 16;

struct ProgramArgument {
  ArgumentKind kind;
  std::uint8_t index;

  int Place() const { return kFirstPlaces[static_cast<int>(kind)] + index; }
};

// The steps from vector to vector of operands: none for numbers, and a gate's or a vector's own.
constexpr std::uint8_t kNumberStep = 0, kLaneStep = 1, kGateStep = 2, kVectorSteps = 3;
constexpr int kOperandSteps = kVectorSteps + kMaxParams;
constexpr int kMaxOperands = 4;

// The operands and the result `to` are places. `to` is a register, possibly that of an operand, or
// the place of a result.
struct Instruction {
  Operation operation;
  std::uint8_t steps[kMaxOperands];  // of the operands
  std::uint16_t operands[kMaxOperands];
  std::uint16_t to;
};

// The memory of a program's values: the step from vector to vector of each kind of operand, and the
// first vector of each value. A step of a graph has memory for the places of its program alone.
struct Places {
  std::int64_t steps[kOperandSteps];
  const float* at[kMaxPlaces];
};

// A view of a checked program. The place of result r may be the memory of state r: no instruction
// reads that state afterwards.
struct Program {
  std::int64_t arguments;
  std::int64_t constants;
  std::int64_t instructions;
  std::int64_t results;
  std::int64_t registers;
  std::int64_t block;  // maximum number of vectors that each instruction is run over
  std::int64_t counts[kArgumentKinds];  // of each kind, up to the last argument that is read
  const ProgramArgument* argument;
  const float* constant;  // (constants, kConstantCopies)
  const Instruction* instruction;

  std::int64_t FirstRegister() const { return kFirstConstant + constants; }
};

}  // namespace edgernn
