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

// Where a weight input goes: W, R, C, V and b, the cell's own, Q, the rule's.
constexpr int kRecurrentSlot = 1;
constexpr int kOwnSlot = 5;
constexpr int kFactorSlot = kOwnSlot + kMaxParams;
constexpr int kRuleSlot = kFactorSlot + 1;
constexpr int kImputerSlot = kRuleSlot + kMaxRuleParams;

// What the list of cells says of one.
struct CellSpec {
  const char* name;
  WeightSpec weights[kFactorSlot];  // by slot; those that the cell lacks have no rows
  const char* states[kMaxStates];
  int constants;  // so many weights, the last ones, are not learned; Q comes before them
  bool reads_last;
  bool square;  // I must be H
};

template <class Cell>
constexpr CellSpec DescribeCell() {
  static_assert(kGateCount<Cell> <= kMaxGates && kStateCount<Cell> <= kMaxStates);
  static_assert(CountGates<Cell>(kX) > 0, "W sets I, so a gate must look at x");
  static_assert(CountGates<Cell>(kM | kMid) + CountGates<Cell>(kC | kMid) == 0,
                "m is made from the gates marked kMid, which read x and h alone");
  static_assert(kHasMid<Cell> || CountGates<Cell>(kMid) == 0, "nothing reads m");
  static_assert(!kHasMid<Cell> || !kReadsLast<Cell>, "m has no part of the last input");
  static_assert(ParamsOf<Cell>::kCount <= kMaxParams);
  static_assert(kReadsInput<Cell> || !HasParam<Cell>(Extent::kInput), "no stage has I neurons");
  constexpr Columns kInputs = kReadsLast<Cell> ? Columns::kInputTwice : Columns::kInput;
  constexpr Columns kMids = kMidIsInput<Cell> ? Columns::kInput : Columns::kHidden;
  CellSpec spec{Cell::kName,
                {{"W", CountRows<Cell>(kX), kInputs},
                 {"R", CountRows<Cell>(kH), Columns::kHidden},
                 {"C", CountRows<Cell>(kC), Columns::kHidden},
                 {"V", CountRows<Cell>(kM), kMids},
                 {"b", CountRows<Cell>(kBias), Columns::kNone}},
                {},
                0,
                kReadsLast<Cell>,
                kSquare<Cell>};
  for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
    const Param& param = ParamsOf<Cell>::kList[i];
    const Rows rows{param.extent == Extent::kHidden, param.extent == Extent::kInput,
                    param.extent == Extent::kOne};
    spec.weights[kOwnSlot + i] = {param.name, rows, Columns::kNone};
    spec.constants += param.map == Map::kLength;
  }
  for (int s = 0; s < kStateCount<Cell>; ++s) spec.states[s] = Cell::kStates[s];
  return spec;
}

struct WeightInput {
  WeightSpec spec;
  int slot;
};

// A state (B, H), (B, 1), (B, F) or (B, I).
struct StateInput {
  const char* name;
  Extent extent;
};

// Inputs: X, the weights, the states. Outputs: Y, the states, and if `skips` updates and macs.
struct OpSpec {
  std::string name;
  std::vector<WeightInput> weights;  // the first one is W, which sets I
  std::vector<StateInput> states;    // the cell's, the memories of rule and imputer, the last input
  bool imputes;                      // X has 3F columns, and I is 2F
  bool skips;
  bool square;

  std::size_t InputCount() const { return 1 + weights.size() + states.size(); }
  std::size_t OutputCount() const { return 1 + states.size() + (skips ? 2 : 0); }
  std::size_t FirstStateInput() const { return 1 + weights.size(); }
};

// The op of a cell under a rule, behind an imputer if there is one; low_rank: R is a product.
OpSpec DescribeOp(const CellSpec& cell, const RuleSpec& rule, const ImputerSpec* imputer,
                  bool low_rank);

// Whether that op exists, low_rank.
bool HasLowRank(const CellSpec& cell, const RuleSpec& rule);

}  // namespace edgernn

#endif  // EDGERNN_SCHEMA_H_
