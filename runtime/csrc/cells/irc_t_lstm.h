// SPDX-License-Identifier: Apache-2.0
// IRCTLSTM: the gates see m, an input with memory in it; a projected one where I is not H.

#ifndef EDGERNN_CELLS_IRC_T_LSTM_H_
#define EDGERNN_CELLS_IRC_T_LSTM_H_

#include "cells/input_residual.h"
#include "cells/t_lstm.h"

namespace edgernn {

struct IrcTLstm : DiagonalInputResidual {
  static constexpr const char* kName = "IRCTLSTM";
  static constexpr Gate kGates[] = {{"f", kM}, {"o", kM}, {"a", kX}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    TLstmTail(Sigmoid(p[0]), p[2], Sigmoid(p[1]), state);
  }
};

struct IrcTLstmProjected : InputResidual {
  static constexpr const char* kName = "IRCTLSTMProjected";
  static constexpr Gate kGates[] = {{"u", kH | kMid}, {"f", kM}, {"o", kM}, {"a", kX}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    TLstmTail(Sigmoid(p[1]), p[3], Sigmoid(p[2]), state);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IRC_T_LSTM_H_
