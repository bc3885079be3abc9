// SPDX-License-Identifier: Apache-2.0
// Lanes of a vector as bits, and lists of their indices.

#ifndef EDGERNN_CPU_COMPRESS_H_
#define EDGERNN_CPU_COMPRESS_H_

#include "cpu/simd.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace edgernn::EDGERNN_ISA {

// A set of lanes: bit i stands for lane i.
using LaneBits = std::uint32_t;
constexpr LaneBits kAllLanes = (LaneBits{1} << kLanes) - 1;

// The lanes of v above zero. A NaN is not above zero.
[[gnu::always_inline]] inline LaneBits PositiveLanes(Vec v) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(v.raw, _mm512_setzero_ps(), _CMP_GT_OQ);
#elif defined(__AVX__)
  return static_cast<LaneBits>(
      _mm256_movemask_ps(_mm256_cmp_ps(v.raw, _mm256_setzero_ps(), _CMP_GT_OQ)));
#elif defined(__SSE2__)
  return static_cast<LaneBits>(_mm_movemask_ps(_mm_cmpgt_ps(v.raw, _mm_setzero_ps())));
#elif defined(__wasm_simd128__)
  return static_cast<LaneBits>(__builtin_wasm_bitmask_i32x4(v.raw > 0.0f));
#else
  LaneBits lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) lanes |= (v.raw[lane] > 0.0f ? 1u : 0u) << lane;
  return lanes;
#endif
}

// Stores these lanes of v; reads and writes a whole vector.
[[gnu::always_inline]] inline void StoreLanes(float* to, Vec v, LaneBits lanes) {
  Vec::Bits bit, set = Vec::Bits{} + static_cast<std::int32_t>(lanes);
  for (int lane = 0; lane < kLanes; ++lane) bit[lane] = 1 << lane;
  Store(to, {(set & bit) != 0 ? v.raw : Load(to).raw});
}

// Writes first + lane for each of the lanes, in ascending order, and returns their number. May
// overwrite up to kLanes entries of `list`.
[[gnu::always_inline]] inline int AppendLanes(LaneBits lanes, std::int32_t first,
                                              std::int32_t* list) {
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>(lanes);
  const __m512i each = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i numbers = _mm512_add_epi32(each, _mm512_set1_epi32(first));
  _mm512_storeu_si512(list, _mm512_maskz_compress_epi32(mask, numbers));
  return __builtin_popcount(lanes);
#else
  int count = 0;
  for (; lanes != 0; lanes &= lanes - 1) list[count++] = first + __builtin_ctz(lanes);
  return count;
#endif
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_CPU_COMPRESS_H_
