// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs of the ops, which follow from the lists of cells, rules and imputers.

#ifndef EDGERNN_COMMON_SCHEMA_H_
#define EDGERNN_COMMON_SCHEMA_H_

#include <string>
#include <vector>

#include "common/kernel.h"

namespace edgernn {

// The version of what the ops take and give; a node carries the one it was written for.
constexpr int kSchemaVersion = 2;

// Where a weight input goes: W, R, C, V and b, the cell's own, Q, the rule's.
constexpr int kRecurrentSlot = 1;
constexpr int kBiasSlot = 4;
constexpr int kParamSlot = 5;
constexpr int kFactorSlot = kParamSlot + kMaxParams;
constexpr int kRuleSlot = kFactorSlot + 1;
constexpr int kImputerSlot = kRuleSlot + kMaxRuleParams;

constexpr bool IsNone(const RowCount& rows) {
  return rows.hidden + rows.input + rows.one + rows.rank + rows.features == 0;
}

// What the list of cells says of one.
struct CellSpec {
  const char* name;
  RowCount optional_biases;         // which b may have besides
  WeightSpec weights[kFactorSlot];  // by slot; those that the cell lacks have no rows
  const char* states[kMaxStates];
  int constants;  // so many weights, the last ones, are not learned; Q comes before them
  bool reads_last;
  bool square;  // I must be H
};

// The names of a cell's own parameters and of its states.
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
  RowCount optional_rows = {};  // which a model may give it besides

  // Whether a model may lack it.
  bool MayBeAbsent() const { return IsNone(spec.rows); }
};

// What a state belongs to; kInput is the last input.
enum class StateOwner { kCell, kRule, kImputer, kInput };

// A state (B, size); index: among those of its owner.
struct StateInput {
  const char* name;
  Extent extent;
  StateOwner owner;
  int index = 0;
};

// Inputs: X, the weights, the states. Outputs: Y, updates and macs, the states.
struct OpSpec {
  std::string name;                  // see LayerName
  std::vector<WeightInput> weights;  // the first one is W, which sets I
  std::vector<StateInput> states;    // the cell's, the memories of rule and imputer, the last input
  bool imputes;                      // X has 3F columns, and I is 2F
  bool skips;
  bool square;
};

// The op of a cell under a rule, behind an imputer if there is one; low_rank: R is a product.
OpSpec DescribeOp(const CellSpec& cell, const RuleSpec& rule, const ImputerSpec* imputer,
                  bool low_rank);

// Whether R may be a product.
bool HasLowRank(const CellSpec& cell, const RuleSpec& rule);

// The name of a kind of layer: the names of its parts, as gru-d+gru-before+selective. A rule under
// which every neuron changes is left out, and so is an imputer that is not there, "".
std::string LayerName(const std::string& imputer, const std::string& cell, const std::string& rule,
                      bool low_rank);

}  // namespace edgernn

#endif  // EDGERNN_COMMON_SCHEMA_H_
