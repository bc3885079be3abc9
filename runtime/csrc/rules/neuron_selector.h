// SPDX-License-Identifier: Apache-2.0
// The selector of rules of the kind kNeuron: selects neurons whose score is above zero.

#ifndef EDGERNN_RULES_NEURON_SELECTOR_H_
#define EDGERNN_RULES_NEURON_SELECTOR_H_

#include "rules/make_selector.h"

namespace edgernn::EDGERNN_ISA {

template <class Rule>
struct NeuronSelector {
  static constexpr RuleSpec kSpec = DescribeRule<Rule>();
  static constexpr int kRanks = -1;
  static constexpr bool kProjects = kSpec.matrix >= 0;
  static_assert(FitDecisions(kSpec), "a rule of the kind kNeuron needs memories of size H");

  static constexpr bool IsNumber(int param) { return kSpec.params[param].rows.one > 0; }

  struct Packed {
    float* matrix;                  // packed panels
    float* bias;                    // (padded H,)
    float* params[kMaxRuleParams];  // (padded H,), or a number in all lanes

    Packed(const LayerSizes& sizes, Arena* arena) {
      const std::int64_t padded = PadToLanes(sizes.hidden);
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
    float* scores;     // (padded H,), of the last selection, only for rules with memories
    float* projected;  // (rows, padded H)

    Scratch(const LayerSizes& sizes, std::int64_t rows, Arena* arena) {
      neurons = AllocateList(sizes.hidden, arena);
      scores = arena->Allocate<float>(kSpec.Remembers() ? PadToLanes(sizes.hidden) : 0);
      projected = arena->Allocate<float>(kProjects ? rows * PadToLanes(sizes.hidden) : 0);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    if constexpr (kProjects) {
      PackMatrix(from.rule[kSpec.matrix], sizes.hidden, sizes.input, LargestPanel(1), to.matrix);
      if constexpr (kSpec.bias >= 0) {
        PackVector(from.rule[kSpec.bias], sizes.hidden, to.bias);
      } else {
        for (std::int64_t j = 0; j < PadToLanes(sizes.hidden); ++j) to.bias[j] = 0.0f;
      }
    }
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (!IsRead(kSpec, i)) continue;
      if (IsNumber(i)) {
        Store(to.params[i], Fill(from.rule[i][0]));
      } else {
        PackVector(from.rule[i], sizes.hidden, to.params[i]);
      }
    }
  }

  static void Project(const LayerSizes& sizes, const Packed& packed, const float* x,
                      std::int64_t rows, const Scratch& scratch) {
    if constexpr (kProjects) {
      Multiply(x, rows, sizes.input, packed.matrix, packed.bias, Blocks(sizes.hidden),
               scratch.projected);
    }
  }

  // Reads the rule's vectors from neuron j on, and its numbers.
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

  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          std::int64_t row, const float* h, const float* const* memory) {
    const float* projected = scratch.projected + row * PadToLanes(sizes.hidden);
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
      Vec q[kMaxRuleParams], m[kMaxMemories];
      Read(packed, j, q);
      ReadMemories(memory, j, m);
      const Vec e = kProjects ? Load(projected + j) : Zero();
      const Vec score = Rule::Score(e, Load(h + j), m, q);
      if constexpr (kSpec.Remembers()) Store(scratch.scores + j, score);
      const Vec above = Rule::kInclusive ? Active(score) : score;
      count += AppendPositive(above, static_cast<std::int32_t>(j), scratch.neurons + count);
    }
    // the padding may have any scores
    while (count > 0 && scratch.neurons[count - 1] >= sizes.hidden) --count;
    return {count, scratch.neurons, DecisionMacs(kSpec, sizes.input, sizes.hidden)};
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

#endif  // EDGERNN_RULES_NEURON_SELECTOR_H_
