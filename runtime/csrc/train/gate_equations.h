// SPDX-License-Identifier: Apache-2.0
// The decisions of rules of the kind kGate, from the pre-activations of the cell's update gate.

#pragma once

#include "selectors/selectors.h"
#include "train/rule_equations.h"

namespace edgernn::EDGERNN_ISA {

template <class Rule>
struct GateEquations {
  static void Decide(const TrainRuleArgs& call) {
    for (std::int64_t row = 0; row < call.rows; ++row) {
      const float* const gate = call.e.at + row * call.e.stride;
      for (std::int64_t j = 0; j < call.hidden; ++j) call.scores[j] = gate[j] * call.sign;
      SelectorOf<Rule>::Type::WriteMask(call.params, call.hidden, call.scores,
                                        call.u + row * call.hidden);
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
