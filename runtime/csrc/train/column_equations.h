// SPDX-License-Identifier: Apache-2.0
// The decisions of rules of the kind kColumn: products read a value of x or h where it changed by
// more than a threshold since they last did, and otherwise the value that they read then.

#ifndef EDGERNN_TRAIN_COLUMN_EQUATIONS_H_
#define EDGERNN_TRAIN_COLUMN_EQUATIONS_H_

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
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_COLUMN_EQUATIONS_H_
