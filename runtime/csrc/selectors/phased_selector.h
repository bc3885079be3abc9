// SPDX-License-Identifier: Apache-2.0
// The selector of the rule phased: selects neurons in the open phase at the start of their period.
// The time gate rises and falls linearly during that phase.

#pragma once

#include "selectors/clock.h"

namespace edgernn::EDGERNN_ISA {

struct PhasedRule {
  static constexpr int kRanks = -1;
  static constexpr bool kMasks = false;

  struct Packed {
    float* periods;  // (padded H,)
    float* shifts;   // (padded H,), modulo the period
    float* open;     // (1,), the open fraction of a period

    Packed(const LayerSizes& sizes, Arena* arena) {
      periods = arena->Allocate<float>(PadToLanes(sizes.hidden));
      shifts = arena->Allocate<float>(PadToLanes(sizes.hidden));
      open = arena->Allocate<float>(1);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    PackVector(from.rule[0], sizes.hidden, to.periods);
    PackVector(from.rule[1], sizes.hidden, to.shifts);
    for (std::int64_t j = 0; j < sizes.hidden; j += Vec64::kCount) {
      auto* shifts = reinterpret_cast<Vec64::Floats*>(to.shifts + j);
      *shifts = Remainder(*shifts, *reinterpret_cast<const Vec64::Floats*>(to.periods + j));
    }
    *to.open = from.rule[2][0];
  }

  template <class Scratch>
  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          float t) {
    const float open = *packed.open;
    Remainders(t, packed.periods, PadToLanes(sizes.hidden), scratch.u);
    for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
      // in the padding the period is 0, which gives NaN
      const Vec turns = (Load(scratch.u + j) + Load(packed.shifts + j)) / Load(packed.periods + j);
      const Vec phase = turns - Floor(turns);
      const Vec rising = phase * 2.0f / Fill(open), falling = 2.0f - rising;
      const Vec::Raw gate = rising.raw < falling.raw ? rising.raw : falling.raw;
      Store(scratch.u + j, {phase.raw < open ? gate : Zero().raw});
    }
    ActiveSet active{SelectPositive(scratch.u, sizes.hidden, scratch.neurons), scratch.neurons, 0};
    for (std::int64_t i = 0; i < active.count; ++i) {
      scratch.blend[i] = scratch.u[active.neurons[i]];
    }
    active.blend = scratch.blend;
    return active;
  }

 private:
  // floor(a) for |a| < 4. Other values give 0, so that a - Floor(a) keeps NaN.
  [[gnu::always_inline]] static Vec Floor(Vec a) {
    const auto few = (a.raw > -4.0f) & (a.raw < 4.0f);
    const Vec::Raw bounded = few ? a.raw : Zero().raw;
    const Vec::Raw whole =
        __builtin_convertvector(__builtin_convertvector(bounded, Vec::Bits), Vec::Raw);
    return {whole > a.raw ? whole - 1.0f : whole};
  }
};

using PhasedSelector = ClockSelector<PhasedRule>;

template <>
struct SelectorOf<Phased> {
  using Type = PhasedSelector;
};

}  // namespace edgernn::EDGERNN_ISA
