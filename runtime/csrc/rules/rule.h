// SPDX-License-Identifier: Apache-2.0
// The description of an update rule, and the interface of its equations.
//
// A rule is a type that overrides members of RuleDefaults. If kHasEquations is true, it also has
// these functions, by its kind:
//   kNeuron: Score(e, h, m, q) of a neuron. e is the neuron's element of kMatrix x + kBias, h the
//     first state before the step, m the memories in the order of kMemories, and q the other
//     parameters in the order of kParams.
//   kSample: Score(m, q) of a sample.
//   kNeuron and kSample with memories: Evidence(s, q) of a neuron after the step, where s is the
//     second state, or the first state of a cell with one. Drive(sum, q) reads the evidence of the
//     neuron (kNeuron) or its sum over the sample (kSample). Advance(u, score, drive, q, m) updates
//     the memories m in place.
// A rule of the kind kColumn has two parameters, the thresholds of x and of h, and four memories:
// the values of x and h that were last sent, the steps since the kept sums were computed anew, and
// these sums, see cpu/driver_column.h.
// A rule of the kind kGate selects neurons from the pre-activations of the cell's update gate; it
// runs with cells that have one.
// Other rules have a selector in a header of their own, which selects the neurons, see
// selectors/selectors.h.
// The update gate u is 1 where the score is above 0. Its gradient is that of
// Likelihood(score, slope). V is a vector of floats, a dual number or a float. For kSample, each
// lane of V is a sample.
//
// Equations read memories of the size of a decision: (H,) for kNeuron, one number for kSample. A
// rule with its own selector may have memories of any size.

#pragma once

#include <cstdint>

#include "cells/gate.h"

namespace edgernn {

constexpr int kMaxRuleParams = 5;
constexpr int kMaxMemories = 4;

// The columns of a weight input, whose shape is (rows,), (rows, I), (rows, 2I), (rows, H), (rows,
// rank) or (rows, F).
enum class Columns { kNone, kInput, kInputTwice, kHidden, kRank, kFeatures };

struct WeightSpec {
  const char* name = nullptr;
  RowCount rows = {};
  Columns columns = Columns::kNone;
};

// The scope of one decision of a rule: all samples at a step, one neuron, all neurons of a sample,
// one value of x or h, or the update gate of a sample.
enum class RuleKind { kTime, kNeuron, kSample, kColumn, kGate };

// A state of the rule, of the size `extent` per sample. An unused entry has no name.
struct MemorySpec {
  const char* name = nullptr;
  Extent extent = Extent::kOne;
};

struct RuleDefaults {
  static constexpr MemorySpec kMemories[] = {{}};
  static constexpr WeightSpec kParams[] = {{}};
  static constexpr bool kCanSkip = true;        // u may be 0
  static constexpr bool kInclusive = false;     // u is 1 also where the score is 0
  static constexpr bool kHasEquations = false;  // a Score defines its decisions
  static constexpr bool kThins = false;  // a neuron skips columns of R, which may not be low-rank
  // indices in kParams of the matrix (H, I) and the vector (H,) that e is computed from, or -1
  static constexpr int kMatrix = -1;
  static constexpr int kBias = -1;
  // only for the kind kColumn: steps after which the sums are computed anew, and the change of a
  // value above which they are at once
  static constexpr int kPeriod = 0;
  static constexpr float kLargestChange = 0.0f;
  // only for the kind kSample: the index in kParams of a number n, or -1. If n > 0, the cell reads
  // the sum of the inputs since the last update, divided by n, in place of x. The last memory, of
  // the size (I,), is the sum of the inputs that no update has read yet. Equations do not see it.
  static constexpr int kPool = -1;
  // Advance reads the drive
  static constexpr bool kHasDrive = true;
  // multiply-adds of a decision per neuron, without those of e
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

// The constants of a rule as values, see RuleDefaults.
struct RuleSpec {
  const char* name;
  RuleKind kind;
  MemorySpec memories[kMaxMemories];
  int memory_count;
  int equation_memories;              // the first of them, which equations read
  WeightSpec params[kMaxRuleParams];  // unused entries have no name
  bool can_skip;
  bool has_equations;
  bool thins;
  int matrix;
  int bias;
  int pool;
  int neuron_macs;

  // True if every neuron is updated at every step.
  constexpr bool IsDense() const { return kind == RuleKind::kTime && !can_skip; }
  // True if groups of neurons may share a decision; its parameters then have a value per group.
  constexpr bool HasGroups() const {
    for (const WeightSpec& param : params) {
      if (param.rows.groups > 0) return true;
    }
    return false;
  }
  // True if its equations also define memories.
  constexpr bool Remembers() const { return has_equations && equation_memories > 0; }
};

template <class Rule>
constexpr RuleSpec DescribeRule() {
  RuleSpec spec{};
  spec.name = Rule::kName;
  spec.kind = Rule::kKind;
  spec.can_skip = Rule::kCanSkip;
  spec.has_equations = Rule::kHasEquations;
  spec.thins = Rule::kThins;
  spec.matrix = Rule::kMatrix;
  spec.bias = Rule::kBias;
  spec.pool = Rule::kPool;
  spec.neuron_macs = Rule::kNeuronMacs;
  int count = 0;
  for (const WeightSpec& param : Rule::kParams) spec.params[count++] = param;
  for (const MemorySpec& memory : Rule::kMemories) {
    if (memory.name != nullptr) spec.memories[spec.memory_count++] = memory;
  }
  spec.equation_memories = spec.memory_count - (spec.pool >= 0 ? 1 : 0);
  return spec;
}

// True if the memories of the equations have the size of a decision.
constexpr bool FitDecisions(const RuleSpec& spec) {
  const Extent extent = spec.kind == RuleKind::kNeuron ? Extent::kHidden : Extent::kOne;
  for (int i = 0; i < spec.equation_memories; ++i) {
    if (spec.memories[i].extent != extent) return false;
  }
  return true;
}

// The index of the state that Evidence reads, for a cell with this number of states.
constexpr int EvidenceState(int states) { return states > 1 ? 1 : 0; }

// The multiply-adds of the decisions of a sample's groups; groups of several neurons add up their
// states.
constexpr std::int64_t DecisionMacs(const RuleSpec& spec, std::int64_t input, std::int64_t hidden,
                                    std::int64_t groups) {
  return groups * ((spec.matrix < 0 ? 0 : input) + spec.neuron_macs) +
         (groups < hidden ? hidden : 0);
}

// True if the equations read a parameter themselves, as a vector or a number, and not through e.
constexpr bool IsRead(const RuleSpec& spec, int param) {
  return spec.params[param].name != nullptr && param != spec.matrix && param != spec.bias;
}

}  // namespace edgernn
