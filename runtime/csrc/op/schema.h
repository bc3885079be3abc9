// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs of an op, derived from its cell, rule and imputer.

#pragma once

#include <string>
#include <vector>

#include "kernel/kernel.h"

namespace edgernn {

// The version of the ops' inputs, outputs and attributes. A node has it as its attribute `schema`.
constexpr int kSchemaVersion = 2;

// Slots of the weight inputs: W, R, C, V and b, then the parameters of the cell, Q, and the
// parameters of the rule and of the imputer.
constexpr int kRecurrentSlot = 1;
constexpr int kBiasSlot = 4;
constexpr int kParamSlot = 5;
constexpr int kFactorSlot = kParamSlot + kMaxParams;
constexpr int kRuleSlot = kFactorSlot + 1;
constexpr int kImputerSlot = kRuleSlot + kMaxRuleParams;

constexpr bool IsNone(const RowCount& rows) {
  return rows.hidden + rows.input + rows.one + rows.rank + rows.features + rows.groups == 0;
}

// The weights and states of a cell.
struct CellSpec {
  const char* name;
  RowCount optional_biases;         // optional rows of b
  WeightSpec weights[kFactorSlot];  // by slot; a weight that the cell lacks has no rows
  const char* states[kMaxStates];
  int constants;  // number of weights that are not learned; they are last, and Q comes before them
  bool reads_last;
  bool square;           // I must be H
  bool has_update_gate;  // runs under rules of the kind kGate
};

// The names of a cell's parameters and states.
struct CellNames {
  const char* params[kMaxParams];
  const char* states[kMaxStates];
};

CellSpec DescribeCell(const CellTable& table, const CellNames& names);

template <class Cell>
CellSpec DescribeCell() {
  static constexpr CellTable kTable = MakeCellTable<Cell>();
  static_assert(FindFault(kTable) == nullptr);
  CellNames names{};
  for (int i = 0; i < kTable.params; ++i) names.params[i] = ParamsOf<Cell>::kList[i].name;
  for (int s = 0; s < kTable.states; ++s) names.states[s] = Cell::kStates[s];
  return DescribeCell(kTable, names);
}

struct WeightInput {
  WeightSpec spec;
  int slot;
  RowCount optional_rows = {};  // rows that a model may have in addition

  // True if a model may omit the weight.
  bool MayBeAbsent() const { return IsNone(spec.rows); }
};

// The part of an op that a state belongs to; kInput: the state is the previous input.
enum class StateOwner { kCell, kRule, kImputer, kInput };

// A state (B, size). `index` counts the states of its owner.
struct StateInput {
  const char* name;
  Extent extent;
  StateOwner owner;
  int index = 0;
};

// Inputs: X, the weights, the states. Outputs: Y, updates and macs, the states.
struct OpSpec {
  std::string name;                  // see LayerName
  std::vector<WeightInput> weights;  // the first one is W, whose columns set I
  std::vector<StateInput>
      states;    // states of the cell, the rule and the imputer, then the previous input
  bool imputes;  // X has 3F columns, and I is 2F
  bool skips;    // the rule does not update every neuron at every step
  bool square;   // I must be H
};

// Describes the op of a cell, a rule and an imputer, which may be null. low_rank: R is a product.
OpSpec DescribeOp(const CellSpec& cell, const RuleSpec& rule, const ImputerSpec* imputer,
                  bool low_rank);

// True if a cell runs under a rule.
bool Fits(const CellSpec& cell, const RuleSpec& rule);

// True if a layer of this cell and rule may have a low-rank R.
bool HasLowRank(const CellSpec& cell, const RuleSpec& rule);

// The name of a layer, joined from the names of its parts, such as gru-d+gru-before+selective. It
// omits a rule that updates every neuron, and an imputer "".
std::string LayerName(const std::string& imputer, const std::string& cell, const std::string& rule,
                      bool low_rank);

}  // namespace edgernn
