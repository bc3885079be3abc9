// SPDX-License-Identifier: Apache-2.0
// Sizes of a cell's gates that the layout of packed weights follows from.

#pragma once

#include "cuda/launch_plan.h"
#include "kernel/kernel.h"

namespace edgernn::cuda {

inline int ToInt(std::int64_t value) { return static_cast<int>(value); }

inline std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The depth (number of columns) of each term of a gate.
struct Depths {
  std::int64_t x;  // for each part: x_t, and x_{t-1} if the cell reads it
  int parts;
  std::int64_t h;
  std::int64_t c;
  std::int64_t m;
};

inline Depths MakeDepths(const CellTable& cell, const LayerSizes& sizes, const LaunchPlan& plan) {
  return {sizes.input, cell.reads_last ? 2 : 1, sizes.rank > 0 ? sizes.rank : sizes.hidden,
          sizes.hidden, plan.middle};
}

// The first row of a gate in W, R, C, V or b, which stack the gates with any bit of `term`.
inline std::int64_t FirstRow(const CellTable& cell, const LaunchPlan& plan, unsigned term,
                             int gate) {
  std::int64_t row = 0;
  for (int g = 0; g < gate; ++g) {
    if ((cell.terms[g] & term) == 0) continue;
    row += (cell.terms[g] & kMid) != 0 ? plan.middle : plan.hidden;
  }
  return row;
}

}  // namespace edgernn::cuda
