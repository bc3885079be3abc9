// SPDX-License-Identifier: Apache-2.0
// IRCGRU: the gates see m, an input with memory in it; the candidate sees x.

#ifndef EDGERNN_CELLS_IRC_GRU_H_
#define EDGERNN_CELLS_IRC_GRU_H_

#include "cells/input_residual.h"

namespace edgernn {

struct IrcGru : InputResidual {
  static constexpr const char* kName = "IRCGRU";
  static constexpr Gate kGates[] = {{"u", kH | kMid}, {"i", kM}, {"r", kM}, {"a", kX}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    const V i = Sigmoid(p[1]);
    const V r = Sigmoid(p[2]);
    state[0] = (1.0f - i) * state[0] + i * (r * p[3]);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IRC_GRU_H_
