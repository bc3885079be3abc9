// SPDX-License-Identifier: Apache-2.0
// The list of update rules: what each one adds to the op, and which kind of driver runs it. What
// their kernels have of their own is in rules/.

#ifndef EDGERNN_RULES_H_
#define EDGERNN_RULES_H_

#include "cells.h"

namespace edgernn {

constexpr int kMaxRuleParams = 5;

// A weight input of shape (rows,), (rows, I), (rows, 2I), (rows, H), (rows,
// rank) or (rows, F).
enum class Columns { kNone, kInput, kInputTwice, kHidden, kRank, kFeatures };

struct WeightSpec {
  const char* name = nullptr;
  Rows rows = {};
  Columns columns = Columns::kNone;
};

// Which neurons may change at a step: every one, or all or none of them, or any.
enum class DriverKind { kDense, kJump, kRows };
constexpr int kDriverKinds = 3;

// A rule; `memory` is the name of its own state (B, 1), or null. If it thins R, neuron by neuron, R
// must be whole.
struct RuleSpec {
  const char* prefix;
  DriverKind driver;
  const char* memory;
  WeightSpec params[kMaxRuleParams];  // those that it lacks have no name
  bool thins = false;
};

struct Always {
  static constexpr RuleSpec kSpec = {"", DriverKind::kDense, nullptr, {}};
};

// Neuron j changes at step t iff a number that depends on t, j and the seed is below the rate.
struct Random {
  static constexpr RuleSpec kSpec = {
      "Random",
      DriverKind::kRows,
      "rule_t",
      {{"rule_rate", {0, 0, 1}, Columns::kNone}, {"rule_seed", {0, 0, 1}, Columns::kNone}}};
};

// Neuron j changes at the steps that its period divides, and reads from its own kind and slower.
struct Clockwork {
  static constexpr RuleSpec kSpec = {
      "Clockwork", DriverKind::kRows, "rule_t", {{"rule_periods", {1}, Columns::kNone}}, true};
};

// The whole state changes iff the pressure, which grows while it does not, has reached 1/2.
struct Skip {
  static constexpr RuleSpec kSpec = {
      "Skip",
      DriverKind::kJump,
      "rule_pressure",
      {{"rule_w", {1}, Columns::kNone}, {"rule_b", {0, 0, 1}, Columns::kNone}}};
};

// Neuron j changes iff (rule_W x_t + rule_b + rule_d * h_{t-1})_j > 0.
struct Selective {
  static constexpr RuleSpec kSpec = {"Selective",
                                     DriverKind::kRows,
                                     nullptr,
                                     {{"rule_W", {1}, Columns::kInput},
                                      {"rule_d", {1}, Columns::kNone},
                                      {"rule_b", {1}, Columns::kNone}}};
};

// Neuron j is open for the first share of its period: it changes, and not wholly at its edges.
struct Phased {
  static constexpr RuleSpec kSpec = {"Phased",
                                     DriverKind::kRows,
                                     "rule_t",
                                     {{"rule_tau", {1}, Columns::kNone},
                                      {"rule_s", {1}, Columns::kNone},
                                      {"rule_open", {0, 0, 1}, Columns::kNone}}};
};

// The first neurons change, and read the first inputs; x_t and h_{t-1} say how many of them.
struct Variable {
  static constexpr RuleSpec kSpec = {"Variable",
                                     DriverKind::kRows,
                                     nullptr,
                                     {{"rule_h", {1}, Columns::kNone},
                                      {"rule_x", {0, 1}, Columns::kNone},
                                      {"rule_b", {0, 0, 1}, Columns::kNone},
                                      {"rule_sharpness", {0, 0, 1}, Columns::kNone},
                                      {"rule_epsilon", {0, 0, 1}, Columns::kNone}}};
};

using Rules = TypeList<Always, Random, Clockwork, Skip, Selective, Phased, Variable>;

}  // namespace edgernn

#endif  // EDGERNN_RULES_H_
