// SPDX-License-Identifier: Apache-2.0
// Rules that depend on the step t alone, which is their memory.

#ifndef EDGERNN_RULES_CLOCK_H_
#define EDGERNN_RULES_CLOCK_H_

#include "rules/neuron_selector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace edgernn::EDGERNN_ISA {

// `Rule` has Packed and Select(sizes, packed, scratch, t).
template <class Rule>
struct ClockSelector : Rule {
  using Packed = typename Rule::Packed;

  struct Scratch {
    float* open;   // (padded H,): above 0 where a neuron changes
    float* blend;  // (padded H,)
    std::int32_t* neurons;
    float* t;           // of the selection
    ActiveSet* active;  // without neurons: none yet

    Scratch(const LayerSizes& sizes, std::int64_t, Arena* arena) {
      open = arena->Allocate<float>(PadToLanes(sizes.hidden));
      blend = arena->Allocate<float>(PadToLanes(sizes.hidden));
      neurons = AllocateList(sizes.hidden, arena);
      t = arena->Allocate<float>(1);
      active = arena->Allocate<ActiveSet>(1);
    }
  };

  static void Project(const LayerSizes&, const Packed&, const float*, std::int64_t,
                      const Scratch&) {}

  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          std::int64_t, const float*, const float* const* memory) {
    // the samples of a batch are mostly at the same step
    const float t = *memory[0];
    if (scratch.active->neurons == nullptr || *scratch.t != t) {
      *scratch.active = Rule::Select(sizes, packed, scratch, t);
      *scratch.t = t;
    }
    return *scratch.active;
  }

  static void Remember(const LayerSizes&, const Packed&, const Scratch&, const float*,
                       float* const* memory) {
    *memory[0] += 1.0f;
  }
};

// Vectors of half as many lanes, for numbers of 64 bits.
struct Wide {
  static constexpr int kCount = kLanes / 2;
  typedef float Floats __attribute__((vector_size(kCount * 4), aligned(4), may_alias));
  typedef std::int32_t Ints __attribute__((vector_size(kCount * 4), aligned(4), may_alias));
  typedef double Doubles __attribute__((vector_size(kCount * 8)));
  typedef std::uint64_t Longs __attribute__((vector_size(kCount * 8), may_alias));
};

// fmod(t, period); NaN where that is 2^28 periods or more.
[[gnu::always_inline]] inline Wide::Floats Remainder(Wide::Floats t, Wide::Floats period) {
  using Doubles = Wide::Doubles;
  const Doubles time = __builtin_convertvector(t, Doubles);
  const Doubles divisor = __builtin_convertvector(period, Doubles);
  const Doubles quotient = time / divisor;
  const auto few = (quotient > -0x1p28) & (quotient < 0x1p28);
  const Doubles bounded = few ? quotient : Doubles{};
  // a quotient of floats below 2^28 is never rounded up to a whole, and the product is exact
  const Doubles whole =
      __builtin_convertvector(__builtin_convertvector(bounded, Wide::Ints), Doubles);
  // an infinite period has no product
  const Doubles left = whole == 0.0 ? time : time - whole * divisor;
  const Doubles none = __builtin_nan("") - Doubles{};
  return __builtin_convertvector(few ? left : none, Wide::Floats);
}

// out_j = Remainder(t, period_j); `count` is padded.
[[gnu::noinline]] inline void Remainders(float t, const float* periods, std::int64_t count,
                                         float* out) {
  for (std::int64_t j = 0; j < count; j += Wide::kCount) {
    *reinterpret_cast<Wide::Floats*>(out + j) =
        Remainder(t - Wide::Floats{}, *reinterpret_cast<const Wide::Floats*>(periods + j));
  }
}

// The product of numbers below 2^32.
[[gnu::always_inline]] inline Wide::Longs Times(Wide::Longs a, Wide::Longs b) {
#if defined(__AVX512F__)
  // masked, as GCC 12 warns of its own header for the plain one
  return reinterpret_cast<Wide::Longs>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Wide::Longs>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Wide::Longs>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return a * b;
#endif
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_RULES_CLOCK_H_
