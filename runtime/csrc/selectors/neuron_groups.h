// SPDX-License-Identifier: Apache-2.0
// Groups of neighbouring neurons that share a decision; the last group may have fewer neurons.

#pragma once

#include "cpu/group_rows.h"
#include "cpu/make_selector.h"

namespace edgernn::EDGERNN_ISA {

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
