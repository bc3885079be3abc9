// SPDX-License-Identifier: Apache-2.0
// The inputs and outputs of a rule's equations over the rows of a step. Backward evaluates the
// equations on dual numbers.

#pragma once

#include "train/cell_maps.h"

namespace edgernn {

// The rows of one step; null where a function does not need them.
struct TrainRuleArgs {
  std::int64_t rows;
  std::int64_t hidden;  // H
  std::int64_t groups;  // kNeuron only: groups of neurons that decide; H without groups
  std::int64_t inputs;  // kColumn only: columns of W
  float sign;           // kGate only: factor of the update gate in the scores
  float* scores;        // kGate only, (padded H,): workspace
  float slope;
  // (padded H,), or (padded groups,) for kNeuron; scalars broadcast to all lanes
  const float* params[kMaxRuleParams];
  float* params_grad[kMaxRuleParams];  // the same shapes; gradients are added
  // (rows, groups) for kNeuron, (rows, H) for kSample
  float* u;  // written by decide
  const float* u_grad;
  const float* decision_weights;  // (rows,), added to the gradients of u; null: zeros
  // (rows, groups)
  // matrix x + bias; gradients are written. (rows, columns of W) for kColumn: x. (rows, H) for
  // kGate: pre-activations of the update gate
  RowsWithGrad e;
  RowsWithGrad h;      // state, or means of it, before the step; gradients are added, unless null
  RowsWithGrad after;  // (rows, H), state the evidence reads; gradients are added
  // one value per decision: (rows, H) for kNeuron, (rows,) for kSample. For kColumn, the values
  // that products read in place of x and h: (rows, columns of W) and (rows, H)
  const float* memory[kMaxMemories];  // before the step
  float* memory_after[kMaxMemories];  // written by remember
  float* memory_grad[kMaxMemories];   // in-place: after the step -> before the step
  float* decision_grad;               // (padded); remember_back writes, decide_back reads
  float* score_grad;                  // (padded), kNeuron only; the same
  float* evidence;                    // (padded), kSample only; written

  float DecisionWeight(std::int64_t row) const {
    return decision_weights == nullptr ? 0.0f : decision_weights[row];
  }
};

}  // namespace edgernn

namespace edgernn::EDGERNN_ISA {

[[gnu::always_inline]] inline float Sum(Vec a) { return Sum4(a, a, a, a)[0]; }

// Zeroes all but the first `count` lanes.
[[gnu::always_inline]] inline Vec KeepFirst(Vec a, std::int64_t count) {
  for (std::int64_t lane = count < 0 ? 0 : count; lane < kLanes; ++lane) a.raw[lane] = 0.0f;
  return a;
}

// Common to both kinds: reads the inputs of the equations, which are numbered for differentiation.
// Parameter i and memory i are the inputs `first` + i.
template <class Rule>
struct RuleEquations {
  static constexpr RuleSpec kSpec = DescribeRule<Rule>();
  static constexpr int kMemories = kSpec.equation_memories;

  static constexpr bool IsScalar(int param) { return kSpec.params[param].rows.one > 0; }

  // Loads the parameters of the neurons from `at` on, or only the scalars if `at` is -1.
  template <class V, class Make>
  [[gnu::always_inline]] static void Read(const TrainRuleArgs& call, std::int64_t at, int first,
                                          Make make, V* q) {
#pragma GCC unroll 8
    for (int i = 0; i < kMaxRuleParams; ++i) {
      const bool present = IsRead(kSpec, i) && (IsScalar(i) || at >= 0);
      q[i] = present ? make(Load(call.params[i] + (IsScalar(i) ? 0 : at)), first + i)
                     : make(Zero(), -1);
    }
  }

  // Accumulates the parameters' gradients, `grad` times the derivatives, over the first `count`
  // lanes.
  template <int K>
  [[gnu::always_inline]] static void AddGrads(const TrainRuleArgs& call, std::int64_t at, int first,
                                              const Dual<K>& result, Vec grad, std::int64_t count) {
#pragma GCC unroll 8
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (!IsRead(kSpec, i) || !result.DependsOn(first + i)) continue;
      float* to = call.params_grad[i] + (IsScalar(i) ? 0 : at);
      Store(to, Load(to) + KeepFirst(grad * result.d[first + i], count));
    }
  }

  // Loads the memories before the step, from decision `at` on.
  template <class V, class Make>
  [[gnu::always_inline]] static void ReadMemories(const TrainRuleArgs& call, std::int64_t at,
                                                  Lanes lanes, int first, Make make, V* m) {
#pragma GCC unroll 8
    for (int i = 0; i < kMemories; ++i) m[i] = make(lanes.Load(call.memory[i] + at), first + i);
  }

  // 1 where the score exceeds the threshold 0 (kInclusive: reaches it), otherwise 0.
  [[gnu::always_inline]] static Vec Active(Vec score) {
    const Vec::Raw one = Fill(1.0f).raw;
    return {(Rule::kInclusive ? score.raw >= 0.0f : score.raw > 0.0f) ? one : Vec::Raw{}};
  }
};

// The memories after a step as dual numbers over the inputs of Advance, and their gradients.
template <class Rule, int K>
struct AdvancedMemories {
  using Equations = RuleEquations<Rule>;

  Dual<K> m[kMaxMemories];
  Vec grad[kMaxMemories];

  // Loads the memories' gradients from decision `at` on.
  [[gnu::always_inline]] void ReadGrads(const TrainRuleArgs& call, std::int64_t at, Lanes lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < Equations::kMemories; ++i) {
      grad[i] = lanes.Load(call.memory_grad[i] + at);
    }
  }

  // The gradient of an input.
  [[gnu::always_inline]] Vec By(int input) const {
    Vec sum = Zero();
    bool any = false;
#pragma GCC unroll 8
    for (int i = 0; i < Equations::kMemories; ++i) {
      if (!m[i].DependsOn(input)) continue;
      sum = any ? sum + grad[i] * m[i].d[input] : grad[i] * m[i].d[input];
      any = true;
    }
    return sum;
  }

  // Accumulates the parameters' gradients and replaces the memories' gradients by those before the
  // step. The memories are the inputs from `memory` on.
  [[gnu::always_inline]] void WriteGrads(const TrainRuleArgs& call, std::int64_t at,
                                         std::int64_t param_at, Lanes lanes, std::int64_t count,
                                         int memory, int param) const {
#pragma GCC unroll 8
    for (int i = 0; i < Equations::kMemories; ++i) {
      lanes.Store(call.memory_grad[i] + at, By(memory + i));
      Equations::AddGrads(call, param_at, param, m[i], grad[i], count);
    }
  }
};

constexpr auto kAsVec = [](Vec a, int) { return a; };

template <int K>
constexpr auto kAsDual =
    [](Vec a, int input) { return input < 0 ? Constant<K>(a) : Input<K>(a, input); };

}  // namespace edgernn::EDGERNN_ISA
