// SPDX-License-Identifier: Apache-2.0
// The functions of a cell that is defined in a file, which run its programs.

#ifndef EDGERNN_PROGRAM_CELL_FUNCTIONS_H_
#define EDGERNN_PROGRAM_CELL_FUNCTIONS_H_

#include "cpu/cell_params.h"
#include "program/cell.h"
#include "program/multiply_neurons.h"
#include "program/run.h"

namespace edgernn::EDGERNN_ISA {

// Copies the results of a block of vectors to `to`, from vector `first` on.
[[gnu::always_inline]] inline void StoreResults(const Program& program, const ValuePlace* places,
                                                std::int64_t first, std::int64_t count,
                                                float* const* to) {
  for (int r = 0; r < program.results; ++r) {
    const float* const from = places[program.result[r]].at;
    for (std::int64_t i = 0; i < count * kLanes; i += kLanes) {
      Store(to[r] + first * kLanes + i, Load(from + i));
    }
  }
}

[[gnu::noinline]] inline void RunCellProgram(const Program& program, const PointwiseArgs& args) {
  ValuePlace places[kMaxPlaces];
  for (int i = 0; i < program.arguments; ++i) {
    const int index = program.argument[i].index;
    switch (program.argument[i].kind) {
      case ArgumentKind::kGate:
        places[i] = {args.sums + index * args.gate_stride, args.stride};
        break;
      case ArgumentKind::kX:
        places[i] = {args.x + args.first, kLanes};
        break;
      case ArgumentKind::kVector:
        places[i] = args.cell->extents[index] == Extent::kOne
                        ? ValuePlace{args.params[index], 0}
                        : ValuePlace{args.params[index] + args.first, kLanes};
        break;
      default:
        places[i] = {args.state[index] + args.first, kLanes};
    }
  }
  float* to[kMaxStates];
  for (int r = 0; r < program.results; ++r) to[r] = args.to[r] + args.first;
  RunProgram(program, places, args.count,
             [&](std::int64_t first, std::int64_t count, const ValuePlace* values) {
               StoreResults(program, values, first, count, to);
             });
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
    ValuePlace places[kMaxPlaces];
    for (int i = 0; i < program.arguments; ++i) {
      const int vector = program.argument[i].index;
      const Extent vector_extent = kernel.extents[vector];
      places[i] = vector_extent == extent
                      ? ValuePlace{params[vector], kLanes}
                      : ValuePlace{vector_extent == Extent::kOne ? params[vector] : zeros, 0};
    }
    RunProgram(program, places, count,
               [&](std::int64_t first, std::int64_t block_count, const ValuePlace* values) {
                 for (int r = 0; r < program.results; ++r) {
                   if (kernel.extents[r] != extent) continue;
                   const std::size_t bytes = Bytes(block_count * kLanes);
                   std::memcpy(params[r] + first * kLanes, values[program.result[r]].at, bytes);
                 }
               });
  }
}

constexpr CellFunctions kProgramFunctions = {&RunUpdateProgram, &RunMidProgram, &MultiplyAnyNeurons,
                                             nullptr,           &RunMapProgram, true};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_PROGRAM_CELL_FUNCTIONS_H_
