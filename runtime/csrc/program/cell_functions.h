// SPDX-License-Identifier: Apache-2.0
// The functions of a cell that is defined in a file, which run its programs.

#pragma once

#include "cpu/cell_params.h"
#include "program/cell.h"
#include "program/multiply_neurons.h"
#include "program/run.h"

namespace edgernn::EDGERNN_ISA {

// Runs a program for 1 to program.block vectors.
[[gnu::noinline]] inline void RunCellBlock(const Program& program, const PointwiseArgs& args) {
  alignas(64) float memory[kMaxLiveValues * kLanes];
  Places places;
  places.steps[kNumberStep] = 0;
  places.steps[kLaneStep] = kLanes;
  places.steps[kGateStep] = args.stride;
  const float* sums = args.sums;
  const auto place = [&](ArgumentKind kind, const auto& find) __attribute__((always_inline)) {
    const int k = static_cast<int>(kind);
    PlaceEach(program.counts[k], places.at + kFirstPlaces[k], find);
  };
  place(ArgumentKind::kGate,
        [&](std::int64_t) { return (sums += args.gate_stride) - args.gate_stride; });
  place(ArgumentKind::kX, [&](std::int64_t) { return args.x + args.first; });
  place(ArgumentKind::kVector, [&](std::int64_t i) {
    const bool one = args.cell->extents[i] == Extent::kOne;
    places.steps[kVectorSteps + i] = one ? 0 : kLanes;
    return args.params[i] + (one ? 0 : args.first);
  });
  place(ArgumentKind::kState, [&](std::int64_t i) { return args.state[i] + args.first; });
  PlaceConstants(program, &places);
  PlaceEach(program.results, places.at + kFirstResult,
            [&](std::int64_t r) { return args.to[r] + args.first; });
  PlaceEach(program.registers, places.at + program.FirstRegister(),
            FindNext(memory, program.block));
  RunBlock(program, places, args.count);
}

[[gnu::noinline]] inline void RunCellBlocks(const Program& program, PointwiseArgs args) {
  for (std::int64_t left = args.count; left > 0; left -= program.block) {
    args.count = left < program.block ? left : program.block;
    RunCellBlock(program, args);
    args.first += program.block * kLanes;
    args.sums += program.block * args.stride;
  }
}

inline void RunCellProgram(const Program& program, const PointwiseArgs& args) {
  if (args.count > program.block) return RunCellBlocks(program, args);
  if (args.count > 0) RunCellBlock(program, args);
}

inline const ProgramCell& AsProgramCell(const CellKernel& cell) {
  return static_cast<const ProgramCell&>(cell);
}

inline void RunUpdateProgram(const PointwiseArgs& args) {
  RunCellProgram(AsProgramCell(*args.cell).update_program, args);
}

inline void RunMidProgram(const PointwiseArgs& args) {
  RunCellProgram(AsProgramCell(*args.cell).mid_program, args);
}

// Maps the cell's vectors in place. A vector depends on vectors of its size and on numbers, so
// numbers are mapped last.
[[gnu::noinline, gnu::cold]] inline void RunMapProgram(const CellKernel& kernel,
                                                       const LayerSizes& sizes,
                                                       float* const* params) {
  const Program& program = AsProgramCell(kernel).map_program;
  if (program.results == 0) return;
  float zeros[kLanes] = {};
  for (const Extent extent : {Extent::kHidden, Extent::kInput, Extent::kOne}) {
    const std::int64_t count = extent == Extent::kHidden  ? Blocks(sizes.hidden)
                               : extent == Extent::kInput ? Blocks(sizes.input)
                                                          : 1;
    Places places;
    places.steps[kNumberStep] = 0;
    places.steps[kLaneStep] = kLanes;
    const auto begin = [&](std::int64_t first, std::int64_t) {
      for (int i = 0; i < program.arguments; ++i) {
        const int vector = program.argument[i].index;
        const bool whole = kernel.extents[vector] == extent;
        const bool number = kernel.extents[vector] == Extent::kOne;
        places.steps[kVectorSteps + vector] = whole ? kLanes : 0;
        places.at[program.argument[i].Place()] = whole    ? params[vector] + first * kLanes
                                                 : number ? params[vector]
                                                          : zeros;
      }
    };
    const auto finish = [&](std::int64_t first, std::int64_t block_count) {
      for (int r = 0; r < program.results; ++r) {
        if (kernel.extents[r] != extent) continue;
        const std::size_t bytes = Bytes(block_count * kLanes);
        std::memcpy(params[r] + first * kLanes, places.at[kFirstResult + r], bytes);
      }
    };
    RunBlocks(program, &places, count, begin, finish);
  }
}

constexpr CellFunctions kProgramFunctions = {&RunUpdateProgram, &RunMidProgram, &MultiplyAnyNeurons,
                                             nullptr,           &RunMapProgram, true};

}  // namespace edgernn::EDGERNN_ISA
