// SPDX-License-Identifier: Apache-2.0
// The equations of rules of the kind kNeuron, which decide and remember for each neuron or group of
// neurons. All tensors have a value per group; without groups, each neuron is one.

#pragma once

#include "train/rule_equations.h"

namespace edgernn::EDGERNN_ISA {

template <class Rule>
struct NeuronEquations : RuleEquations<Rule> {
  using Equations = RuleEquations<Rule>;
  static constexpr bool kProjects = Equations::kSpec.matrix >= 0;

  static Vec At(const RowsWithGrad& from, std::int64_t row, std::int64_t at, Lanes lanes) {
    return lanes.Load(from.at + row * from.stride + at);
  }

  // The score of the groups from `at` on, with memories m. make(vector, input) converts a vector
  // to V, as input kE or kH of the equations.
  static constexpr int kE = 0, kH = 1;
  template <class V, class Make>
  [[gnu::always_inline]] static V Score(const TrainRuleArgs& call, std::int64_t row,
                                        std::int64_t at, Lanes lanes, Make make, const V* m,
                                        const V* q) {
    const Vec e = kProjects ? At(call.e, row, at, lanes) : Zero();
    return Rule::Score(make(e, kE), make(At(call.h, row, at, lanes), kH), m, q);
  }

  [[gnu::flatten]] static void Decide(const TrainRuleArgs& call) {
    for (std::int64_t row = 0; row < call.rows; ++row) {
      for (std::int64_t at = 0; at < call.groups; at += kLanes) {
        const Lanes lanes(call.groups - at);
        Vec q[kMaxRuleParams], m[kMaxMemories];
        Equations::Read(call, at, 0, kAsVec, q);
        Equations::ReadMemories(call, row * call.groups + at, lanes, 0, kAsVec, m);
        const Vec score = Score(call, row, at, lanes, kAsVec, m, q);
        lanes.Store(call.u + row * call.groups + at, Equations::Active(score));
      }
    }
  }

  [[gnu::flatten]] static void Remember(const TrainRuleArgs& call) {
    for (std::int64_t row = 0; row < call.rows; ++row) {
      for (std::int64_t at = 0; at < call.groups; at += kLanes) {
        const Lanes lanes(call.groups - at);
        const std::int64_t offset = row * call.groups + at;
        Vec q[kMaxRuleParams], m[kMaxMemories];
        Equations::Read(call, at, 0, kAsVec, q);
        Equations::ReadMemories(call, offset, lanes, 0, kAsVec, m);
        const Vec score = Score(call, row, at, lanes, kAsVec, m, q);
        const Vec drive = Rule::Drive(Rule::Evidence(At(call.after, row, at, lanes), q), q);
        Rule::Advance(lanes.Load(call.u + offset), score, drive, q, m);
#pragma GCC unroll 8
        for (int i = 0; i < Equations::kMemories; ++i) {
          lanes.Store(call.memory_after[i] + offset, m[i]);
        }
      }
    }
  }

  [[gnu::flatten]] static void RememberBack(const TrainRuleArgs& call) {
    constexpr int kU = 0, kScore = 1, kState = 2, kMemory = 3;
    constexpr int kFirst = kMemory + Equations::kMemories, kCount = kFirst + kMaxRuleParams;
    for (std::int64_t row = 0; row < call.rows; ++row) {
      for (std::int64_t at = 0; at < call.groups; at += kLanes) {
        const Lanes lanes(call.groups - at);
        const std::int64_t offset = row * call.groups + at;
        Vec values[kMaxRuleParams], before[kMaxMemories];
        Equations::Read(call, at, 0, kAsVec, values);
        Equations::ReadMemories(call, offset, lanes, 0, kAsVec, before);
        const Vec score = Score(call, row, at, lanes, kAsVec, before, values);
        Dual<kCount> q[kMaxRuleParams];
        AdvancedMemories<Rule, kCount> after;
        Equations::Read(call, at, kFirst, kAsDual<kCount>, q);
        Equations::ReadMemories(call, offset, lanes, kMemory, kAsDual<kCount>, after.m);
        after.ReadGrads(call, offset, lanes);
        const auto state = Input<kCount>(At(call.after, row, at, lanes), kState);
        Rule::Advance(Input<kCount>(lanes.Load(call.u + offset), kU), Input<kCount>(score, kScore),
                      Rule::Drive(Rule::Evidence(state, q), q), q, after.m);
        lanes.Store(call.decision_grad + offset, after.By(kU));
        lanes.Store(call.score_grad + offset, after.By(kScore));
        float* to = call.after.grad + row * call.after.grad_stride + at;
        lanes.Store(to, lanes.Load(to) + after.By(kState));
        after.WriteGrads(call, offset, at, lanes, call.groups - at, kMemory, kFirst);
      }
    }
  }

  [[gnu::flatten]] static void DecideBack(const TrainRuleArgs& call) {
    constexpr int kMemory = 2, kFirst = kMemory + Equations::kMemories;
    constexpr int kCount = kFirst + kMaxRuleParams;
    constexpr bool kRemembers = Equations::kSpec.Remembers();
    for (std::int64_t row = 0; row < call.rows; ++row) {
      for (std::int64_t at = 0; at < call.groups; at += kLanes) {
        const Lanes lanes(call.groups - at);
        const std::int64_t offset = row * call.groups + at;
        Dual<kCount> q[kMaxRuleParams], m[kMaxMemories];
        Equations::Read(call, at, kFirst, kAsDual<kCount>, q);
        Equations::ReadMemories(call, offset, lanes, kMemory, kAsDual<kCount>, m);
        const auto score = Score(call, row, at, lanes, kAsDual<kCount>, m, q);
        const auto likelihood = Rule::Likelihood(score, call.slope);
        Vec grad = lanes.Load(call.u_grad + offset) + call.DecisionWeight(row), score_grad = Zero();
        if constexpr (kRemembers) {
          grad = grad + lanes.Load(call.decision_grad + offset);
          score_grad = lanes.Load(call.score_grad + offset);
        }
        const auto by = [&](int input) {
          const Vec through = likelihood.DependsOn(input) ? grad * likelihood.d[input] : Zero();
          return kRemembers && score.DependsOn(input) ? through + score_grad * score.d[input]
                                                      : through;
        };
        if (kProjects) lanes.Store(call.e.grad + row * call.e.grad_stride + at, by(kE));
        if (score.DependsOn(kH) && call.h.grad != nullptr) {
          float* to = call.h.grad + row * call.h.grad_stride + at;
          lanes.Store(to, lanes.Load(to) + by(kH));
        }
#pragma GCC unroll 8
        for (int i = 0; i < Equations::kMemories; ++i) {
          float* to = call.memory_grad[i] + offset;
          lanes.Store(to, lanes.Load(to) + by(kMemory + i));
        }
        Equations::AddGrads(call, at, kFirst, likelihood, grad, call.groups - at);
        if (kRemembers) {
          Equations::AddGrads(call, at, kFirst, score, score_grad, call.groups - at);
        }
      }
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
