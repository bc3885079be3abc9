// SPDX-License-Identifier: Apache-2.0
// Runs a checked program on vectors. Each instruction is a loop over a block of vectors.

#pragma once

#include "program/functions.h"
#include "program/program.h"

namespace edgernn::EDGERNN_ISA {

// Runs an instruction over `count` vectors, at least one.
using RunFunction = void (*)(const Places&, const Instruction&, std::int64_t count);

template <class Function, std::size_t... kOperands>
[[gnu::always_inline]] inline void RunLoop(const Places& places, const Instruction& instruction,
                                           std::int64_t count, const Function& function,
                                           std::index_sequence<kOperands...>) {
  const float* from[] = {places.at[instruction.operands[kOperands]]...};
  const std::int64_t steps[] = {places.steps[instruction.steps[kOperands]]...};
  float* to = const_cast<float*>(places.at[instruction.to]);
  do {
    Store(to, function(Load(from[kOperands])...));
    ((from[kOperands] += steps[kOperands]), ...);
    to += kLanes;
  } while (--count > 0);
}

// The function of each operation.
#define EDGERNN_RUN(name, code, arity)                                                 \
  inline void run_##name(const Places& places, const Instruction& instruction,         \
                         std::int64_t count) {                                         \
    const auto function = [](auto... operands) __attribute__((always_inline)) -> Vec { \
      return functions::name(operands...);                                             \
    };                                                                                 \
    RunLoop(places, instruction, count, function, std::make_index_sequence<arity>());  \
  }
EDGERNN_PROGRAM_OPS(EDGERNN_RUN)
EDGERNN_FUSED_OPS(EDGERNN_RUN)
#undef EDGERNN_RUN

#define EDGERNN_ADDRESS(name, code, arity) &run_##name,
constexpr RunFunction kRunFunctions[] = {EDGERNN_PROGRAM_OPS(EDGERNN_ADDRESS)
                                             EDGERNN_FUSED_OPS(EDGERNN_ADDRESS)};
#undef EDGERNN_ADDRESS

// Runs a program over a block of vectors, at least one and at most program.block.
[[gnu::always_inline]] inline void RunBlock(const Program& program, const Places& places,
                                            std::int64_t count) {
  const Instruction* const end = program.instruction + program.instructions;
  for (const Instruction* i = program.instruction; i < end; ++i) {
    kRunFunctions[static_cast<int>(i->operation)](places, *i, count);
  }
}

// Sets to[i] to find(i) for a few i. The empty assembly keeps the compiler from vectorising the
// loop, which would take longer.
template <class Find>
[[gnu::always_inline]] inline void PlaceEach(std::int64_t count, const float** to, Find find) {
  for (std::int64_t i = 0; i < count; ++i) {
    asm volatile("");
    to[i] = find(i);
  }
}

[[gnu::always_inline]] inline void PlaceConstants(const Program& program, Places* places) {
  const float* constant = program.constant;
  PlaceEach(program.constants, places->at + kFirstConstant,
            [&](std::int64_t) { return (constant += kConstantCopies) - kConstantCopies; });
}

// Returns the next `count` vectors of `memory` at each call.
[[gnu::always_inline]] inline auto FindNext(float* memory, std::int64_t count) {
  return [memory, size = count * kLanes](std::int64_t) mutable { return (memory += size) - size; };
}

// Runs a program for `count` vectors in blocks. begin(first, count) sets the places of a block's
// arguments to its first vector; finish(first, count) reads its results. The steps are set.
template <class Begin, class Finish>
[[gnu::always_inline]] inline void RunBlocks(const Program& program, Places* places,
                                             std::int64_t count, const Begin& begin,
                                             const Finish& finish) {
  alignas(64) float memory[kMaxLiveValues * kLanes];
  PlaceConstants(program, places);
  PlaceEach(program.results, places->at + kFirstResult, FindNext(memory, program.block));
  PlaceEach(program.registers, places->at + program.FirstRegister(),
            FindNext(memory + program.results * program.block * kLanes, program.block));
  for (std::int64_t first = 0; first < count; first += program.block) {
    const std::int64_t left = count - first;
    const std::int64_t block_count = left < program.block ? left : program.block;
    begin(first, block_count);
    RunBlock(program, *places, block_count);
    finish(first, block_count);
  }
}

}  // namespace edgernn::EDGERNN_ISA
