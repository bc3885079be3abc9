// SPDX-License-Identifier: Apache-2.0
// The ops' inputs and outputs, drawn from the lists of cells and rules.

#ifndef EDGERNN_SCHEMA_H_
#define EDGERNN_SCHEMA_H_

#include <string>
#include <vector>

#include "kernel.h"

namespace edgernn {

// The version of what the ops take and give; a node carries the one it was written for.
constexpr int kSchemaVersion = 1;

// A weight input and the field of Weights that it fills.
struct WeightInput {
  WeightSpec spec;
  const float** (*field)(Weights*);
};

// Inputs: X, the weights, the states. Outputs: Y, the states, and if `skips` updates and macs.
struct OpSpec {
  std::string name;
  std::vector<WeightInput> weights;  // the first one is W, which sets I
  std::vector<const char*> states;
  bool skips;

  std::size_t InputCount() const { return 1 + weights.size() + states.size(); }
  std::size_t OutputCount() const { return 1 + states.size() + (skips ? 2 : 0); }
  std::size_t FirstStateInput() const { return 1 + weights.size(); }
};

template <int kIndex>
const float** OwnField(Weights* weights) {
  return &weights->own[kIndex];
}

template <int kIndex>
const float** RuleField(Weights* weights) {
  return &weights->rule[kIndex];
}

template <class Cell, class Rule>
OpSpec DescribeOp() {
  static_assert(kGateCount<Cell> <= kMaxGates && kStateCount<Cell> <= kMaxStates);
  static_assert(CountGates<Cell>(kX) > 0, "W sets I, so a gate must look at x");
  static_assert(CountGates<Cell>(kM | kMid) == 0, "m is made from the gates marked kMid");
  static_assert(ParamsOf<Cell>::kCount <= kMaxParams && Rule::kParamCount <= kMaxRuleParams);
  static_assert(kMidIsInput<Cell> || !HasParam<Cell>(Extent::kInput), "no stage has I neurons");
  constexpr const float** (*kOwnFields[kMaxParams])(Weights*) = {&OwnField<0>, &OwnField<1>,
                                                                 &OwnField<2>, &OwnField<3>};
  constexpr const float** (*kRuleFields[kMaxRuleParams])(Weights*) = {&RuleField<0>, &RuleField<1>,
                                                                      &RuleField<2>, &RuleField<3>};
  OpSpec op;
  op.name = std::string(Rule::kPrefix) + Cell::kName;
  op.skips = Rule::kSkips;
  const auto add = [&op](const char* name, Rows rows, Columns columns,
                         const float** (*field)(Weights*)) {
    if (rows.hidden + rows.input + rows.one > 0) {
      op.weights.push_back({{name, rows, columns}, field});
    }
  };
  constexpr Columns kMidColumns = kMidIsInput<Cell> ? Columns::kInput : Columns::kHidden;
  add("W", CountRows<Cell>(kX), Columns::kInput, [](Weights* to) { return &to->w; });
  add("R", CountRows<Cell>(kH), Columns::kHidden, [](Weights* to) { return &to->r; });
  add("V", CountRows<Cell>(kM), kMidColumns, [](Weights* to) { return &to->v; });
  add("b", CountRows<Cell>(kBias), Columns::kNone, [](Weights* to) { return &to->b; });
  for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
    const Param& param = ParamsOf<Cell>::kList[i];
    const Rows rows{param.extent == Extent::kHidden, param.extent == Extent::kInput,
                    param.extent == Extent::kOne};
    add(param.name, rows, Columns::kNone, kOwnFields[i]);
  }
  for (int i = 0; i < Rule::kParamCount; ++i) {
    const WeightSpec& spec = Rule::kParams[i];
    add(spec.name, spec.rows, spec.columns, kRuleFields[i]);
  }
  op.states.assign(Cell::kStates, Cell::kStates + kStateCount<Cell>);
  return op;
}

}  // namespace edgernn

#endif  // EDGERNN_SCHEMA_H_
