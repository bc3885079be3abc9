// SPDX-License-Identifier: Apache-2.0
// The functions of a rule as the training drivers call them. They do not depend on the cell: a rule
// computes u, and the cell's maps return the gradient of u.

#pragma once

#include "train/column_equations.h"
#include "train/gate_equations.h"
#include "train/neuron_equations.h"
#include "train/sample_equations.h"

namespace edgernn::EDGERNN_ISA {

template <class Rule>
constexpr TrainRule MakeTrainRule() {
  TrainRule rule{};
  static_cast<RuleSpec&>(rule) = DescribeRule<Rule>();
  if constexpr (Rule::kKind == RuleKind::kColumn) {
    rule.decide = &ColumnEquations::Decide;
  } else if constexpr (Rule::kKind == RuleKind::kGate) {
    rule.decide = &GateEquations<Rule>::Decide;
  } else if constexpr (!Rule::kHasEquations) {
    return rule;
  } else if constexpr (Rule::kKind == RuleKind::kSample) {
    using Equations = SampleEquations<Rule>;
    rule.decide = &Equations::Decide;
    rule.remember = &Equations::Remember;
    rule.remember_back = &Equations::RememberBack;
    rule.decide_back = &Equations::DecideBack;
  } else {
    using Equations = NeuronEquations<Rule>;
    rule.decide = &Equations::Decide;
    rule.decide_back = &Equations::DecideBack;
    if constexpr (DescribeRule<Rule>().Remembers()) {
      rule.remember = &Equations::Remember;
      rule.remember_back = &Equations::RememberBack;
    }
  }
  return rule;
}

}  // namespace edgernn::EDGERNN_ISA
