// SPDX-License-Identifier: Apache-2.0
// The decisions of rules of the kind kColumn: products read a value of x or h where it changed by
// more than a threshold since they last did, and otherwise the value that they read then.

#pragma once

#include "train/rule_equations.h"

namespace edgernn::EDGERNN_ISA {

struct ColumnEquations {
  // Writes the values that products read at this step in place of x and h.
  static void Decide(const TrainRuleArgs& call) {
    const RowsWithGrad* const values[] = {&call.e, &call.h};
    const std::int64_t counts[] = {call.inputs, call.hidden};
    for (int i = 0; i < 2; ++i) {
      const Vec theta = Load(call.params[i]);
      for (std::int64_t row = 0; row < call.rows; ++row) {
        const float* const from = values[i]->at + row * values[i]->stride;
        const std::int64_t first = row * counts[i];
        for (std::int64_t at = 0; at < counts[i]; at += kLanes) {
          const Lanes lanes(counts[i] - at);
          const Vec value = lanes.Load(from + at), last = lanes.Load(call.memory[i] + first + at);
          const Vec up = value - last, down = last - value;
          const auto sent = (up.raw > theta.raw) | (down.raw > theta.raw);
          lanes.Store(call.memory_after[i] + first + at, {sent ? value.raw : last.raw});
        }
      }
    }
  }

  // Propagates `grads`, the gradients of the values that products read at a step, where these are
  // not straight-through. If the value was sent at this step, its gradient is added to
  // `value_grads` (which may be null), those of x (i = 0) or h (1). Else it is kept in `kept`,
  // which has those of later steps, for the value that products read at the step before.
  static void DecideBack(const TrainRuleArgs& call, int i, const float* grads, float* kept,
                         OutputRows value_grads) {
    const float* const last = call.memory[i];
    const float* const sent = call.memory_after[i];
    for (std::int64_t at = 0; at < call.rows * value_grads.stride; ++at) {
      // a value that is sent differs from the last one
      const bool keeps = sent[at] == last[at];
      const float grad = grads[at] + kept[at];
      kept[at] = keeps ? grad : 0;
      if (value_grads.at != nullptr) value_grads.at[at] += keeps ? 0 : grad;
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
