// SPDX-License-Identifier: Apache-2.0
// FastGRNN: gate and candidate share one product and differ in their biases.

#ifndef EDGERNN_CELLS_FASTGRNN_H_
#define EDGERNN_CELLS_FASTGRNN_H_

#include "gate.h"

namespace edgernn {

struct FastGrnn {
  static constexpr const char* kName = "FastGRNN";
  static constexpr Gate kGates[] = {{"p", kX | kH}};
  static constexpr Param kParams[] = {{"b_z", Extent::kHidden, Map::kIdentity},
                                      {"b_n", Extent::kHidden, Map::kIdentity},
                                      {"zeta", Extent::kOne, Map::kSigmoid},
                                      {"nu", Extent::kOne, Map::kSigmoid}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static constexpr void Update(const V* p, const V* q, V* state) {
    const V z = Sigmoid(p[0] + q[0]);
    const V n = Tanh(p[0] + q[1]);
    state[0] = z * state[0] + (q[2] * (1.0f - z) + q[3]) * n;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_FASTGRNN_H_
