// SPDX-License-Identifier: Apache-2.0
// TLSTM: the gates see the last two inputs and no memory.

#ifndef EDGERNN_CELLS_T_LSTM_H_
#define EDGERNN_CELLS_T_LSTM_H_

#include "gate.h"

namespace edgernn {

// How the gates of a strongly-typed LSTM make c and h.
template <class V>
[[gnu::always_inline]] constexpr void TLstmTail(V f, V a, V o, V* state) {
  const V c = f * state[1] + (1.0f - f) * a;
  state[0] = o * c;
  state[1] = c;
}

struct TLstm {
  static constexpr const char* kName = "TLSTM";
  static constexpr bool kReadsLast = true;
  static constexpr Gate kGates[] = {{"f", kX | kBias}, {"o", kX | kBias}, {"a", kX | kBias}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    TLstmTail(Sigmoid(p[0]), p[2], Sigmoid(p[1]), state);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_T_LSTM_H_
