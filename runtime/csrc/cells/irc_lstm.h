// SPDX-License-Identifier: Apache-2.0
// IRCLSTM: m is x plus a share of h projected onto it; the gates see m, the candidate x.

#ifndef EDGERNN_CELLS_IRC_LSTM_H_
#define EDGERNN_CELLS_IRC_LSTM_H_

#include "gate.h"

namespace edgernn {

struct IrcLstm {
  static constexpr const char* kName = "IRCLSTM";
  static constexpr Extent kMidExtent = Extent::kInput;
  static constexpr Gate kGates[] = {{"u", kH | kMid}, {"f", kM}, {"i", kM}, {"o", kM}, {"a", kX}};
  static constexpr Param kParams[] = {{"alpha", Extent::kInput, Map::kSigmoid}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static V Mid(const V* p, const V* q, const V* x) {
    return x[0] + q[0] * p[0];
  }

  template <class V>
  static void Update(const V* p, const V*, V* state) {
    const V c = Sigmoid(p[1]) * state[1] + Sigmoid(p[2]) * p[4];
    state[0] = Sigmoid(p[3]) * Tanh(c);
    state[1] = c;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IRC_LSTM_H_
