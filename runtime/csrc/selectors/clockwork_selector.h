// SPDX-License-Identifier: Apache-2.0
// The selector of the rule clockwork: selects neurons whose period divides the step. A neuron reads
// from neurons of the same or longer periods.

#pragma once

#include "selectors/clock.h"

namespace edgernn::EDGERNN_ISA {

struct ClockworkRule {
  static constexpr int kRanks = 0;
  static constexpr bool kMasks = false;

  struct Packed {
    float* periods;        // (padded H,)
    std::int32_t* starts;  // (H,): the first neuron that a neuron reads

    Packed(const LayerSizes& sizes, Arena* arena) {
      periods = arena->Allocate<float>(PadToLanes(sizes.hidden));
      starts = arena->Allocate<std::int32_t>(sizes.hidden);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    const Values& periods = from.rule[0];
    PackVector(periods, sizes.hidden, to.periods);
    // skipped columns are a prefix only if the periods are sorted
    bool sorted = periods[0] == periods[0];
    for (std::int64_t j = 1; j < sizes.hidden; ++j) sorted &= periods[j - 1] <= periods[j];
    for (std::int64_t j = 0; j < sizes.hidden; ++j) {
      const bool same = j > 0 && periods[j - 1] == periods[j];
      to.starts[j] = !sorted ? 0 : same ? to.starts[j - 1] : static_cast<std::int32_t>(j);
    }
  }

  template <class Scratch>
  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          float t) {
    Remainders(t, packed.periods, PadToLanes(sizes.hidden), scratch.u);
    for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
      const Vec left = Load(scratch.u + j);
      // in the padding the period is 0, so the remainder is NaN
      Store(scratch.u + j, {left.raw == 0.0f ? Fill(1.0f).raw : Zero().raw});
    }
    ActiveSet active{SelectPositive(scratch.u, sizes.hidden, scratch.neurons), scratch.neurons, 0};
    active.starts = packed.starts;
    for (std::int64_t i = 0; i < active.count; ++i)
      active.unread += packed.starts[active.neurons[i]];
    return active;
  }
};

using ClockworkSelector = ClockSelector<ClockworkRule>;

template <>
struct SelectorOf<Clockwork> {
  using Type = ClockworkSelector;
};

}  // namespace edgernn::EDGERNN_ISA
