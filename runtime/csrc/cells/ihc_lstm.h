// SPDX-License-Identifier: Apache-2.0
// IHCLSTM: m mixes x with h projected onto it, as g says; the gates see m, the candidate x.

#ifndef EDGERNN_CELLS_IHC_LSTM_H_
#define EDGERNN_CELLS_IHC_LSTM_H_

#include "cells/lstm.h"

namespace edgernn {

struct IhcLstm {
  static constexpr const char* kName = "IHCLSTM";
  static constexpr Extent kMidExtent = Extent::kInput;
  static constexpr Gate kGates[] = {
      {"g", kX | kH | kBias | kMid}, {"u", kH | kMid}, {"f", kM}, {"i", kM}, {"o", kM}, {"a", kX}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr V Mid(const V* p, const V*, V x, const V*) {
    const V g = Sigmoid(p[0]);
    return (1.0f - g) * x + g * p[1];
  }

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    LstmTail(Sigmoid(p[2]), Sigmoid(p[3]), p[5], Sigmoid(p[4]), state);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IHC_LSTM_H_
