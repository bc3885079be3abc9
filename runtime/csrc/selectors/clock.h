// SPDX-License-Identifier: Apache-2.0
// Selectors of rules that depend on the step t only. Their memory is t.

#pragma once

#include "selectors/neuron_selector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace edgernn::EDGERNN_ISA {

// A selector from a type Rule with a struct Packed and Select(sizes, packed, scratch, t).
template <class Rule>
struct ClockSelector : Rule {
  using Packed = typename Rule::Packed;

  struct Scratch {
    float* u;      // (padded H,): above 0 for active neurons
    float* blend;  // (padded H,)
    std::int32_t* neurons;
    LaneBits* lanes;
    float* t;           // the step of `active`
    ActiveSet* active;  // the last selection; it has neither neurons nor lanes before the first one

    Scratch(const LayerSizes& sizes, std::int64_t, Arena* arena) {
      u = arena->Allocate<float>(PadToLanes(sizes.hidden));
      blend = arena->Allocate<float>(PadToLanes(sizes.hidden));
      neurons = AllocateList(sizes.hidden, arena);
      lanes = AllocateLanes(sizes.hidden, arena);
      t = arena->Allocate<float>(1);
      active = arena->Allocate<ActiveSet>(1);
    }
  };

  static void Project(const LayerSizes&, const Packed&, const float*, std::int64_t,
                      const Scratch&) {}

  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          std::int64_t, const float*, const float* const* memory) {
    // the samples of a batch are usually at the same step
    const float t = *memory[0];
    const ActiveSet& last = *scratch.active;
    if ((last.neurons == nullptr && last.lanes == nullptr) || *scratch.t != t) {
      *scratch.active = Rule::Select(sizes, packed, scratch, t);
      *scratch.t = t;
    }
    return *scratch.active;
  }

  static void AdvanceMemory(const LayerSizes&, const Packed&, const Scratch&, const float*,
                            float* const* memory) {
    *memory[0] += 1.0f;
  }
};

// Vectors with half the number of lanes, for 64-bit elements.
struct Vec64 {
  static constexpr int kCount = kLanes / 2;
  typedef float Floats __attribute__((vector_size(kCount * 4), aligned(4), may_alias));
  typedef std::int32_t Ints __attribute__((vector_size(kCount * 4), aligned(4), may_alias));
  typedef double Doubles __attribute__((vector_size(kCount * 8)));
  typedef std::uint64_t Longs __attribute__((vector_size(kCount * 8), may_alias));
};

// fmod(t, period), or NaN if |t| is 2^28 periods or more.
[[gnu::always_inline]] inline Vec64::Floats Remainder(Vec64::Floats t, Vec64::Floats period) {
  using Doubles = Vec64::Doubles;
  const Doubles time = __builtin_convertvector(t, Doubles);
  const Doubles divisor = __builtin_convertvector(period, Doubles);
  const Doubles quotient = time / divisor;
  const auto few = (quotient > -0x1p28) & (quotient < 0x1p28);
  const Doubles bounded = few ? quotient : Doubles{};
  // a quotient of floats below 2^28 is never rounded up to an integer, and the product is exact
  const Doubles whole =
      __builtin_convertvector(__builtin_convertvector(bounded, Vec64::Ints), Doubles);
  // 0 times an infinite period is NaN
  const Doubles left = whole == 0.0 ? time : time - whole * divisor;
  const Doubles none = __builtin_nan("") - Doubles{};
  return __builtin_convertvector(few ? left : none, Vec64::Floats);
}

// Computes out_j = Remainder(t, period_j) for a padded `count`.
[[gnu::noinline]] inline void Remainders(float t, const float* periods, std::int64_t count,
                                         float* out) {
  for (std::int64_t j = 0; j < count; j += Vec64::kCount) {
    *reinterpret_cast<Vec64::Floats*>(out + j) =
        Remainder(t - Vec64::Floats{}, *reinterpret_cast<const Vec64::Floats*>(periods + j));
  }
}

// The products of elements below 2^32.
[[gnu::always_inline]] inline Vec64::Longs MultiplyLow(Vec64::Longs a, Vec64::Longs b) {
#if defined(__AVX512F__)
  // the masked intrinsic avoids a warning of GCC 12 in its own header
  return reinterpret_cast<Vec64::Longs>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec64::Longs>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Vec64::Longs>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return a * b;
#endif
}

}  // namespace edgernn::EDGERNN_ISA
