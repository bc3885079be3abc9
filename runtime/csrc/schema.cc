// SPDX-License-Identifier: Apache-2.0
// Puts the op of a cell under a rule together.

#include "schema.h"

namespace edgernn {

namespace {

bool IsThere(const WeightSpec& spec) {
  const Rows& rows = spec.rows;
  return rows.hidden + rows.input + rows.one + rows.rank + rows.features > 0;
}

}  // namespace

bool HasLowRank(const CellSpec& cell, const RuleSpec& rule) {
  return IsThere(cell.weights[kRecurrentSlot]) && !rule.thins;
}

OpSpec DescribeOp(const CellSpec& cell, const RuleSpec& rule, const ImputerSpec* imputer,
                  bool low_rank) {
  OpSpec op;
  op.name = std::string(imputer == nullptr ? "" : imputer->prefix) + rule.prefix + cell.name +
            (low_rank ? "LowRank" : "");
  op.imputes = imputer != nullptr;
  op.skips = rule.driver != DriverKind::kDense;
  op.square = cell.square;
  const auto add = [&op](const WeightSpec& spec, int slot) {
    if (IsThere(spec)) op.weights.push_back({spec, slot});
  };
  for (int i = 0; i < kFactorSlot; ++i) {
    WeightSpec spec = cell.weights[i];
    if (low_rank && i == kRecurrentSlot) spec.columns = Columns::kRank;
    add(spec, i);
  }
  const WeightInput factor{{"Q", {0, 0, 0, 1}, Columns::kHidden}, kFactorSlot};
  if (low_rank) op.weights.insert(op.weights.end() - cell.constants, factor);
  for (int i = 0; i < kMaxRuleParams; ++i) add(rule.params[i], kRuleSlot + i);
  for (int i = 0; op.imputes && i < kMaxImputerParams; ++i) {
    add(imputer->params[i], kImputerSlot + i);
  }
  for (const char* name : cell.states) {
    if (name != nullptr) op.states.push_back({name, Extent::kHidden});
  }
  if (rule.memory != nullptr) op.states.push_back({rule.memory, Extent::kOne});
  if (op.imputes && imputer->memory != nullptr) {
    op.states.push_back({imputer->memory, Extent::kFeatures});
  }
  if (cell.reads_last) op.states.push_back({"x_last", Extent::kInput});
  return op;
}

}  // namespace edgernn
