// SPDX-License-Identifier: Apache-2.0
// GRU with the reset gate before the recurrent product; z weighs the new value.

#ifndef EDGERNN_CELLS_GRU_BEFORE_H_
#define EDGERNN_CELLS_GRU_BEFORE_H_

#include "gate.h"

namespace edgernn {

struct GruBefore {
  static constexpr const char* kName = "GRUBefore";
  static constexpr bool kMidVanishes = true;
  static constexpr Gate kGates[] = {
      {"r", kX | kH | kBias | kMid}, {"z", kX | kH | kBias}, {"n", kX | kM | kBias}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static constexpr V Mid(const V* p, const V*, V, const V* state) {
    const V h = state[0];
    const V r = Sigmoid(p[0]);
    return r * h;
  }

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    const V h = state[0];
    const V z = Sigmoid(p[1]);
    const V n = Tanh(p[2]);
    state[0] = (1.0f - z) * h + z * n;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_GRU_BEFORE_H_
