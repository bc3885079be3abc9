// SPDX-License-Identifier: Apache-2.0
// Derives the inputs and outputs of an op from its cell, rule and imputer.

#include "op/schema.h"

namespace edgernn {

namespace {

// The rows of the weight with this term: W, R, C, V or b.
RowCount CountRows(const CellTable& cell, unsigned term) {
  RowCount rows{};
  for (int g = 0; g < cell.gates; ++g) {
    if ((cell.terms[g] & term) == 0) continue;
    ((cell.terms[g] & kMid) != 0 && cell.mid_is_input ? rows.input : rows.hidden) += 1;
  }
  return rows;
}

// True if this is the name of a rule that updates every neuron at every step.
template <class... AllRules>
bool IsDense(TypeList<AllRules...>, const std::string& name) {
  return ((DescribeRule<AllRules>().IsDense() && name == AllRules::kName) || ...);
}

}  // namespace

CellSpec DescribeCell(const CellTable& table, const CellNames& names) {
  const Columns inputs = table.reads_last ? Columns::kInputTwice : Columns::kInput;
  const Columns mids = table.mid_is_input ? Columns::kInput : Columns::kHidden;
  CellSpec spec{};
  spec.name = table.name;
  spec.optional_biases = CountRows(table, kOptionalBias);
  spec.reads_last = table.reads_last;
  spec.square = table.square;
  spec.has_update_gate = table.update_gate.gate >= 0;
  const WeightSpec weights[kParamSlot] = {{"W", CountRows(table, kX), inputs},
                                          {"R", CountRows(table, kH), Columns::kHidden},
                                          {"C", CountRows(table, kC), Columns::kHidden},
                                          {"V", CountRows(table, kM), mids},
                                          {"b", CountRows(table, kBias)}};
  for (int i = 0; i < kParamSlot; ++i) spec.weights[i] = weights[i];
  for (int i = 0; i < table.params; ++i) {
    const RowCount rows = table.extents[i] == Extent::kHidden  ? HiddenRows()
                          : table.extents[i] == Extent::kInput ? InputRows()
                                                               : OneRow();
    spec.weights[kParamSlot + i] = {names.params[i], rows};
    spec.constants += table.maps[i] == Map::kLength;
  }
  for (int s = 0; s < table.states; ++s) spec.states[s] = names.states[s];
  return spec;
}

bool Fits(const CellSpec& cell, const RuleSpec& rule) {
  return rule.kind != RuleKind::kGate || cell.has_update_gate;
}

bool HasLowRank(const CellSpec& cell, const RuleSpec& rule) {
  return !IsNone(cell.weights[kRecurrentSlot].rows) && !rule.thins &&
         rule.kind != RuleKind::kColumn && rule.kind != RuleKind::kGate;
}

std::string LayerName(const std::string& imputer, const std::string& cell, const std::string& rule,
                      bool low_rank) {
  return (imputer.empty() ? "" : imputer + "+") + cell +
         (IsDense(Rules{}, rule) ? "" : "+" + rule) + (low_rank ? "+low-rank" : "");
}

OpSpec DescribeOp(const CellSpec& cell, const RuleSpec& rule, const ImputerSpec* imputer,
                  bool low_rank) {
  OpSpec op;
  op.name = LayerName(imputer == nullptr ? "" : imputer->name, cell.name, rule.name, low_rank);
  op.imputes = imputer != nullptr;
  op.skips = rule.can_skip;
  op.square = cell.square;
  const auto add = [&op](const WeightSpec& spec, int slot, const RowCount& optional_rows) {
    if (IsNone(spec.rows) && IsNone(optional_rows)) return;
    op.weights.push_back({spec, slot, optional_rows});
  };
  for (int i = 0; i < kFactorSlot; ++i) {
    WeightSpec spec = cell.weights[i];
    if (low_rank && i == kRecurrentSlot) spec.columns = Columns::kRank;
    add(spec, i, i == kBiasSlot ? cell.optional_biases : RowCount{});
  }
  const WeightInput factor{{"Q", RankRows(), Columns::kHidden}, kFactorSlot};
  if (low_rank) op.weights.insert(op.weights.end() - cell.constants, factor);
  for (int i = 0; i < kMaxRuleParams; ++i) add(rule.params[i], kRuleSlot + i, {});
  for (int i = 0; op.imputes && i < kMaxImputerParams; ++i) {
    add(imputer->params[i], kImputerSlot + i, {});
  }
  for (int s = 0; s < kMaxStates && cell.states[s] != nullptr; ++s) {
    op.states.push_back({cell.states[s], Extent::kHidden, StateOwner::kCell, s});
  }
  for (int i = 0; i < rule.memory_count; ++i) {
    const MemorySpec& memory = rule.memories[i];
    op.states.push_back({memory.name, memory.extent, StateOwner::kRule, i});
  }
  if (op.imputes && imputer->memory != nullptr) {
    op.states.push_back({imputer->memory, Extent::kFeatures, StateOwner::kImputer});
  }
  if (cell.reads_last) op.states.push_back({"x_last", Extent::kInput, StateOwner::kInput});
  return op;
}

}  // namespace edgernn
