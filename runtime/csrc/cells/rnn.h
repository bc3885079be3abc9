// SPDX-License-Identifier: Apache-2.0
// The plain recurrent network: one gate, which is the new state.

#ifndef EDGERNN_CELLS_RNN_H_
#define EDGERNN_CELLS_RNN_H_

#include "gate.h"

namespace edgernn {

struct Rnn {
  static constexpr const char* kName = "RNN";
  static constexpr Gate kGates[] = {{"n", kX | kH | kBias}};
  static constexpr const char* kStates[] = {"h"};

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    state[0] = Tanh(p[0]);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_CELLS_RNN_H_
