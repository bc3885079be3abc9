// SPDX-License-Identifier: Apache-2.0
// SRU: no gate multiplies h, and memory acts element by element; x, or where I is not H a
// projection of it, goes past the gates.

#ifndef EDGERNN_CELLS_SRU_H_
#define EDGERNN_CELLS_SRU_H_

#include "gate.h"

namespace edgernn {

// How the gates of an SRU make c and h; s goes past them.
template <class V>
[[gnu::always_inline]] constexpr void SruTail(V f, V p, V a, V s, V* state) {
  const V c = f * state[1] + (1.0f - f) * a;
  state[0] = p * c + (1.0f - p) * s;
  state[1] = c;
}

struct SruUpdate {
  static constexpr Param kParams[] = {{"w_f", Extent::kHidden, Map::kIdentity},
                                      {"w_p", Extent::kHidden, Map::kIdentity}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr void Update(const V* p, const V* q, V* state) {
    // after the gates f, p and a comes x or the gate s
    const V f = Sigmoid(p[0] + q[0] * state[1]);
    const V highway = Sigmoid(p[1] + q[1] * state[1]);
    SruTail(f, highway, p[2], p[3], state);
  }
};

struct Sru : SruUpdate {
  static constexpr const char* kName = "SRU";
  static constexpr bool kSquare = true;
  static constexpr Gate kGates[] = {{"f", kX | kBias}, {"p", kX | kBias}, {"a", kX}};
};

struct SruProjected : SruUpdate {
  static constexpr const char* kName = "SRUProjected";
  static constexpr Gate kGates[] = {{"f", kX | kBias}, {"p", kX | kBias}, {"a", kX}, {"s", kX}};
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_SRU_H_
