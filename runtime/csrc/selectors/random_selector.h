// SPDX-License-Identifier: Apache-2.0
// The selector of the rule random: selects neurons for which a hash of step, neuron and seed is
// below a limit.

#pragma once

#include "selectors/clock.h"

namespace edgernn::EDGERNN_ISA {

struct RandomRule {
  static constexpr int kRanks = -1;
  static constexpr bool kMasks = false;
  static constexpr std::uint64_t kPrime = 0x7fffffff;  // M = 2^31 - 1

  struct Packed {
    std::uint64_t* starts;  // (padded H,): (104729 j + 15485863 seed) mod M
    std::uint64_t* limit;   // (1,): neurons with a hash below it are active

    Packed(const LayerSizes& sizes, Arena* arena) {
      starts = arena->Allocate<std::uint64_t>(PadToLanes(sizes.hidden));
      limit = arena->Allocate<std::uint64_t>(1);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    *to.limit = CountBelow(from.rule[0][0] * static_cast<float>(kPrime));
    const std::int64_t seed = ToWhole(from.rule[1][0]);
    for (std::int64_t j = 0; j < PadToLanes(sizes.hidden); ++j) {
      to.starts[j] = Modulo(j * 104729 + seed * 15485863);
    }
  }

  template <class Scratch>
  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          float t) {
    const Longs start = Modulo(ToWhole(t) * 7919) + Longs{}, limit = *packed.limit + Longs{};
    for (std::int64_t j = 0; j < PadToLanes(sizes.hidden); j += Vec64::kCount) {
      Longs k = Fold(start + *reinterpret_cast<const Longs*>(packed.starts + j));
      k = Scramble(Scramble(k));
      // 1.0f where k < limit, else 0
      const Vec64::Ints below = __builtin_convertvector(k < limit, Vec64::Ints);
      *reinterpret_cast<Vec64::Ints*>(scratch.u + j) = below & 0x3f800000;
    }
    for (std::int64_t k = 0; k < Blocks(sizes.hidden); ++k) {
      scratch.lanes[k] = PositiveLanes(Load(scratch.u + k * kLanes));
    }
    return MakeActiveSet(sizes.hidden, scratch.lanes, 0);
  }

 private:
  using Longs = Vec64::Longs;

  // The number of integers from 0 to M - 1 that are below the limit when rounded to float.
  static std::uint64_t CountBelow(float limit) {
    std::uint64_t low = 0, high = kPrime;
    while (low < high) {
      const std::uint64_t middle = (low + high) / 2;
      if (static_cast<float>(middle) < limit) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Converts to int64; NaN and out-of-range values give 0.
  static std::int64_t ToWhole(float a) {
    return a > -0x1p38f && a < 0x1p38f ? static_cast<std::int64_t>(a) : 0;
  }

  // a mod M, from 0 to M - 1.
  static std::uint64_t Modulo(std::int64_t a) {
    const std::int64_t left = a % static_cast<std::int64_t>(kPrime);
    return static_cast<std::uint64_t>(left < 0 ? left + static_cast<std::int64_t>(kPrime) : left);
  }

  // a mod M for a < M (M + 1), by 2^31 mod M = 1.
  [[gnu::always_inline]] static Longs Fold(Longs a) {
    const Longs sum = (a & kPrime) + (a >> 31);
    return sum < kPrime ? sum : sum - kPrime;
  }

  // (k^5 + 12345) mod M
  [[gnu::always_inline]] static Longs Scramble(Longs k) {
    const Longs square = Fold(MultiplyLow(k, k));
    return Fold(MultiplyLow(Fold(MultiplyLow(square, square)), k) + 12345);
  }
};

using RandomSelector = ClockSelector<RandomRule>;

template <>
struct SelectorOf<Random> {
  using Type = RandomSelector;
};

}  // namespace edgernn::EDGERNN_ISA
