// SPDX-License-Identifier: Apache-2.0
// GRU with the reset gate after the recurrent product.

#ifndef EDGERNN_CELLS_GRU_H_
#define EDGERNN_CELLS_GRU_H_

#include "gate.h"

namespace edgernn {

struct Gru {
  static constexpr const char* kName = "GRU";
  static constexpr Gate kGates[] = {
      {"r", kX | kH | kBias}, {"z", kX | kH | kBias}, {"n", kX | kBias}, {"k", kH | kBias}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    const V h = state[0];
    const V r = Sigmoid(p[0]);
    const V z = Sigmoid(p[1]);
    const V n = Tanh(p[2] + r * p[3]);
    state[0] = (1.0f - z) * n + z * h;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_GRU_H_
