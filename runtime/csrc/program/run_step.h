// SPDX-License-Identifier: Apache-2.0
// Runs the point-wise program of a step.

#pragma once

#include "program/program_step.h"
#include "program/run.h"

namespace edgernn::EDGERNN_ISA {

// Runs the program of a step on one row after the other.
class RowProgram {
 public:
  RowProgram(const ProgramStep& step, const StepCall& call) : step_(step) {
    for (std::int64_t i = 0; i < step.Operands(); ++i)
      start_[i] = call.Find(step.operands[i].place);
  }

  void RunRow(std::int64_t i, std::int64_t j, std::int64_t k) const {
    float* row[kMaxStepOperands];
    for (std::int64_t o = 0; o < step_.Operands(); ++o) {
      const std::int64_t* const strides = step_.operands[o].strides;
      row[o] = start_[o] + i * strides[0] + j * strides[1] + k * strides[2];
    }
    const Program& program = step_.program;
    Places& places = *step_.places;
    const std::int64_t first_result = step_.column_operands + step_.row_operands;
    for (std::int64_t o = step_.column_operands; o < first_result; ++o) {
      Store(step_.copies + o * step_.copy_floats, Fill(*row[o]));
    }
    const std::int64_t vectors = step_.columns / kLanes, tail = step_.columns % kLanes;
    for (std::int64_t first = 0; first < vectors; first += program.block) {
      const std::int64_t left = vectors - first;
      ForColumns([&](std::int64_t o) { places.at[o] = row[o] + first * kLanes; });
      RunBlock(program, places, left < program.block ? left : program.block);
    }
    if (tail == 0) return;
    const std::size_t bytes = static_cast<std::size_t>(tail) * sizeof(float);
    ForColumns([&](std::int64_t o) {
      float* const copy = step_.copies + o * step_.copy_floats;
      if (o < step_.column_operands) {
        Store(copy, Zero());
        std::memcpy(copy, row[o] + vectors * kLanes, bytes);
      }
      places.at[o] = copy;
    });
    RunBlock(program, places, 1);
    for (std::int64_t o = first_result; o < step_.Operands(); ++o) {
      std::memcpy(row[o] + vectors * kLanes, step_.copies + o * step_.copy_floats, bytes);
    }
  }

 private:
  // columns, rows and results
  static constexpr std::int64_t kMaxStepOperands = 3 * kArgumentIndices;

  // Calls body(o) for the operands and results that have a number for each column.
  template <class Body>
  [[gnu::always_inline]] void ForColumns(const Body& body) const {
    for (std::int64_t o = 0; o < step_.column_operands; ++o) body(o);
    const std::int64_t first_result = step_.column_operands + step_.row_operands;
    for (std::int64_t o = first_result; o < step_.Operands(); ++o) body(o);
  }

  const ProgramStep& step_;
  float* start_[kMaxStepOperands];
};

[[gnu::noinline]] inline void RunProgramRows(const ProgramStep& step, const StepCall& call) {
  const RowProgram program(step, call);
  for (std::int64_t i = 0; i < step.rows[0]; ++i) {
    for (std::int64_t j = 0; j < step.rows[1]; ++j) {
      for (std::int64_t k = 0; k < step.rows[2]; ++k) program.RunRow(i, j, k);
    }
  }
}

[[gnu::noinline]] inline void RunProgramStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const ProgramStep&>(base);
  if (!step.is_block) return RunProgramRows(step, call);
  const bool is_whole = step.columns % kLanes == 0;
  const std::size_t bytes = static_cast<std::size_t>(step.columns) * sizeof(float);
  for (std::int64_t i = 0; i < step.outside_count; ++i) {
    const std::int64_t o = step.outside[i];
    float* const at = call.Find(step.operands[o].place);
    if (is_whole) {
      step.places->at[o] = at;
    } else {
      std::memcpy(step.copies + o * step.copy_floats, at, bytes);
    }
  }
  const std::int64_t first_result = step.column_operands + step.row_operands;
  for (std::int64_t o = step.column_operands; o < first_result; ++o) {
    Store(step.copies + o * step.copy_floats, Fill(*call.Find(step.operands[o].place)));
  }
  RunBlock(step.program, *step.places, (step.columns + kLanes - 1) / kLanes);
  if (is_whole) return;
  for (std::int64_t o = first_result; o < step.Operands(); ++o) {
    std::memcpy(call.Find(step.operands[o].place), step.copies + o * step.copy_floats, bytes);
  }
}

}  // namespace edgernn::EDGERNN_ISA
