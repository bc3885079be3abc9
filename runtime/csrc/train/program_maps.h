// SPDX-License-Identifier: Apache-2.0
// The point-wise maps of a user-defined cell: its programs are interpreted over the rows of a step.

#pragma once

#include "program/run.h"
#include "train/cell_maps.h"
#include "train/gemm_row_major.h"

namespace edgernn::EDGERNN_ISA {

inline const ProgramTrainCell& ProgramCellOf(const TrainPointwiseArgs& call) {
  return static_cast<const ProgramTrainCell&>(*call.cell);
}

// Consecutive vectors in row-major order. The last vector of a row may be partial.
struct VectorBlock {
  const TrainPointwiseArgs& call;
  std::int64_t row;  // row of the first vector
  std::int64_t at;   // column of the first vector
  std::int64_t count;

  // Calls visit(i, row, at, lanes) for vector i.
  template <class Visit>
  [[gnu::always_inline]] void ForEach(const Visit& visit) const {
    std::int64_t current = row, column = at;
    for (std::int64_t i = 0; i < count; ++i) {
      visit(i, current, column, Lanes(call.size - column));
      column += kLanes;
      if (column >= call.size) {
        column = 0;
        ++current;
      }
    }
  }
};

// Runs a program over all rows. Calls finish(block, results) after each block to store its results.
template <bool kForMid, class Finish>
[[gnu::always_inline]] inline void RunOverRows(const Program& program,
                                               const TrainPointwiseArgs& call,
                                               const Finish& finish) {
  const ProgramTrainCell& cell = ProgramCellOf(call);
  const GateList& gates = (kForMid ? cell.first_stage : cell.second_stage).all;
  alignas(64) float memory[kMaxProgramArguments * kProgramBlock * kLanes];
  Places places;
  for (std::int64_t& step : places.steps) step = kLanes;
  places.steps[kNumberStep] = 0;
  ConstRows from[kMaxProgramArguments];
  for (int i = 0; i < program.arguments; ++i) {
    const int index = program.argument[i].index;
    const float*& place = places.at[program.argument[i].Place()];
    place = memory + i * kProgramBlock * kLanes;
    switch (program.argument[i].kind) {
      case ArgumentKind::kGate:
        from[i] = {call.gate[gates.at[index]].at, call.gate[gates.at[index]].stride};
        break;
      case ArgumentKind::kX:
        from[i] = {call.x.at, call.x.stride};
        break;
      case ArgumentKind::kVector:
        from[i] = {call.params[index], 0};
        if (cell.extents[index] == Extent::kOne) {
          place = call.params[index];
          places.steps[kVectorSteps + index] = 0;
        }
        break;
      case ArgumentKind::kState:
        from[i] = {call.state[index].at, call.state[index].stride};
        break;
      default:
        from[i] = {call.out_grad[index], call.out_stride};
    }
  }
  const std::int64_t width = Blocks(call.size);
  const auto block_at = [&](std::int64_t first, std::int64_t count) {
    return VectorBlock{call, first / width, first % width * kLanes, count};
  };
  const auto begin = [&](std::int64_t first, std::int64_t count) {
    const VectorBlock block = block_at(first, count);
    for (int i = 0; i < program.arguments; ++i) {
      const ProgramArgument argument = program.argument[i];
      if (argument.kind == ArgumentKind::kVector &&
          places.steps[kVectorSteps + argument.index] == 0) {
        continue;
      }
      float* const to = memory + i * kProgramBlock * kLanes;
      const ConstRows& lines = from[i];
      const bool scaled = !kForMid && call.skips && argument.kind == ArgumentKind::kResultGrad;
      block.ForEach([&](std::int64_t k, std::int64_t row, std::int64_t at, Lanes lanes) {
        Vec value = lanes.Load(lines.at + row * lines.stride + at);
        // neurons that keep their state propagate no gradient
        if (scaled) value = value * lanes.Load(call.u.at + row * call.u.stride + at);
        Store(to + k * kLanes, value);
      });
    }
  };
  RunBlocks(program, &places, call.rows * width, begin,
            [&](std::int64_t first, std::int64_t count) {
              finish(block_at(first, count), places.at + kFirstResult);
            });
}

template <bool kForMid>
[[gnu::noinline]] void RunForward(const TrainPointwiseArgs& call) {
  const ProgramTrainCell& cell = ProgramCellOf(call);
  const Program& program = kForMid ? cell.mid_program : cell.update_program;
  RunOverRows<kForMid>(program, call, [&](const VectorBlock& block, const float* const* results) {
    for (int r = 0; r < program.results; ++r) {
      const float* const result = results[r];
      block.ForEach([&](std::int64_t i, std::int64_t row, std::int64_t at, Lanes lanes) {
        Vec value = Load(result + i * kLanes);
        if (!kForMid && call.skips) {
          const RowsWithGrad& state = call.state[r];
          value = Blend(lanes.Load(call.u.at + row * call.u.stride + at), value,
                        lanes.Load(state.at + row * state.stride + at));
        }
        lanes.Store(call.out[r] + row * call.out_stride + at, value);
      });
    }
  });
}

// Writes the gradients of a block that the program does not compute: of u and of kept states.
[[gnu::always_inline]] inline void WriteKeptGrads(const VectorBlock& block, int states,
                                                  const Program& back,
                                                  const float* const* results) {
  const TrainPointwiseArgs& call = block.call;
  const int first = back.results - states;
  block.ForEach([&](std::int64_t i, std::int64_t row, std::int64_t at, Lanes lanes) {
    const Vec u = call.skips ? lanes.Load(call.u.at + row * call.u.stride + at) : Zero();
    Vec u_grad = Zero();
    for (int s = 0; s < states; ++s) {
      const RowsWithGrad& state = call.state[s];
      Vec kept = Zero();
      if (call.skips) {
        const Vec grad = lanes.Load(call.out_grad[s] + row * call.out_stride + at);
        const Vec updated = Load(results[first + s] + i * kLanes);
        u_grad = u_grad + grad * (updated - lanes.Load(state.at + row * state.stride + at));
        kept = grad * (1.0f - u);
      }
      lanes.Store(state.grad + row * state.grad_stride + at, kept);
    }
    if (call.skips && call.u.grad != nullptr) {
      lanes.Store(call.u.grad + row * call.u.grad_stride + at, u_grad);
    }
  });
}

template <bool kForMid>
[[gnu::noinline]] void RunBackward(const TrainPointwiseArgs& call) {
  const ProgramTrainCell& cell = ProgramCellOf(call);
  const Program& forward = kForMid ? cell.mid_program : cell.update_program;
  const Program& back = kForMid ? cell.mid_back_program : cell.update_back_program;
  const GateList& gates = (kForMid ? cell.first_stage : cell.second_stage).all;
  bool read[kMaxGates] = {};
  for (int i = 0; i < forward.arguments; ++i) {
    if (forward.argument[i].kind == ArgumentKind::kGate) read[forward.argument[i].index] = true;
  }
  RunOverRows<kForMid>(back, call, [&](const VectorBlock& block, const float* const* results) {
    if (!kForMid) WriteKeptGrads(block, cell.states, back, results);
    for (int g = 0; g < gates.count; ++g) {
      if (read[g]) continue;
      const RowsWithGrad& gate = call.gate[gates.at[g]];
      block.ForEach([&](std::int64_t, std::int64_t row, std::int64_t at, Lanes lanes) {
        lanes.Store(gate.grad + row * gate.grad_stride + at, Zero());
      });
    }
    for (int i = 0; i < forward.arguments; ++i) {
      const float* const result = results[i];
      const int index = forward.argument[i].index;
      const auto add = [&](float* grad, std::int64_t row_stride, bool one) {
        block.ForEach([&](std::int64_t k, std::int64_t row, std::int64_t at, Lanes lanes) {
          float* const to = grad + row * row_stride + (one ? 0 : at);
          lanes.Store(to, lanes.Load(to) + Load(result + k * kLanes));
        });
      };
      switch (forward.argument[i].kind) {
        case ArgumentKind::kGate: {
          const RowsWithGrad& gate = call.gate[gates.at[index]];
          block.ForEach([&](std::int64_t k, std::int64_t row, std::int64_t at, Lanes lanes) {
            lanes.Store(gate.grad + row * gate.grad_stride + at, Load(result + k * kLanes));
          });
          break;
        }
        case ArgumentKind::kX:
          if (call.x.grad != nullptr) add(call.x.grad, call.x.grad_stride, false);
          break;
        case ArgumentKind::kVector:
          add(call.params_grad[index], 0, cell.extents[index] == Extent::kOne);
          break;
        default:
          add(call.state[index].grad, call.state[index].grad_stride, false);
      }
    }
  });
}

constexpr TrainCellFunctions kProgramFunctions = {&RunForward<false>, &RunForward<true>,
                                                  &RunBackward<false>, &RunBackward<true>};

}  // namespace edgernn::EDGERNN_ISA
