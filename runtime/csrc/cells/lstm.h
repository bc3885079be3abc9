// SPDX-License-Identifier: Apache-2.0
// LSTM with a forget gate, without peepholes and with full ones.

#ifndef EDGERNN_CELLS_LSTM_H_
#define EDGERNN_CELLS_LSTM_H_

#include "gate.h"

namespace edgernn {

// How the gates of an LSTM, and of what is built like one, make c and h.
template <class V>
[[gnu::always_inline]] constexpr void LstmTail(V f, V i, V a, V o, V* state) {
  const V c = f * state[1] + i * a;
  state[0] = o * Tanh(c);
  state[1] = c;
}

struct LstmUpdate {
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    const V i = Sigmoid(p[0]);
    const V f = Sigmoid(p[1]);
    const V g = Tanh(p[2]);
    const V o = Sigmoid(p[3]);
    LstmTail(f, i, g, o, state);
  }
};

struct Lstm : LstmUpdate {
  static constexpr const char* kName = "LSTM";
  static constexpr Gate kGates[] = {{"i", kX | kH | kBias},
                                    {"f", kX | kH | kBias},
                                    {"g", kX | kH | kBias},
                                    {"o", kX | kH | kBias}};
};

struct LstmPeephole : LstmUpdate {
  static constexpr const char* kName = "LSTMPeephole";
  static constexpr Gate kGates[] = {{"i", kX | kH | kC | kBias},
                                    {"f", kX | kH | kC | kBias},
                                    {"g", kX | kH | kBias},
                                    {"o", kX | kH | kC | kBias}};
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_LSTM_H_
