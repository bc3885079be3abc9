// SPDX-License-Identifier: Apache-2.0
// LSTM with a forget gate and without peepholes.

#ifndef EDGERNN_CELLS_LSTM_H_
#define EDGERNN_CELLS_LSTM_H_

#include "gate.h"

namespace edgernn {

struct Lstm {
  static constexpr const char* kName = "LSTM";
  static constexpr Gate kGates[] = {{"i", kX | kH | kBias},
                                    {"f", kX | kH | kBias},
                                    {"g", kX | kH | kBias},
                                    {"o", kX | kH | kBias}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static void Update(const V* p, const V*, V* state) {
    const V i = Sigmoid(p[0]);
    const V f = Sigmoid(p[1]);
    const V g = Tanh(p[2]);
    const V o = Sigmoid(p[3]);
    const V c = f * state[1] + i * g;
    state[0] = o * Tanh(c);
    state[1] = c;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_LSTM_H_
