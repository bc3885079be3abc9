// SPDX-License-Identifier: Apache-2.0
// R h of the gates marked kMid, kept from step to step: only the columns of the neurons whose state
// changed are added.
//
// The sums are exact, so they follow from h alone, whatever the states before: a sequence has the
// same bits in one call, in calls of single steps and in any batch, and no error accumulates. For
// that, states are rounded to multiples of 2^-22, and weights to 21 bits and to multiples of a
// power of two, such that every sum of their products fits in the 53 bits of a double.

#pragma once

#include "cpu/gate_group.h"
#include "kernel/selector.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace edgernn::EDGERNN_ISA {

// Sums are exact as long as all states are below this magnitude.
constexpr float kLargestState = 4.0f;

// A vector of doubles, half as many as a vector of floats has.
constexpr int kHalfLanes = kLanes / 2;
typedef double Doubles __attribute__((vector_size(kLanes * 4)));
typedef std::uint64_t DoubleBits __attribute__((vector_size(kLanes * 4)));

[[gnu::always_inline]] inline Doubles LoadDoubles(const double* from) {
  Doubles a;
  std::memcpy(&a, from, sizeof a);
  return a;
}

[[gnu::always_inline]] inline void StoreDoubles(double* to, Doubles a) {
  std::memcpy(to, &a, sizeof a);
}

typedef float HalfFloats __attribute__((vector_size(kHalfLanes * 4)));

// Compilers split __builtin_convertvector of the widest registers.
[[gnu::always_inline]] inline HalfFloats ToHalf(Doubles a) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtpd_ps(0xff, a);
#elif defined(__AVX__)
  return _mm256_cvtpd_ps(a);
#else
  return __builtin_convertvector(a, HalfFloats);
#endif
}

// The doubles of both halves as floats.
template <std::size_t... kLane>
[[gnu::always_inline]] inline Vec JoinFloats(Doubles first, Doubles second,
                                             std::index_sequence<kLane...>) {
  return {__builtin_shufflevector(ToHalf(first), ToHalf(second), static_cast<int>(kLane)...)};
}

[[gnu::always_inline]] inline Vec ToFloats(Doubles first, Doubles second) {
  return JoinFloats(first, second, std::make_index_sequence<kLanes>());
}

// Rounds to a multiple of `unit`, a power of two. |a| must be below 2^51 units.
[[gnu::always_inline]] inline double RoundTo(double unit, double a) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  return (a + kShift * unit) - kShift * unit;
}

[[gnu::always_inline]] inline double RoundState(float a) { return RoundTo(0x1p-22, a); }

// True if R h of the kernel's gates marked kMid may be kept.
inline bool MayKeepSums(const Kernel& kernel, const LayerSizes& sizes) {
  return !kernel.selector->masks && !kernel.decays && sizes.weights == NumberType::kFloat32 &&
         sizes.rank == 0 && kernel.cell->first_stage.h.count > 0;
}

// The recurrent weights of the gates marked kMid, by columns, as upper halves of doubles. Layout:
// [chunk of vectors][column][vector][lane] for the vectors (blocks, gates) of a column. Lanes of
// the first and the second half of a vector take turns, so that a vector of words is two of
// doubles.
struct KeptWeights {
  static constexpr std::int64_t kChunk = 4;

  std::int64_t vectors;
  std::int64_t columns;
  std::uint32_t* words;
  bool* exact;  // false if there are no words: R is block-sparse, or a weight is not finite

  void Allocate(const PackedMatrix& from, bool present, Arena* arena) {
    vectors = present ? Blocks(from.size) * from.gates : 0;
    columns = from.depth;
    words = arena->Allocate<std::uint32_t>(vectors * columns * kLanes);
    exact = arena->Allocate<bool>(1);
  }

