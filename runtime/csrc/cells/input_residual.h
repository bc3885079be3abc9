// SPDX-License-Identifier: Apache-2.0
// Input residual connections: m is x plus a share of what h gives.

#ifndef EDGERNN_CELLS_INPUT_RESIDUAL_H_
#define EDGERNN_CELLS_INPUT_RESIDUAL_H_

#include "gate.h"

namespace edgernn {

// With h projected onto x by the gate u, the first one.
struct InputResidual {
  static constexpr Extent kMidExtent = Extent::kInput;
  static constexpr Param kParams[] = {{"alpha", Extent::kInput, Map::kSigmoid}};

  template <class V>
  static constexpr V Mid(const V* p, const V* q, V x, const V*) {
    return x + q[0] * p[0];
  }
};

// With h itself, element by element, so that I must be H.
struct DiagonalInputResidual {
  static constexpr bool kSquare = true;
  static constexpr Extent kMidExtent = Extent::kInput;
  static constexpr Param kParams[] = {{"alpha", Extent::kInput, Map::kSigmoid},
                                      {"omega", Extent::kHidden, Map::kTanh}};

  template <class V>
  static constexpr V Mid(const V*, const V* q, V x, const V* state) {
    return x + q[0] * (q[1] * state[0]);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_INPUT_RESIDUAL_H_
