// SPDX-License-Identifier: Apache-2.0
// States between the caller's (B, H) and the kernels' rows of padded H.

#ifndef EDGERNN_STATE_H_
#define EDGERNN_STATE_H_

#include "gemm.h"

namespace edgernn::EDGERNN_ISA {

// The padding becomes 0.
inline void ReadState(const float* from, std::int64_t batch, std::int64_t hidden, float* state) {
  std::memset(state, 0, static_cast<std::size_t>(batch * Padded(hidden)) * sizeof(float));
  for (std::int64_t row = 0; row < batch; ++row) {
    std::memcpy(state + row * Padded(hidden), from + row * hidden,
                static_cast<std::size_t>(hidden) * sizeof(float));
  }
}

inline void WriteState(const float* state, std::int64_t batch, std::int64_t hidden, float* to) {
  if (to == nullptr) return;
  for (std::int64_t row = 0; row < batch; ++row) {
    std::memcpy(to + row * hidden, state + row * Padded(hidden),
                static_cast<std::size_t>(hidden) * sizeof(float));
  }
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_STATE_H_
