// SPDX-License-Identifier: Apache-2.0
// IRCGRU: m is x plus a share of h projected onto it; the gates see m, the candidate x.

#ifndef EDGERNN_CELLS_IRC_GRU_H_
#define EDGERNN_CELLS_IRC_GRU_H_

#include "gate.h"

namespace edgernn {

struct IrcGru {
  static constexpr const char* kName = "IRCGRU";
  static constexpr Extent kMidExtent = Extent::kInput;
  static constexpr Gate kGates[] = {{"u", kH | kMid}, {"i", kM}, {"r", kM}, {"a", kX}};
  static constexpr Param kParams[] = {{"alpha", Extent::kInput, Map::kSigmoid}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static V Mid(const V* p, const V* q, const V* x) {
    return x[0] + q[0] * p[0];
  }

  template <class V>
  static void Update(const V* p, const V*, V* state) {
    const V i = Sigmoid(p[1]);
    const V r = Sigmoid(p[2]);
    state[0] = (1.0f - i) * state[0] + i * (r * p[3]);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_IRC_GRU_H_
