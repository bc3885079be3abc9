// SPDX-License-Identifier: Apache-2.0
// What the equations of a rule read and write over the rows of a step, forward and, on dual
// numbers, backward.

#ifndef EDGERNN_TRAIN_RULE_EQUATIONS_H_
#define EDGERNN_TRAIN_RULE_EQUATIONS_H_

#include "train/pointwise.h"

namespace edgernn {

// The rows of one step. What a function does not need is null.
struct TrainRuleArgs {
  std::int64_t rows;
  std::int64_t hidden;  // H
  float slope;
  float decision_weight;
  const float* params[kMaxRuleParams];  // (padded H,), a number as a vector of equal lanes
  float* params_grad[kMaxRuleParams];   // likewise, added
  float* u;                             // (rows, H), written by decide
  const float* u_grad;                  // (rows, H)
  RowsWithGrad e;                       // (rows, H); gradients are written
  RowsWithGrad h;                       // (rows, H), before the step; gradients are added
  RowsWithGrad after;                   // (rows, H), the state of the evidence; likewise
  // a number a decision: (rows, H), or (rows,) for kSample
  const float* memory[kMaxMemories];  // before the step
  float* memory_after[kMaxMemories];  // written by remember
  float* memory_grad[kMaxMemories];   // from those after the step to those before it
  float* decision_grad;               // (padded), from remember_back to decide_back
  float* score_grad;                  // (padded), likewise, for kNeuron
  float* evidence;                    // (padded), written, for kSample
};

}  // namespace edgernn

namespace edgernn::EDGERNN_ISA {

[[gnu::always_inline]] inline float Sum(Vec a) { return Sum4(a, a, a, a)[0]; }

// The first `count` lanes; 0 in the others.
[[gnu::always_inline]] inline Vec First(Vec a, std::int64_t count) {
  for (std::int64_t lane = count < 0 ? 0 : count; lane < kLanes; ++lane) a.raw[lane] = 0.0f;
  return a;
}

// What both kinds have in common: inputs of equations, numbered. Those before kFirstParam are the
// function's own.
template <class Rule>
struct RuleEquations {
  static constexpr RuleSpec kSpec = DescribeRule<Rule>();
  static constexpr int kMemories = kSpec.memory_count;

  static constexpr bool IsNumber(int param) { return kSpec.params[param].rows.one > 0; }

  // The parameters at neuron `at`, or, where that is -1, the numbers alone.
  template <class V, class Make>
  [[gnu::always_inline]] static void Read(const TrainRuleArgs& call, std::int64_t at, int first,
                                          Make make, V* q) {
#pragma GCC unroll 8
    for (int i = 0; i < kMaxRuleParams; ++i) {
      const bool present = IsRead(kSpec, i) && (IsNumber(i) || at >= 0);
      q[i] = present ? make(Load(call.params[i] + (IsNumber(i) ? 0 : at)), first + i)
                     : make(Zero(), -1);
    }
  }

  // Adds `grad` times the derivatives by the parameters, of the first `count` lanes.
  template <int K>
  [[gnu::always_inline]] static void AddGrads(const TrainRuleArgs& call, std::int64_t at, int first,
                                              const Dual<K>& result, Vec grad, std::int64_t count) {
#pragma GCC unroll 8
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (!IsRead(kSpec, i) || !result.DependsOn(first + i)) continue;
      float* to = call.params_grad[i] + (IsNumber(i) ? 0 : at);
      Store(to, Load(to) + First(grad * result.d[first + i], count));
    }
  }

  // The memories of the decisions from `at` on, before the step.
  template <class V, class Make>
  [[gnu::always_inline]] static void ReadMemories(const TrainRuleArgs& call, std::int64_t at,
                                                  Lanes lanes, int first, Make make, V* m) {
#pragma GCC unroll 8
    for (int i = 0; i < kMemories; ++i) m[i] = make(lanes.Load(call.memory[i] + at), first + i);
  }

  [[gnu::always_inline]] static Vec Active(Vec score) {
    const Vec::Raw one = Fill(1.0f).raw;
    return {(Rule::kInclusive ? score.raw >= 0.0f : score.raw > 0.0f) ? one : Vec::Raw{}};
  }
};

// The memories after a step, as functions of what Advance is given, and their gradients.
template <class Rule, int K>
struct AdvancedMemories {
  using Equations = RuleEquations<Rule>;

  Dual<K> m[kMaxMemories];
  Vec grad[kMaxMemories];

  // Reads the gradients of the decisions from `at` on.
  [[gnu::always_inline]] void ReadGrads(const TrainRuleArgs& call, std::int64_t at, Lanes lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < Equations::kMemories; ++i) {
      grad[i] = lanes.Load(call.memory_grad[i] + at);
    }
  }

  // The gradient by an input.
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

  // Adds the gradients of the parameters, and turns those of the memories into those before the
  // step, which are inputs from `memory` on.
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

constexpr auto kAsItIs = [](Vec a, int) { return a; };

template <int K>
constexpr auto kAsDual =
    [](Vec a, int input) { return input < 0 ? Constant<K>(a) : Input<K>(a, input); };

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_RULE_EQUATIONS_H_
