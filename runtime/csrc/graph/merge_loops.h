// SPDX-License-Identifier: Apache-2.0
// Merges the loops of a step, so that it has fewer and longer ones.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/step.h"

namespace edgernn {

// A loop over several operands.
struct SharedLoop {
  std::int64_t count;
  std::vector<std::int64_t> strides;
};

// Leaves out loops that run once, and merges neighbouring loops that step evenly through all
// operands.
inline std::vector<SharedLoop> Merge(const std::vector<SharedLoop>& loops) {
  std::vector<SharedLoop> merged;
  for (const SharedLoop& loop : loops) {
    if (loop.count == 1) continue;
    bool even = !merged.empty();
    for (std::size_t i = 0; even && i < loop.strides.size(); ++i) {
      even = merged.back().strides[i] == loop.count * loop.strides[i];
    }
    if (even) {
      merged.back() = {merged.back().count * loop.count, loop.strides};
    } else {
      merged.push_back(loop);
    }
  }
  return merged;
}

inline std::vector<CopyLoop> MergeCopies(const std::vector<CopyLoop>& loops) {
  std::vector<SharedLoop> shared;
  for (const CopyLoop& loop : loops) shared.push_back({loop.count, {loop.from, loop.to}});
  std::vector<CopyLoop> merged;
  for (const SharedLoop& loop : Merge(shared)) {
    merged.push_back({loop.count, loop.strides[0], loop.strides[1]});
  }
  return merged;
}

}  // namespace edgernn
