// SPDX-License-Identifier: Apache-2.0
// Lanes of a vector as bits, and lists of their indices.

#pragma once

#include "cpu/simd.h"

namespace edgernn::EDGERNN_ISA {

// A set of lanes: bit i stands for lane i.
using LaneBits = std::uint32_t;
constexpr LaneBits kAllLanes = (LaneBits{1} << kLanes) - 1;

// The lanes of v above those of `limit`. A NaN is not above any number.
[[gnu::always_inline]] inline LaneBits LanesAbove(Vec v, Vec limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(v.raw, limit.raw, _CMP_GT_OQ);
#elif defined(__AVX__)
  return static_cast<LaneBits>(_mm256_movemask_ps(_mm256_cmp_ps(v.raw, limit.raw, _CMP_GT_OQ)));
#elif defined(__SSE2__)
  return static_cast<LaneBits>(_mm_movemask_ps(_mm_cmpgt_ps(v.raw, limit.raw)));
#elif defined(__wasm_simd128__)
  return static_cast<LaneBits>(__builtin_wasm_bitmask_i32x4(v.raw > limit.raw));
#else
  LaneBits lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes |= (v.raw[lane] > limit.raw[lane] ? 1u : 0u) << lane;
  }
  return lanes;
#endif
}

// The lanes of v above zero.
[[gnu::always_inline]] inline LaneBits PositiveLanes(Vec v) { return LanesAbove(v, Zero()); }

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

// True if the functions below take one instruction per block. Else a list of indices is faster.
#if defined(__AVX512F__)
constexpr bool kCompresses = true;
#else
constexpr bool kCompresses = false;
#endif

// Writes the values of `from` (blocks, lanes), whose blocks are `stride` apart, at the lanes with
// bits, one after the other. May overwrite kLanes entries after them.
[[gnu::always_inline]] inline void CompressLanes(const float* from, std::int64_t stride,
                                                 const LaneBits* lanes, std::int64_t blocks,
                                                 float* to) {
  for (std::int64_t block = 0; block < blocks; ++block, from += stride) {
#if defined(__AVX512F__)
    const auto mask = static_cast<__mmask16>(lanes[block]);
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(mask, Load(from).raw));
    to += __builtin_popcount(lanes[block]);
#else
    for (LaneBits left = lanes[block]; left != 0; left &= left - 1) {
      *to++ = from[__builtin_ctz(left)];
    }
#endif
  }
}

// Writes values, stored one after the other, to the lanes with bits of `to` (blocks, lanes). May
// read kLanes entries after them.
[[gnu::always_inline]] inline void ExpandLanes(const float* from, const LaneBits* lanes,
                                               std::int64_t blocks, float* to) {
  for (std::int64_t block = 0; block < blocks; ++block, to += kLanes) {
#if defined(__AVX512F__)
    const auto mask = static_cast<__mmask16>(lanes[block]);
    _mm512_storeu_ps(to, _mm512_mask_expand_ps(Load(to).raw, mask, _mm512_loadu_ps(from)));
    from += __builtin_popcount(lanes[block]);
#else
    for (LaneBits left = lanes[block]; left != 0; left &= left - 1) {
      to[__builtin_ctz(left)] = *from++;
    }
#endif
  }
}

}  // namespace edgernn::EDGERNN_ISA
