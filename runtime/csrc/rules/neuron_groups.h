// SPDX-License-Identifier: Apache-2.0
// Groups of neighbouring neurons that share a decision; the last group may have fewer neurons.

#ifndef EDGERNN_RULES_NEURON_GROUPS_H_
#define EDGERNN_RULES_NEURON_GROUPS_H_

#include "rules/make_selector.h"

namespace edgernn::EDGERNN_ISA {

// The sum of `count` floats.
[[gnu::always_inline]] inline float SumOf(const float* from, std::int64_t count) {
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += from[i];
  return sum;
}

// Computes the mean of h (H,) over each group.
[[gnu::noinline]] inline void AverageGroups(const float* h, std::int64_t hidden,
                                            std::int64_t group_size, float* means) {
  const float share = 1.0f / static_cast<float>(group_size);
  const std::int64_t whole = hidden / group_size;
  std::int64_t group = 0;
  if (group_size % kLanes == 0) {
    const std::int64_t vectors = group_size / kLanes;
    for (; group + 4 <= whole; group += 4) {
      const float* from = h + group * group_size;
      Vec sum[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sum[i] = Load(from + i * group_size);
        for (std::int64_t k = 1; k < vectors; ++k) {
          sum[i] = sum[i] + Load(from + i * group_size + k * kLanes);
        }
      }
      const Quad four = Sum4(sum[0], sum[1], sum[2], sum[3]) * share;
      *reinterpret_cast<LooseQuad*>(means + group) = four;
    }
  }
  for (; group < whole; ++group) means[group] = SumOf(h + group * group_size, group_size) * share;
  const std::int64_t left = hidden - whole * group_size;
  if (left > 0) means[whole] = SumOf(h + whole * group_size, left) / static_cast<float>(left);
}

// Sets the bits of all neurons from those of their groups.
[[gnu::noinline]] inline void SpreadGroups(const LaneBits* groups, std::int64_t hidden,
                                           std::int64_t group_size, LaneBits* lanes) {
  const std::int64_t blocks = Blocks(hidden);
  if (group_size % kLanes == 0) {
    std::int64_t block = 0;
    for (std::int64_t group = 0; block < blocks; ++group) {
      const LaneBits bits = (groups[group / kLanes] >> group % kLanes & 1) != 0 ? kAllLanes : 0;
      for (std::int64_t k = 0; k < group_size / kLanes && block < blocks; ++k)
        lanes[block++] = bits;
    }
    return;
  }
  for (std::int64_t block = 0; block < blocks; ++block) lanes[block] = 0;
  for (std::int64_t group = 0, first = 0; first < hidden; ++group, first += group_size) {
    if ((groups[group / kLanes] >> group % kLanes & 1) == 0) continue;
    const std::int64_t end = first + group_size < hidden ? first + group_size : hidden;
    for (std::int64_t from = first; from < end;) {
      const std::int64_t lane = from % kLanes, left = kLanes - lane;
      const std::int64_t count = end - from < left ? end - from : left;
      lanes[from / kLanes] |= (kAllLanes >> (kLanes - count)) << lane;
      from += count;
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_RULES_NEURON_GROUPS_H_
