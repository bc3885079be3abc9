// SPDX-License-Identifier: Apache-2.0
// IRCSRU: an SRU whose gates see m, an input with memory in it; a projected one where I is not H.

#ifndef EDGERNN_CELLS_IRC_SRU_H_
#define EDGERNN_CELLS_IRC_SRU_H_

#include "cells/input_residual.h"
#include "cells/sru.h"

namespace edgernn {

struct IrcSru : DiagonalInputResidual {
  static constexpr const char* kName = "IRCSRU";
  static constexpr Gate kGates[] = {{"f", kM}, {"p", kM}, {"a", kX}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    const V x = p[3];
    SruTail(Sigmoid(p[0]), Sigmoid(p[1]), p[2], x, state);
  }
};

struct IrcSruProjected : InputResidual {
  static constexpr const char* kName = "IRCSRUProjected";
  static constexpr Gate kGates[] = {{"u", kH | kMid}, {"f", kM}, {"p", kM}, {"a", kX}, {"s", kX}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    SruTail(Sigmoid(p[1]), Sigmoid(p[2]), p[3], p[4], state);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IRC_SRU_H_
