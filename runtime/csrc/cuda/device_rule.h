// SPDX-License-Identifier: Apache-2.0
// The equations of the plan's rule on a GPU; the rule is selected by its index in the list of
// rules.

#pragma once

#include "cuda/launch_plan.h"
#include "cuda/scalar.h"

namespace edgernn::cuda {

// Evaluates the rule of a plan on shared memory.
struct DeviceRule {
  const LaunchPlan& plan;
  float* const shared;

  // The parameters and constants of a kColumn rule, see rules/rule.h.
  struct ColumnRule {
    float threshold_x;
    float threshold_h;
    float period;
    float largest_change;
  };

  struct NeuronDecision {
    float score;
    bool changes;
  };

  // The mean of h over the neurons [first, end) of a group; all threads of a row compute it.
  template <class Cluster>
  EDGERNN_DEVICE float MeanState(const float* h, int first, int end, int lane,
                                 const Cluster& cluster) const {
    if (plan.group_size == 1) return h[first];
    float sum = 0.0f;
    for (int j = first + lane; j < end; j += kRowThreads) sum += h[j];
    return cluster.Sum(sum) / static_cast<float>(end - first);
  }

  // Decides for neuron or group `at` of this block's range, with the packed row `row` and the state
  // or mean h. project() returns its element of the rule's matrix times x; all threads of the row
  // must call it.
  template <class Project>
  EDGERNN_DEVICE NeuronDecision DecideNeuron(const float* row, int at, float h,
                                             const Project& project) const {
    NeuronDecision decision{};
    VisitRule<RuleKind::kNeuron>(Rules{}, [&](auto rule) {
      using Rule = decltype(rule);
      Scalar e{0.0f}, q[kMaxRuleParams] = {}, m[kMaxMemories] = {};
      if constexpr (Rule::kMatrix >= 0) e.raw = project();
      if constexpr (Rule::kBias >= 0) e.raw += row[plan.decide.rule_params + Rule::kBias];
      ReadNeuron<Rule>(row, at, q, m);
      const Scalar score = Rule::Score(e, Scalar{h}, m, q);
      decision = {score.raw, IsActive<Rule>(score)};
    });
    return decision;
  }

  // Advances the memories of neuron `at` over a step with the new state s.
  EDGERNN_DEVICE void AdvanceNeuron(const float* row, int at, float score, float s) const {
    VisitRule<RuleKind::kNeuron>(Rules{}, [&](auto rule) {
      using Rule = decltype(rule);
      if constexpr (DescribeRule<Rule>().Remembers()) {
        Scalar q[kMaxRuleParams] = {}, m[kMaxMemories] = {};
        ReadNeuron<Rule>(row, at, q, m);
        const Scalar drive = Rule::Drive(Rule::Evidence(Scalar{s}, q), q);
        const Scalar u{IsActive<Rule>(Scalar{score}) ? 1.0f : 0.0f};
        Rule::Advance(u, Scalar{score}, drive, q, m);
#pragma unroll
        for (int i = 0; i < DescribeRule<Rule>().equation_memories; ++i) {
          shared[plan.memory_at[i] + at] = m[i].raw;
        }
      }
    });
  }

  // True if a sample with these memories changes.
  EDGERNN_DEVICE bool SampleChanges(const Scalar* m) const {
    bool changes = false;
    VisitRule<RuleKind::kSample>(Rules{}, [&](auto rule) {
      using Rule = decltype(rule);
      Scalar q[kMaxRuleParams];
      Read<Rule>(0, q);
      changes = IsActive<Rule>(Rule::Score(m, q));
    });
    return changes;
  }

  // The drive from a state; every group of kRowThreads threads computes it.
  template <class Cluster>
  EDGERNN_DEVICE float Drive(const float* state, int lane, const Cluster& cluster) const {
    float drive = 0.0f;
    VisitRule<RuleKind::kSample>(Rules{}, [&](auto rule) {
      using Rule = decltype(rule);
      Scalar q[kMaxRuleParams];
      float sum = 0.0f;
      for (int j = lane; j < plan.hidden; j += kRowThreads) {
        Read<Rule>(j, q);
        sum += Rule::Evidence(Scalar{state[j]}, q).raw;
      }
      Read<Rule>(0, q);
      drive = Rule::Drive(Scalar{cluster.Sum(sum)}, q).raw;
    });
    return drive;
  }

  // Advances the memories of a sample over a step.
  EDGERNN_DEVICE void AdvanceSample(float u, float drive, Scalar* m) const {
    VisitRule<RuleKind::kSample>(Rules{}, [&](auto rule) {
      using Rule = decltype(rule);
      Scalar q[kMaxRuleParams];
      Read<Rule>(0, q);
      const Scalar score = Rule::Score(m, q);
      Rule::Advance(Scalar{u}, score, Scalar{drive}, q, m);
    });
  }

  // The number of neurons with the largest scores that change, from 1 to H.
  EDGERNN_DEVICE int ReadCount() const {
    int count = plan.hidden;
    VisitRule<RuleKind::kGate>(Rules{}, [&](auto rule) {
      Scalar q[kMaxRuleParams];
      Read<decltype(rule)>(0, q);
      const float k = q[0].raw;
      // NaN is 1
      if (!(k >= static_cast<float>(count))) count = k >= 1.0f ? static_cast<int>(k) : 1;
    });
    return count;
  }

  EDGERNN_DEVICE ColumnRule ReadColumnRule() const {
    ColumnRule column{};
    VisitRule<RuleKind::kColumn>(Rules{}, [&](auto rule) {
      using Rule = decltype(rule);
      Scalar q[kMaxRuleParams];
      Read<Rule>(0, q);
      column = {q[0].raw, q[1].raw, static_cast<float>(Rule::kPeriod), Rule::kLargestChange};
    });
    return column;
  }

 private:
  template <class Rule, RuleKind kKind, class Visit>
  EDGERNN_DEVICE static void VisitIf(bool wanted, const Visit& visit) {
    if constexpr (Rule::kKind == kKind && RunsOnGpu(DescribeRule<Rule>())) {
      if (wanted) visit(Rule{});
    }
  }

  // Calls visit(rule) with the plan's rule, if it is of the kind kKind.
  template <RuleKind kKind, class Visit, class... AllRules>
  EDGERNN_DEVICE void VisitRule(TypeList<AllRules...>, const Visit& visit) const {
    int at = 0;
    (VisitIf<AllRules, kKind>(at++ == plan.rule, visit), ...);
  }

  template <class Rule>
  EDGERNN_DEVICE static bool IsActive(Scalar score) {
    return Rule::kInclusive ? score.raw >= 0.0f : score.raw > 0.0f;
  }

  // Loads the parameters and memories of a neuron or group under a kNeuron rule.
  template <class Rule>
  EDGERNN_DEVICE void ReadNeuron(const float* row, int at, Scalar* q, Scalar* m) const {
    constexpr RuleSpec kSpec = DescribeRule<Rule>();
#pragma unroll
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (IsRead(kSpec, i)) q[i].raw = row[plan.decide.rule_params + i];
    }
#pragma unroll
    for (int i = 0; i < kSpec.equation_memories; ++i) m[i].raw = shared[plan.memory_at[i] + at];
  }

  // Loads the parameters of a rule that is not of the kind kNeuron, at neuron j.
  template <class Rule>
  EDGERNN_DEVICE void Read(int j, Scalar* q) const {
    constexpr RuleSpec kSpec = DescribeRule<Rule>();
#pragma unroll
    for (int i = 0; i < kMaxRuleParams; ++i) {
      const bool is_scalar = kSpec.params[i].rows.one > 0;
      const float* const at = shared + plan.shared_params_at + SharedParamAt(kSpec, i, plan.hidden);
      q[i].raw = IsRead(kSpec, i) ? at[is_scalar ? 0 : j] : 0.0f;
    }
  }
};

}  // namespace edgernn::cuda
