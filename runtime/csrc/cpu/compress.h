// SPDX-License-Identifier: Apache-2.0
// Stream compaction: lists the indices of the positive lanes of a vector.

#ifndef EDGERNN_CPU_COMPRESS_H_
#define EDGERNN_CPU_COMPRESS_H_

#include "cpu/simd.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace edgernn::EDGERNN_ISA {

// Writes first + lane for every lane of v above zero, in ascending order, and returns their number.
// A NaN is not above zero. May overwrite up to kLanes entries of `list`.
[[gnu::always_inline]] inline int AppendPositive(Vec v, std::int32_t first, std::int32_t* list) {
#if defined(__AVX512F__)
  const __mmask16 mask = _mm512_cmp_ps_mask(v.raw, _mm512_setzero_ps(), _CMP_GT_OQ);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
  _mm512_storeu_si512(list, _mm512_maskz_compress_epi32(mask, numbers));
  return __builtin_popcount(mask);
#elif defined(__SSE2__)
#if defined(__AVX__)
  int mask = _mm256_movemask_ps(_mm256_cmp_ps(v.raw, _mm256_setzero_ps(), _CMP_GT_OQ));
#else
  int mask = _mm_movemask_ps(_mm_cmpgt_ps(v.raw, _mm_setzero_ps()));
#endif
  int count = 0;
  for (; mask != 0; mask &= mask - 1) list[count++] = first + __builtin_ctz(mask);
  return count;
#else
  int count = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    list[count] = first + lane;
    count += v.raw[lane] > 0.0f ? 1 : 0;
  }
  return count;
#endif
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_CPU_COMPRESS_H_
