// SPDX-License-Identifier: Apache-2.0
// Runs a checked program on vectors. Each instruction is a loop over a block of vectors.

#ifndef EDGERNN_PROGRAM_RUN_H_
#define EDGERNN_PROGRAM_RUN_H_

#include "program/functions.h"
#include "program/program.h"

namespace edgernn::EDGERNN_ISA {

// The vectors of a value: the first one and the step to the next, 0 for a broadcast value.
struct ValuePlace {
  const float* at;
  std::int64_t step;
};

// Maximum number of vectors in a block: enough to amortise the dispatch of instructions, few enough
// for the L1 cache.
constexpr std::int64_t kProgramBlock = 16;

// The loop of one instruction over `count` vectors.
struct VectorLoop {
  const ValuePlace* places;
  const Instruction& instruction;
  std::int64_t count;

  const ValuePlace& From(int operand) const { return places[instruction.operands[operand]]; }
  float* To() const { return const_cast<float*>(places[instruction.to].at); }

  template <class Function>
  [[gnu::always_inline]] void Run1(const Function& function) const {
    const ValuePlace a = From(0);
    float* const to = To();
    for (std::int64_t i = 0; i < count; ++i) {
      Store(to + i * kLanes, function(Load(a.at + i * a.step)));
    }
  }

  template <class Function>
  [[gnu::always_inline]] void Run2(const Function& function) const {
    const ValuePlace a = From(0), b = From(1);
    float* const to = To();
    for (std::int64_t i = 0; i < count; ++i) {
      Store(to + i * kLanes, function(Load(a.at + i * a.step), Load(b.at + i * b.step)));
    }
  }

  template <class Function>
  [[gnu::always_inline]] void Run3(const Function& function) const {
    const ValuePlace a = From(0), b = From(1), c = From(2);
    float* const to = To();
    for (std::int64_t i = 0; i < count; ++i) {
      Store(to + i * kLanes,
            function(Load(a.at + i * a.step), Load(b.at + i * b.step), Load(c.at + i * c.step)));
    }
  }
};

[[gnu::noinline]] inline void RunInstructions(const Program& program, const ValuePlace* places,
                                              std::int64_t count) {
  for (int i = 0; i < program.instructions; ++i) {
    const VectorLoop loop{places, program.instruction[i], count};
    switch (loop.instruction.operation) {
#define EDGERNN_RUN(name, code, arity)                                                            \
  case Operation::name:                                                                           \
    loop.Run##arity([](auto... operands)                                                          \
                        __attribute__((always_inline)) { return functions::name(operands...); }); \
    break;
      EDGERNN_PROGRAM_OPS(EDGERNN_RUN)
#undef EDGERNN_RUN
      case Operation::copy:
        loop.Run1([](Vec a) { return a; });
        break;
    }
  }
}

// Runs a program for `count` vectors in blocks. begin(first, count) sets the places of a block's
// arguments to its first vector; finish(first, count, places) reads its results. `places` has room
// for kMaxPlaces.
template <class Begin, class Finish>
[[gnu::always_inline]] inline void RunBlocks(const Program& program, ValuePlace* places,
                                             std::int64_t count, const Begin& begin,
                                             const Finish& finish) {
  alignas(64) float memory[kMaxLiveValues * kLanes];
  float* free = memory;
  ValuePlace* place = places + program.arguments;
  for (int i = 0; i < program.constants; ++i, free += kLanes) {
    Store(free, Fill(program.constant[i]));
    *place++ = {free, 0};
  }
  const int registers = program.registers > 0 ? program.registers : 1;
  const std::int64_t room = (kMaxLiveValues - program.constants) / registers;
  const std::int64_t most = room < kProgramBlock ? room : kProgramBlock;
  const std::int64_t block = count < most ? count : most;
  for (int i = 0; i < program.registers; ++i, free += block * kLanes) *place++ = {free, kLanes};
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t left = count - first, block_count = left < block ? left : block;
    begin(first, block_count);
    RunInstructions(program, places, block_count);
    finish(first, block_count, places);
  }
}

// Runs a program for arguments whose vectors are evenly spaced. On entry, their places are at
// vector 0.
template <class Finish>
[[gnu::always_inline]] inline void RunProgram(const Program& program, ValuePlace* places,
                                              std::int64_t count, const Finish& finish) {
  std::int64_t done = 0;
  const auto begin = [&](std::int64_t first, std::int64_t) __attribute__((always_inline)) {
    for (int i = 0; i < program.arguments; ++i) places[i].at += (first - done) * places[i].step;
    done = first;
  };
  RunBlocks(program, places, count, begin, finish);
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_PROGRAM_RUN_H_
