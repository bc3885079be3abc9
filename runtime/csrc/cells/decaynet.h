// SPDX-License-Identifier: Apache-2.0
// DecayNet: an LSTM whose forget gate is the cosine of an angle that is made to grow.

#ifndef EDGERNN_CELLS_DECAYNET_H_
#define EDGERNN_CELLS_DECAYNET_H_

#include "cells/lstm.h"

namespace edgernn {

struct DecayNet {
  static constexpr const char* kName = "DecayNet";
  static constexpr Gate kGates[] = {
      {"i", kX | kH | kBias}, {"f", kX | kH}, {"g", kX | kH | kBias}, {"o", kX | kH | kBias}};
  static constexpr Param kParams[] = {{"length", Extent::kOne, Map::kLength}};
  static constexpr const char* kStates[] = {"h", "c", "decay"};

  template <class V>
  static constexpr void Update(const V* p, const V* q, V* state) {
    constexpr float kTwelfth = 0.261799387799149436f;  // of pi
    const V i = Sigmoid(p[0]);
    const V decay = state[2] + kTwelfth / q[0] * (p[1] + 3.0f);
    const V f = Cos(decay);
    const V g = Tanh(p[2]);
    const V o = Sigmoid(p[3]);
    LstmTail(f, i, g, o, state);
    state[2] = decay;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_DECAYNET_H_
