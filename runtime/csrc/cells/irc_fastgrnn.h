// SPDX-License-Identifier: Apache-2.0
// IRCFastGRNN: the gate sees m, an input with memory in it; the candidate sees x.

#ifndef EDGERNN_CELLS_IRC_FASTGRNN_H_
#define EDGERNN_CELLS_IRC_FASTGRNN_H_

#include "cells/input_residual.h"

namespace edgernn {

struct IrcFastGrnn : InputResidual {
  static constexpr const char* kName = "IRCFastGRNN";
  static constexpr Gate kGates[] = {{"u", kH | kMid}, {"f", kM}, {"a", kX}};
  static constexpr Param kParams[] = {{"alpha", Extent::kInput, Map::kSigmoid},
                                      {"beta", Extent::kOne, Map::kSigmoid}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static constexpr void Update(const V* p, const V* q, V* state) {
    const V f = Sigmoid(p[1]);
    state[0] = f * state[0] + q[1] * (1.0f - f) * p[2];
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IRC_FASTGRNN_H_
