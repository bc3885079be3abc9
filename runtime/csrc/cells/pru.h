// SPDX-License-Identifier: Apache-2.0
// PRU: one candidate and one gate that weighs the old state.

#ifndef EDGERNN_CELLS_PRU_H_
#define EDGERNN_CELLS_PRU_H_

#include "gate.h"

namespace edgernn {

struct Pru {
  static constexpr const char* kName = "PRU";
  static constexpr Gate kGates[] = {{"u", kX | kH | kBias}, {"c", kX | kH | kBias}};
  static constexpr const char* kStates[] = {"s"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    const V s = state[0];
    const V u = Tanh(p[0]);
    const V c = Sigmoid(p[1]);
    state[0] = c * s + (1.0f - c) * u;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_PRU_H_
