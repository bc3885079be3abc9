// SPDX-License-Identifier: Apache-2.0
// FastGRNN whose gate and candidate have products of their own.

#ifndef EDGERNN_CELLS_FASTGRNN_SPLIT_H_
#define EDGERNN_CELLS_FASTGRNN_SPLIT_H_

#include "gate.h"

namespace edgernn {

struct FastGrnnSplit {
  static constexpr const char* kName = "FastGRNNSplit";
  static constexpr Gate kGates[] = {{"z", kX | kH | kBias}, {"n", kX | kH | kBias}};
  static constexpr Param kParams[] = {{"zeta", Extent::kOne, Map::kSigmoid},
                                      {"nu", Extent::kOne, Map::kSigmoid}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static constexpr void Update(const V* p, const V* q, V* state) {
    const V z = Sigmoid(p[0]);
    const V n = Tanh(p[1]);
    state[0] = z * state[0] + (q[0] * (1.0f - z) + q[1]) * n;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_FASTGRNN_SPLIT_H_
