// SPDX-License-Identifier: Apache-2.0
// EINS: m is x, part of it replaced by an estimate from h; four gates see m alone.

#ifndef EDGERNN_CELLS_EINS_H_
#define EDGERNN_CELLS_EINS_H_

#include "gate.h"

namespace edgernn {

struct Eins {
  static constexpr const char* kName = "EINS";
  static constexpr Extent kMidExtent = Extent::kInput;
  static constexpr Gate kGates[] = {
      {"d", kX | kH | kBias | kMid}, {"e", kX | kMid}, {"f", kM}, {"i", kM}, {"o", kM}, {"a", kM}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static V Mid(const V* p, const V*, const V* x) {
    const V d = Sigmoid(p[0]);
    return (1.0f - d) * x[0] + d * p[1];
  }

  template <class V>
  static void Update(const V* p, const V*, V* state) {
    const V c = Sigmoid(p[2]) * state[1] + Sigmoid(p[3]) * p[5];
    state[0] = Sigmoid(p[4]) * Tanh(c);
    state[1] = c;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_EINS_H_
