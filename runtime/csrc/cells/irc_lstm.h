// SPDX-License-Identifier: Apache-2.0
// IRCLSTM: the gates see m, an input with memory in it; the candidate sees x.

#ifndef EDGERNN_CELLS_IRC_LSTM_H_
#define EDGERNN_CELLS_IRC_LSTM_H_

#include "cells/input_residual.h"
#include "cells/lstm.h"

namespace edgernn {

struct IrcLstm : InputResidual {
  static constexpr const char* kName = "IRCLSTM";
  static constexpr Gate kGates[] = {{"u", kH | kMid}, {"f", kM}, {"i", kM}, {"o", kM}, {"a", kX}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    LstmTail(Sigmoid(p[1]), Sigmoid(p[2]), p[4], Sigmoid(p[3]), state);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IRC_LSTM_H_