  // Packs R of a group with float32 weights.
  [[gnu::noinline, gnu::cold]] void Pack(const GroupWeights& group) const {
    const PackedMatrix& from = group.r;
    *exact = false;
    if (vectors == 0 || group.sparse.stats->sparse) return;
    double largest = 0.0;
    for (std::int64_t v = 0; v < vectors; ++v) {
      for (int lane = 0; lane < kLanes; ++lane) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < columns; ++k) {
          const double weight = Read(from, v, k, lane);
          sum += weight < 0.0 ? -weight : weight;
        }
        if (!(sum >= 0.0)) return;
        if (sum > largest) largest = sum;
      }
    }
    // the power of two from half of `largest` to `largest`
    constexpr std::uint64_t kExponent = std::uint64_t{0x7ff} << 52;
    std::uint64_t bits;
    std::memcpy(&bits, &largest, sizeof bits);
    bits &= kExponent;
    if (bits == kExponent) return;
    double power;
    std::memcpy(&power, &bits, sizeof power);
    // a row has up to 2^28 units, times 2^24 of a state, and less than as much again by rounding
    const double unit = power * 0x1p-27;
    for (std::int64_t v = 0; v < vectors; ++v) {
      for (std::int64_t k = 0; k < columns; ++k) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const double weight = RoundTo(unit, Read(from, v, k, lane));
          std::uint64_t half;
          std::memcpy(&half, &weight, sizeof half);
          // to nearest; may carry into the exponent
          half += std::uint64_t{1} << 31;
          const int place = lane % kHalfLanes * 2 + lane / kHalfLanes;
          words[Offset(v, k) + place] = static_cast<std::uint32_t>(half >> 32);
        }
      }
    }
    *exact = true;
  }

  // Adds `count` columns, times their factors, to sums (vectors, 2, half lanes).
  [[gnu::noinline]] void AddColumns(const std::int32_t* list, const double* factors,
                                    std::int64_t count, double* sums) const {
    constexpr decltype(&AddChunk<1>) kBySize[kChunk] = {&AddChunk<1>, &AddChunk<2>, &AddChunk<3>,
                                                        &AddChunk<4>};
    for (std::int64_t first = 0; first < vectors; first += kChunk) {
      const std::int64_t left = vectors - first;
      const auto add = kBySize[(left < kChunk ? left : kChunk) - 1];
      add(words + first * columns * kLanes, list, factors, count, sums + first * kLanes);
    }
  }

 private:
  // The weight of one neuron and gate, for column k.
  static float Read(const PackedMatrix& from, std::int64_t vector, std::int64_t k, int lane) {
    const std::int64_t block = vector / from.gates, gate = vector % from.gates;
    const Panel panel(from.largest_panel, block, Blocks(from.size));
    const float* const w = static_cast<const float*>(from.w);
    return w[PackedOffset(panel, block, k, from.gates, from.depth) + gate * kLanes + lane];
  }

  // The offset of a vector of column k.
  std::int64_t Offset(std::int64_t vector, std::int64_t k) const {
    const std::int64_t first = vector & -kChunk, left = vectors - first;
    const std::int64_t size = left < kChunk ? left : kChunk;
    return (first * columns + k * size + vector - first) * kLanes;
  }

  template <int kVectors>
  [[gnu::noinline]] static void AddChunk(const std::uint32_t* words, const std::int32_t* list,
                                         const double* factors, std::int64_t count, double* sums) {
    Doubles first[kVectors], second[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      first[v] = LoadDoubles(sums + v * kLanes);
      second[v] = LoadDoubles(sums + v * kLanes + kHalfLanes);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t* const column = words + std::int64_t{list[i]} * (kVectors * kLanes);
      const Doubles factor = factors[i] - Doubles{};
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        DoubleBits pair;
        std::memcpy(&pair, column + v * kLanes, sizeof pair);
        const DoubleBits lower = pair << 32, upper = pair & std::uint64_t{0xffffffff00000000};
        first[v] += reinterpret_cast<Doubles>(lower) * factor;
        second[v] += reinterpret_cast<Doubles>(upper) * factor;
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      StoreDoubles(sums + v * kLanes, first[v]);
      StoreDoubles(sums + v * kLanes + kHalfLanes, second[v]);
    }
  }
};

// The sums of one sample, and the states that they were computed from. Zeros are valid.
struct KeptSums {
  float* h;      // (padded H,)
  double* sums;  // (blocks of M, gates with h, lanes)

  // Makes the sums those of the states `now`. Returns the number of neurons that changed, or -1,
  // and changes nothing, if a state is too large or NaN. The lists are scratch.
  [[gnu::noinline]] std::int64_t Update(const KeptWeights& weights, const float* now,
                                        std::int32_t* changed, double* factors) const {
    LaneBits in_range = kAllLanes;
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < weights.columns; j += kLanes) {
      const Vec a = Load(now + j), b = Load(h + j);
      in_range &= PositiveLanes(kLargestState * kLargestState - a * a);
      const LaneBits lanes = PositiveLanes(a - b) | PositiveLanes(b - a);
      count += AppendLanes(lanes, static_cast<std::int32_t>(j), changed + count);
    }
    if (in_range != kAllLanes) return -1;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t j = changed[i];
      factors[i] = RoundState(now[j]) - RoundState(h[j]);
      h[j] = now[j];
    }
    if (count > 0) weights.AddColumns(changed, factors, count, sums);
    return count;
  }

  // Adds the sums to the pre-activations (blocks, gates, lanes) of the group, which have bias and
  // W x for the gates with x.
  [[gnu::noinline]] void AddTo(const GroupWeights& weights, float* pre_activations) const {
    const GateGroup& group = *weights.group;
    const std::int64_t stride = group.all.count * kLanes;
    for (int i = 0; i < group.h.count; ++i) {
      const std::int64_t place = group.h.at[i] * kLanes;
      bool started = false;
      for (int k = 0; k < group.x.count; ++k) started |= group.x.at[k] == group.h.at[i];
      const double* from = sums + i * kLanes;
      const float* start = (started ? pre_activations : weights.b) + place;
      float* to = pre_activations + place;
      for (std::int64_t block = 0; block < weights.blocks(); ++block) {
        Store(to, Load(start) + ToFloats(LoadDoubles(from), LoadDoubles(from + kHalfLanes)));
        from += group.h.count * kLanes;
        start += stride;
        to += stride;
      }
    }
  }
};

// The sums of B samples.
struct KeptMemory {
  float* h;
  double* sums;
  std::int64_t h_floats = 0;
  std::int64_t sum_count = 0;
  std::uint64_t bytes;

  KeptMemory(const Kernel& kernel, const LayerSizes& sizes, std::int64_t batch, void* base) {
    if (MayKeepSums(kernel, sizes)) {
      h_floats = PadToLanes(sizes.hidden);
      sum_count = PadToLanes(MidSize(*kernel.cell, sizes)) * kernel.cell->first_stage.h.count;
    }
    Arena arena(base);
    h = arena.Allocate<float>(batch * h_floats);
    sums = arena.Allocate<double>(batch * sum_count);
    bytes = arena.used();
  }

  KeptSums At(std::int64_t sample) const {
    return {h + sample * h_floats, sums + sample * sum_count};
  }
};

}  // namespace edgernn::EDGERNN_ISA
