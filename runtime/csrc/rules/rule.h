// SPDX-License-Identifier: Apache-2.0
// What the list of rules says of each of them.
//
// A rule is a type with the members of RuleDefaults that it changes, and, by its kind:
//   kNeuron: Score(e, h, m, q) of a neuron from its part e of kMatrix x + kBias, the first state h
//     before the step, the memories m, in the order of kMemories, and the vectors and numbers q, in
//     the order of kParams.
//   kSample: Score(m, q).
//   both, with memories: Evidence(s, q) of a neuron after a step, where s is the second state, or
//     the first one of a cell that has no other, is summed up over what a decision covers (nothing
//     but the neuron itself, or all of the sample); Drive(sum, q) is made of that, and
//     Advance(u, score, drive, q, m) turns the memories m before the step into those after it.
//   kTime: nothing; a header of its own selects neurons (see rules/selectors.h).
// u is 1 where the score is above 0. Likelihood(score, slope) is what u is taken for by gradients.
// V is a vector of floats, a dual number or a single number; V of kSample stands for samples.
//
// Equations read memories of the size of a decision: (H,) for kNeuron, one number for kSample. A
// rule with a selector of its own may have memories of any size.

#ifndef EDGERNN_RULES_RULE_H_
#define EDGERNN_RULES_RULE_H_

#include <cstdint>

#include "cells/gate.h"

namespace edgernn {

constexpr int kMaxRuleParams = 5;
constexpr int kMaxMemories = 4;

// A weight input of shape (rows,), (rows, I), (rows, 2I), (rows, H), (rows,
// rank) or (rows, F).
enum class Columns { kNone, kInput, kInputTwice, kHidden, kRank, kFeatures };

struct WeightSpec {
  const char* name = nullptr;
  RowCount rows = {};
  Columns columns = Columns::kNone;
};

// What one decision covers: all that happens at a step, a neuron, or the whole state of a sample.
enum class RuleKind { kTime, kNeuron, kSample };

// A state of the rule's own, so many numbers a sample; without a name: there is none.
struct MemorySpec {
  const char* name = nullptr;
  Extent extent = Extent::kOne;
};

struct RuleDefaults {
  static constexpr MemorySpec kMemories[] = {{}};
  static constexpr WeightSpec kParams[] = {{}};
  static constexpr bool kCanSkip = true;     // u is not 1 at every step
  static constexpr bool kInclusive = false;  // u is 1 where the score is 0, too
  static constexpr bool kMasks = false;      // the cell sees x and the states through factors
  static constexpr bool kThins = false;      // R is cut neuron by neuron, and must be whole
  // which of kParams make e: a matrix (H, I), a vector (H,); -1: none
  static constexpr int kMatrix = -1;
  static constexpr int kBias = -1;
  // multiply-adds of a decision for each neuron, besides e
  static constexpr int kNeuronMacs = 0;

  template <class V>
  static constexpr V Likelihood(V score, float) {
    return score;
  }

  template <class V>
  static constexpr V Evidence(V s, const V*) {
    return s;
  }

  template <class V>
  static constexpr V Drive(V sum, const V*) {
    return sum;
  }
};

// A rule as plain values.
struct RuleSpec {
  const char* name;
  RuleKind kind;
  MemorySpec memories[kMaxMemories];
  int memory_count;
  WeightSpec params[kMaxRuleParams];  // those that it lacks have no name
  bool can_skip;
  bool masks;
  bool thins;
  int matrix;
  int bias;
  int neuron_macs;

  // Whether every neuron changes at every step.
  constexpr bool IsDense() const { return kind == RuleKind::kTime && !can_skip; }
  // Whether its decisions follow from its equations alone.
  constexpr bool HasEquations() const { return kind != RuleKind::kTime && !masks; }
  // Whether its memories follow from its equations, too.
  constexpr bool Remembers() const { return HasEquations() && memory_count > 0; }
};

template <class Rule>
constexpr RuleSpec DescribeRule() {
  RuleSpec spec{};
  spec.name = Rule::kName;
  spec.kind = Rule::kKind;
  spec.can_skip = Rule::kCanSkip;
  spec.masks = Rule::kMasks;
  spec.thins = Rule::kThins;
  spec.matrix = Rule::kMatrix;
  spec.bias = Rule::kBias;
  spec.neuron_macs = Rule::kNeuronMacs;
  int count = 0;
  for (const WeightSpec& param : Rule::kParams) spec.params[count++] = param;
  for (const MemorySpec& memory : Rule::kMemories) {
    if (memory.name != nullptr) spec.memories[spec.memory_count++] = memory;
  }
  return spec;
}

// Whether the equations of a rule can read its memories.
constexpr bool FitDecisions(const RuleSpec& spec) {
  const Extent extent = spec.kind == RuleKind::kNeuron ? Extent::kHidden : Extent::kOne;
  for (int i = 0; i < spec.memory_count; ++i) {
    if (spec.memories[i].extent != extent) return false;
  }
  return true;
}

// The place of the state that evidence is read from, of a cell with so many.
constexpr int EvidenceState(int states) { return states > 1 ? 1 : 0; }

// The multiply-adds of a decision.
constexpr std::int64_t DecisionMacs(const RuleSpec& spec, std::int64_t input, std::int64_t hidden) {
  return hidden * ((spec.matrix < 0 ? 0 : input) + spec.neuron_macs);
}

// Whether a parameter is a vector or a number that the equations read, not a part of e.
constexpr bool IsRead(const RuleSpec& spec, int param) {
  return spec.params[param].name != nullptr && param != spec.matrix && param != spec.bias;
}

}  // namespace edgernn

#endif  // EDGERNN_RULES_RULE_H_
