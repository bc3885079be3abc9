// SPDX-License-Identifier: Apache-2.0
// The selector of the rule topk: selects the k neurons with the largest scores.

#pragma once

#include "selectors/neuron_selector.h"

namespace edgernn::EDGERNN_ISA {

// Numbers in the order of the floats other than NaN; -0 comes just before 0.
[[gnu::always_inline]] inline std::int64_t ToKey(float a) {
  std::int32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

[[gnu::always_inline]] inline float FromKey(std::int64_t key) {
  const auto small = static_cast<std::int32_t>(key);
  const std::int32_t bits = small < 0 ? small ^ 0x7fffffff : small;
  float a;
  std::memcpy(&a, &bits, sizeof a);
  return a;
}

// The scores of one sample, of which NaN is the smallest.
struct Scores {
  const float* at;     // (padded H,), NaN in the padding
  std::int64_t count;  // H

  // Two limits: fewer than k scores, or exactly k, are above `high`. The others of the k largest
  // are equal, and the only ones from `low` to `high`.
  struct Limits {
    float low;
    float high;
    std::int64_t above;  // number of scores above `high`
    bool unbounded;      // all scores that are not above `high` are equal, NaN included
  };

  [[gnu::always_inline]] LaneBits Above(std::int64_t j, float limit) const {
    return LanesAbove(Load(at + j), Fill(limit));
  }

  [[gnu::always_inline]] std::int64_t CountAbove(float limit) const {
    Vec::Bits above{};
    for (std::int64_t j = 0; j < count; j += kLanes) above += Load(at + j).raw > Fill(limit).raw;
    return CountLanes(above);
  }

  // The total of lanes that were lowered by 1 for each score.
  [[gnu::always_inline]] static std::int64_t CountLanes(Vec::Bits lowered) {
    std::int64_t total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total -= lowered[lane];
    return total;
  }

  [[gnu::noinline]] Limits Find(std::int64_t k) const {
    // halvings of the range of the scores, of which about log2(H) find k scores in most steps
    constexpr int kHalvings = 16;
    constexpr float kInfinity = __builtin_inff();
    Vec::Bits above_least{};
    Vec least = Fill(kInfinity), most = Fill(-kInfinity);
    for (std::int64_t j = 0; j < count; j += kLanes) {
      const Vec score = Load(at + j);
      above_least += score.raw > Fill(-kInfinity).raw;
      least.raw = score.raw < least.raw ? score.raw : least.raw;
      most.raw = score.raw > most.raw ? score.raw : most.raw;
    }
    const std::int64_t numbers = CountLanes(above_least);
    if (numbers <= k) return {-kInfinity, -kInfinity, numbers, true};
    float bottom = kInfinity, top = -kInfinity;
    for (int lane = 0; lane < kLanes; ++lane) {
      bottom = least.raw[lane] < bottom ? least.raw[lane] : bottom;
      top = most.raw[lane] > top ? most.raw[lane] : top;
    }
    // more than k scores are above `low`, and fewer above `high`
    Limits limits{-kInfinity, kInfinity, 0, false};
    for (int round = 0; ToKey(limits.high) - ToKey(limits.low) > 1; ++round) {
      float limit = 0.5f * bottom + 0.5f * top;
      if (round >= kHalvings || !(limit > limits.low) || !(limit < limits.high)) {
        // then halves the number of floats between the limits, which takes at most 32 rounds
        limit = FromKey((ToKey(limits.low) + ToKey(limits.high)) >> 1);
      }
      const std::int64_t above = CountAbove(limit);
      if (above > k) {
        limits.low = bottom = limit;
      } else {
        limits.high = top = limit;
        limits.above = above;
        if (above == k) break;
      }
    }
    return limits;
  }

  // Calls visit(j, lanes) for each block of scores from `j` on. The bits of `lanes` are set for
  // the k largest of all scores; of equal ones, those of lower indices count as larger.
  template <class Visit>
  [[gnu::always_inline]] void VisitLargest(std::int64_t k, const Visit& visit) const {
    const Limits limits = Find(k);
    std::int64_t equal = k - limits.above;
    for (std::int64_t j = 0; j < count; j += kLanes) {
      LaneBits lanes = Above(j, limits.high);
      // the padding comes last, where enough ties were found
      LaneBits ties = (limits.unbounded ? kAllLanes : Above(j, limits.low)) & ~lanes;
      for (; equal > 0 && ties != 0; ties &= ties - 1, --equal) lanes |= ties & -ties;
      visit(j, lanes);
    }
  }
};

struct TopkSelector {
  static constexpr int kRanks = -1;
  static constexpr bool kMasks = false;

  struct Packed {
    std::int64_t* k;

    Packed(const LayerSizes&, Arena* arena) { k = arena->Allocate<std::int64_t>(1); }
  };

  struct Scratch {
    std::int32_t* neurons;
    LaneBits* lanes;

    Scratch(const LayerSizes& sizes, std::int64_t, Arena* arena) {
      neurons = AllocateList(sizes.hidden, arena);
      lanes = AllocateLanes(sizes.hidden, arena);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    *to.k = ReadCount(from.rule[0][0], sizes.hidden);
  }

  // The number of neurons, from 1 to H, from the rule's parameter.
  static std::int64_t ReadCount(float k, std::int64_t hidden) {
    const float most = static_cast<float>(hidden);
    return k >= most ? hidden : k >= 1.0f ? static_cast<std::int64_t>(k) : 1;
  }

  static void Project(const LayerSizes&, const Packed&, const float*, std::int64_t,
                      const Scratch&) {}

  // The number of neurons, which does not depend on the scores.
  static ActiveSet Select(const LayerSizes&, const Packed& packed, const Scratch&, std::int64_t,
                          const float*, const float* const*) {
    return {*packed.k, nullptr, 0};
  }

  static void AdvanceMemory(const LayerSizes&, const Packed&, const Scratch&, const float*,
                            float* const*) {}

  // Overwrites the padding of a sample's scores, which have the length padded H.
  static Scores PadScores(std::int64_t hidden, float* values) {
    for (std::int64_t j = hidden; j < PadToLanes(hidden); ++j) values[j] = __builtin_nanf("");
    return {values, hidden};
  }

  // Selects the neurons with the largest scores.
  [[gnu::noinline]] static void SelectLargest(const LayerSizes& sizes, void* base, float* values,
                                              ActiveSet* active) {
    Arena arena(base);
    const Scratch scratch(sizes, 0, &arena);
    std::int64_t count = 0;
    active->blocks = 0;
    PadScores(sizes.hidden, values)
        .VisitLargest(active->count, [&](std::int64_t j, LaneBits lanes) {
          scratch.lanes[j / kLanes] = lanes;
          active->blocks += lanes != 0;
          count += AppendLanes(lanes, static_cast<std::int32_t>(j), scratch.neurons + count);
        });
    active->neurons = scratch.neurons;
    active->lanes = scratch.lanes;
  }

  // Writes u (H,), 1 for the neurons with the largest scores and 0 for the others, for training.
  static void WriteMask(const float* const* params, std::int64_t hidden, float* values, float* u) {
    const std::int64_t k = ReadCount(params[0][0], hidden);
    PadScores(hidden, values).VisitLargest(k, [&](std::int64_t j, LaneBits lanes) {
      for (int lane = 0; lane < kLanes && j + lane < hidden; ++lane) {
        u[j + lane] = (lanes >> lane & 1u) != 0 ? 1.0f : 0.0f;
      }
    });
  }
};

template <>
struct SelectorOf<Topk> {
  using Type = TopkSelector;
};

}  // namespace edgernn::EDGERNN_ISA
