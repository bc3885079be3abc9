// SPDX-License-Identifier: Apache-2.0
// Masked loads and stores of the first lanes of a vector.

#pragma once

#include "cpu/simd.h"

// all functions of this header are inlined, so no code of another instruction set is linked
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace edgernn::EDGERNN_ISA {

// Loads and stores the first min(count, kLanes) lanes; loads 0 into the others and does not store
// them.
class Lanes {
 public:
#if defined(__AVX512F__)
  [[gnu::always_inline]] explicit Lanes(std::int64_t count)
      : mask_(count >= kLanes ? 0xffff : (1u << count) - 1) {}

  [[gnu::always_inline]] Vec Load(const float* from) const {
    return {_mm512_maskz_loadu_ps(mask_, from)};
  }

  [[gnu::always_inline]] void Store(float* to, Vec a) const {
    _mm512_mask_storeu_ps(to, mask_, a.raw);
  }

 private:
  __mmask16 mask_;
#elif defined(__AVX__)
  [[gnu::always_inline]] explicit Lanes(std::int64_t count) : whole_(count >= kLanes) {
    const std::int32_t end = whole_ ? kLanes : static_cast<std::int32_t>(count);
    mask_ = Vec::Bits{0, 1, 2, 3, 4, 5, 6, 7} < end - Vec::Bits{};
  }

  [[gnu::always_inline]] Vec Load(const float* from) const {
    return {_mm256_maskload_ps(from, reinterpret_cast<__m256i>(mask_))};
  }

  // On some processors a masked store takes ten times as long as a full one.
  [[gnu::always_inline]] void Store(float* to, Vec a) const {
    if (whole_) return edgernn::EDGERNN_ISA::Store(to, a);
    _mm256_maskstore_ps(to, reinterpret_cast<__m256i>(mask_), a.raw);
  }

 private:
  bool whole_;
  Vec::Bits mask_;
#else
  explicit Lanes(std::int64_t count) : count_(count) {}

  Vec Load(const float* from) const {
    if (count_ >= kLanes) return edgernn::EDGERNN_ISA::Load(from);
    Vec result = Zero();
    for (int lane = 0; lane < count_; ++lane) result.raw[lane] = from[lane];
    return result;
  }

  void Store(float* to, Vec a) const {
    if (count_ >= kLanes) return edgernn::EDGERNN_ISA::Store(to, a);
    for (int lane = 0; lane < count_; ++lane) to[lane] = a.raw[lane];
  }

 private:
  std::int64_t count_;
#endif
};

}  // namespace edgernn::EDGERNN_ISA
