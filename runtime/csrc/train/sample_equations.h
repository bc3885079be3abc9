// SPDX-License-Identifier: Apache-2.0
// The equations of rules of the kind kSample, which decide and remember for each sample.

#pragma once

#include "train/rule_equations.h"

namespace edgernn::EDGERNN_ISA {

template <class Rule>
struct SampleEquations : RuleEquations<Rule> {
  using Equations = RuleEquations<Rule>;

  // u of the samples from `row` on.
  [[gnu::always_inline]] static Vec Decisions(const TrainRuleArgs& call, std::int64_t row,
                                              Lanes lanes, const Vec* q) {
    Vec m[kMaxMemories];
    Equations::ReadMemories(call, row, lanes, 0, kAsVec, m);
    return Equations::Active(Rule::Score(m, q));
  }

  [[gnu::flatten]] static void Decide(const TrainRuleArgs& call) {
    Vec q[kMaxRuleParams];
    Equations::Read(call, -1, 0, kAsVec, q);
    for (std::int64_t row = 0; row < call.rows; ++row) {
      Vec m[kMaxMemories];
#pragma GCC unroll 8
      for (int i = 0; i < Equations::kMemories; ++i) m[i] = Fill(call.memory[i][row]);
      const Vec u = Equations::Active(Rule::Score(m, q));
      for (std::int64_t at = 0; at < call.hidden; at += kLanes) {
        Lanes(call.hidden - at).Store(call.u + row * call.hidden + at, u);
      }
    }
  }

  // Writes the evidence of each sample: the sum over its neurons.
  static void SumEvidence(const TrainRuleArgs& call) {
    for (std::int64_t row = 0; row < call.rows; ++row) {
      Vec sum = Zero();
      for (std::int64_t at = 0; at < call.hidden; at += kLanes) {
        Vec q[kMaxRuleParams];
        Equations::Read(call, at, 0, kAsVec, q);
        const Vec s = Lanes(call.hidden - at).Load(call.after.at + row * call.after.stride + at);
        sum = sum + KeepFirst(Rule::Evidence(s, q), call.hidden - at);
      }
      call.evidence[row] = Sum(sum);
    }
  }

  [[gnu::flatten]] static void Remember(const TrainRuleArgs& call) {
    SumEvidence(call);
    Vec q[kMaxRuleParams];
    Equations::Read(call, -1, 0, kAsVec, q);
    for (std::int64_t row = 0; row < call.rows; row += kLanes) {
      const Lanes lanes(call.rows - row);
      const Vec drive = Rule::Drive(Load(call.evidence + row), q);
      Vec m[kMaxMemories];
      Equations::ReadMemories(call, row, lanes, 0, kAsVec, m);
      const Vec score = Rule::Score(m, q);
      Rule::Advance(Equations::Active(score), score, drive, q, m);
#pragma GCC unroll 8
      for (int i = 0; i < Equations::kMemories; ++i) {
        lanes.Store(call.memory_after[i] + row, m[i]);
      }
    }
  }

  // The score depends only on the memories, so its gradient is added to theirs directly.
  [[gnu::flatten]] static void RememberBack(const TrainRuleArgs& call) {
    constexpr int kU = 0, kMemory = 1, kEvidence = kMemory + Equations::kMemories;
    constexpr int kFirst = kEvidence + 1, kCount = kFirst + kMaxRuleParams;
    SumEvidence(call);
    Vec values[kMaxRuleParams];
    Dual<kCount> q[kMaxRuleParams];
    Equations::Read(call, -1, 0, kAsVec, values);
    Equations::Read(call, -1, kFirst, kAsDual<kCount>, q);
    for (std::int64_t row = 0; row < call.rows; row += kLanes) {
      const Lanes lanes(call.rows - row);
      const auto drive = Rule::Drive(Input<kCount>(Load(call.evidence + row), kEvidence), q);
      AdvancedMemories<Rule, kCount> after;
      Equations::ReadMemories(call, row, lanes, kMemory, kAsDual<kCount>, after.m);
      after.ReadGrads(call, row, lanes);
      Rule::Advance(Input<kCount>(Decisions(call, row, lanes, values), kU), Rule::Score(after.m, q),
                    drive, q, after.m);
      Store(call.decision_grad + row, after.By(kU));
      Store(call.evidence + row, after.By(kEvidence));
      after.WriteGrads(call, row, -1, lanes, call.rows - row, kMemory, kFirst);
    }
    EvidenceBack(call);
  }

  // Propagates the gradient of the evidence to the neurons' states and parameters.
  static void EvidenceBack(const TrainRuleArgs& call) {
    constexpr int kState = 0, kFirst = 1, kCount = kFirst + kMaxRuleParams;
    for (std::int64_t row = 0; row < call.rows; ++row) {
      for (std::int64_t at = 0; at < call.hidden; at += kLanes) {
        const Lanes lanes(call.hidden - at);
        Dual<kCount> q[kMaxRuleParams];
        Equations::Read(call, at, kFirst, kAsDual<kCount>, q);
        const Vec s = lanes.Load(call.after.at + row * call.after.stride + at);
        const auto evidence = Rule::Evidence(Input<kCount>(s, kState), q);
        const Vec grad = Fill(call.evidence[row]);
        if (evidence.DependsOn(kState)) {
          float* to = call.after.grad + row * call.after.grad_stride + at;
          lanes.Store(to, lanes.Load(to) + grad * evidence.d[kState]);
        }
        Equations::AddGrads(call, at, kFirst, evidence, grad, call.hidden - at);
      }
    }
  }

  [[gnu::flatten]] static void DecideBack(const TrainRuleArgs& call) {
    constexpr int kFirst = Equations::kMemories, kCount = kFirst + kMaxRuleParams;
    for (std::int64_t row = 0; row < call.rows; ++row) {
      Vec sum = Zero();
      for (std::int64_t at = 0; at < call.hidden; at += kLanes) {
        const Vec grad = Lanes(call.hidden - at).Load(call.u_grad + row * call.hidden + at);
        sum = sum + KeepFirst(grad + call.DecisionWeight(row), call.hidden - at);
      }
      call.decision_grad[row] += Sum(sum);
    }
    Dual<kCount> q[kMaxRuleParams];
    Equations::Read(call, -1, kFirst, kAsDual<kCount>, q);
    for (std::int64_t row = 0; row < call.rows; row += kLanes) {
      const Lanes lanes(call.rows - row);
      Dual<kCount> m[kMaxMemories];
      Equations::ReadMemories(call, row, lanes, 0, kAsDual<kCount>, m);
      const auto likelihood = Rule::Likelihood(Rule::Score(m, q), call.slope);
      const Vec grad = Load(call.decision_grad + row);
#pragma GCC unroll 8
      for (int i = 0; i < Equations::kMemories; ++i) {
        if (!likelihood.DependsOn(i)) continue;
        float* to = call.memory_grad[i] + row;
        lanes.Store(to, lanes.Load(to) + grad * likelihood.d[i]);
      }
      Equations::AddGrads(call, -1, kFirst, likelihood, grad, call.rows - row);
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
