// SPDX-License-Identifier: Apache-2.0
// Runs the point-wise program of a step.

#pragma once

#include "program/program_step.h"
#include "program/run.h"

namespace edgernn::EDGERNN_ISA {

// Runs the program of a step on one row after the other.
class RowProgram {
 public:
  RowProgram(const ProgramStep& step, const StepCall& call) : step_(step), program_(step.program) {
    places_.steps[kNumberStep] = 0;
    places_.steps[kLaneStep] = kLanes;
    PlaceConstants(program_, &places_);
    PlaceEach(program_.registers, places_.at + program_.FirstRegister(),
              FindNext(registers_, program_.block));
    for (std::int64_t i = 0; i < Operands(); ++i) start_[i] = call.Find(step.operands[i].place);
  }

  void RunRow(std::int64_t i, std::int64_t j, std::int64_t k) {
    float* row[kMaxOperands];
    for (std::int64_t o = 0; o < Operands(); ++o) {
      const std::int64_t* const strides = step_.operands[o].strides;
      row[o] = start_[o] + i * strides[0] + j * strides[1] + k * strides[2];
    }
    const std::int64_t first_result = step_.column_operands + step_.row_operands;
    for (std::int64_t o = step_.column_operands; o < first_result; ++o) {
      float* const copies = tails_ + o * kLanes;
      Store(copies, Fill(*row[o]));
      places_.at[step_.operands[o].value] = copies;
    }
    const std::int64_t vectors = step_.columns / kLanes, tail = step_.columns % kLanes;
    for (std::int64_t first = 0; first < vectors; first += program_.block) {
      const std::int64_t left = vectors - first;
      ForColumns(
          [&](std::int64_t o) { places_.at[step_.operands[o].value] = row[o] + first * kLanes; });
      RunBlock(program_, places_, left < program_.block ? left : program_.block);
    }
    if (tail == 0) return;
    const std::size_t bytes = static_cast<std::size_t>(tail) * sizeof(float);
    ForColumns([&](std::int64_t o) {
      float* const copy = tails_ + o * kLanes;
      if (o < step_.column_operands) {
        Store(copy, Zero());
        std::memcpy(copy, row[o] + vectors * kLanes, bytes);
      }
      places_.at[step_.operands[o].value] = copy;
    });
    RunBlock(program_, places_, 1);
    for (std::int64_t o = first_result; o < Operands(); ++o) {
      std::memcpy(row[o] + vectors * kLanes, tails_ + o * kLanes, bytes);
    }
  }

 private:
  // columns, rows and results
  static constexpr std::int64_t kMaxOperands = 3 * kArgumentIndices;

  [[gnu::always_inline]] std::int64_t Operands() const {
    return step_.column_operands + step_.row_operands + step_.results;
  }

  // Calls body(o) for the operands and results that have a number for each column.
  template <class Body>
  [[gnu::always_inline]] void ForColumns(const Body& body) const {
    for (std::int64_t o = 0; o < step_.column_operands; ++o) body(o);
    for (std::int64_t o = step_.column_operands + step_.row_operands; o < Operands(); ++o) body(o);
  }

  const ProgramStep& step_;
  const Program& program_;
  Places places_;
  float* start_[kMaxOperands];
  alignas(64) float tails_[kMaxOperands * kLanes];
  alignas(64) float registers_[kMaxLiveValues * kLanes];
};

[[gnu::noinline]] inline void RunProgramStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const ProgramStep&>(base);
  RowProgram program(step, call);
  for (std::int64_t i = 0; i < step.rows[0]; ++i) {
    for (std::int64_t j = 0; j < step.rows[1]; ++j) {
      for (std::int64_t k = 0; k < step.rows[2]; ++k) program.RunRow(i, j, k);
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA
