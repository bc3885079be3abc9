// SPDX-License-Identifier: Apache-2.0
// The selector of rules of the kind kNeuron: selects the neurons, or groups of neurons, whose score
// is above zero. Parameters, scores and memories have a value per group; without groups, each
// neuron is one.

#pragma once

#include "selectors/neuron_groups.h"

namespace edgernn::EDGERNN_ISA {

template <class Rule>
struct NeuronSelector {
  static constexpr RuleSpec kSpec = DescribeRule<Rule>();
  static constexpr int kRanks = -1;
  static constexpr bool kMasks = false;
  static constexpr bool kProjects = kSpec.matrix >= 0;
  static_assert(FitDecisions(kSpec), "a rule of the kind kNeuron needs memories of size H");
  static_assert(!kSpec.HasGroups() || !kSpec.Remembers(), "groups have no memories");

  static constexpr bool IsNumber(int param) { return kSpec.params[param].rows.one > 0; }

  struct Packed {
    float* matrix;                  // packed panels
    float* bias;                    // (padded groups,)
    float* params[kMaxRuleParams];  // (padded groups,), or a number in all lanes

    Packed(const LayerSizes& sizes, Arena* arena) {
      const std::int64_t padded = PadToLanes(Groups(sizes));
      matrix = arena->Allocate<float>(kProjects ? padded * sizes.input : 0);
      bias = arena->Allocate<float>(kProjects ? padded : 0);
#pragma GCC unroll 8
      for (int i = 0; i < kMaxRuleParams; ++i) {
        if (IsRead(kSpec, i)) params[i] = arena->Allocate<float>(IsNumber(i) ? kLanes : padded);
      }
    }
  };

  struct Scratch {
    std::int32_t* neurons;
    LaneBits* lanes;
    LaneBits* groups;  // active groups
    float* means;      // (padded groups,): means of the groups' states
    float* scores;     // (padded H,), of the last selection, only for rules with memories
    float* projected;  // (rows, padded groups)

    Scratch(const LayerSizes& sizes, std::int64_t rows, Arena* arena) {
      const std::int64_t padded = PadToLanes(Groups(sizes));
      neurons = AllocateList(sizes.hidden, arena);
      lanes = AllocateLanes(sizes.hidden, arena);
      groups = AllocateLanes(sizes.group_size > 1 ? Groups(sizes) : 0, arena);
      means = arena->Allocate<float>(sizes.group_size > 1 ? padded : 0);
      scores = arena->Allocate<float>(kSpec.Remembers() ? padded : 0);
      projected = arena->Allocate<float>(kProjects ? rows * padded : 0);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    if constexpr (kProjects) {
      PackMatrix(from.rule[kSpec.matrix], Groups(sizes), sizes.input, LargestPanel(1), to.matrix);
      if constexpr (kSpec.bias >= 0) {
        PackVector(from.rule[kSpec.bias], Groups(sizes), to.bias);
      } else {
        for (std::int64_t j = 0; j < PadToLanes(Groups(sizes)); ++j) to.bias[j] = 0.0f;
      }
    }
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (!IsRead(kSpec, i)) continue;
      if (IsNumber(i)) {
        Store(to.params[i], Fill(from.rule[i][0]));
      } else {
        PackVector(from.rule[i], Groups(sizes), to.params[i]);
      }
    }
  }

  static void Project(const LayerSizes& sizes, const Packed& packed, const float* x,
                      std::int64_t rows, const Scratch& scratch) {
    if constexpr (kProjects) {
      Multiply(x, rows, sizes.input, packed.matrix, packed.bias, Blocks(Groups(sizes)),
               scratch.projected);
    }
  }

  // Reads the rule's vectors from group j on, and its numbers.
  [[gnu::always_inline]] static void Read(const Packed& packed, std::int64_t j, Vec* q) {
#pragma GCC unroll 8
    for (int i = 0; i < kMaxRuleParams; ++i) {
      q[i] = IsRead(kSpec, i) ? Load(packed.params[i] + (IsNumber(i) ? 0 : j)) : Zero();
    }
  }

  [[gnu::always_inline]] static void ReadMemories(const float* const* memory, std::int64_t j,
                                                  Vec* m) {
#pragma GCC unroll 8
    for (int i = 0; i < kSpec.memory_count; ++i) m[i] = Load(memory[i] + j);
  }

  // 1 for active neurons, else 0.
  [[gnu::always_inline]] static Vec Active(Vec score) {
    const Vec::Raw one = Fill(1.0f).raw;
    return {(Rule::kInclusive ? score.raw >= 0.0f : score.raw > 0.0f) ? one : Zero().raw};
  }

  // The score of the groups from group j on, from their states h.
  [[gnu::always_inline]] static Vec Score(const Packed& packed, const float* projected,
                                          std::int64_t j, const float* h,
                                          const float* const* memory) {
    Vec q[kMaxRuleParams], m[kMaxMemories];
    Read(packed, j, q);
    ReadMemories(memory, j, m);
    const Vec e = kProjects ? Load(projected + j) : Zero();
    return Rule::Score(e, Load(h + j), m, q);
  }

  [[gnu::always_inline]] static LaneBits Decide(Vec score) {
    return PositiveLanes(Rule::kInclusive ? Active(score) : score);
  }

  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          std::int64_t row, const float* h, const float* const* memory) {
    const std::int64_t groups = Groups(sizes);
    const float* const projected = scratch.projected + row * PadToLanes(groups);
    const std::int64_t macs = DecisionMacs(kSpec, sizes.input, sizes.hidden, groups);
    if constexpr (kSpec.HasGroups()) {
      if (sizes.group_size > 1) return SelectGroups(sizes, packed, scratch, projected, h, macs);
    }
    std::int64_t count = 0, blocks = 0;
    for (std::int64_t j = 0; j < groups; j += kLanes) {
      const Vec score = Score(packed, projected, j, h, memory);
      if constexpr (kSpec.Remembers()) Store(scratch.scores + j, score);
      LaneBits lanes = Decide(score);
      // the padding may have any scores
      if (groups - j < kLanes) lanes &= kAllLanes >> (kLanes - (groups - j));
      scratch.lanes[j / kLanes] = lanes;
      blocks += lanes != 0;
      count += AppendLanes(lanes, static_cast<std::int32_t>(j), scratch.neurons + count);
    }
    return {count, scratch.neurons, macs, scratch.lanes, blocks};
  }

  [[gnu::noinline]] static ActiveSet SelectGroups(const LayerSizes& sizes, const Packed& packed,
                                                  const Scratch& scratch, const float* projected,
                                                  const float* h, std::int64_t macs) {
    const GroupRows rows(sizes.hidden, sizes.group_size);
    rows.Sum(h, scratch.means);
    rows.Divide(scratch.means);
    for (std::int64_t j = 0; j < Groups(sizes); j += kLanes) {
      scratch.groups[j / kLanes] = Decide(Score(packed, projected, j, scratch.means, nullptr));
    }
    SpreadGroups(scratch.groups, sizes.hidden, sizes.group_size, scratch.lanes);
    return MakeActiveSet(sizes.hidden, scratch.lanes, macs);
  }

  static void AdvanceMemory(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                            const float* state, float* const* memory) {
    if constexpr (kSpec.Remembers()) {
      for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
        Vec q[kMaxRuleParams], m[kMaxMemories];
        Read(packed, j, q);
        ReadMemories(memory, j, m);
        const Vec score = Load(scratch.scores + j);
        const Vec drive = Rule::Drive(Rule::Evidence(Load(state + j), q), q);
        Rule::Advance(Active(score), score, drive, q, m);
#pragma GCC unroll 8
        for (int i = 0; i < kSpec.memory_count; ++i) Store(memory[i] + j, m[i]);
      }
    }
  }
};

// The selector of a rule. Rules without equations specialise it.
template <class Rule>
struct SelectorOf {
  using Type = NeuronSelector<Rule>;
};

}  // namespace edgernn::EDGERNN_ISA
