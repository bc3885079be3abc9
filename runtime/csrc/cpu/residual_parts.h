// SPDX-License-Identifier: Apache-2.0
// The element-wise parts of a residual block around a layer.

#pragma once

#include "cpu/masked_lanes.h"

namespace edgernn::EDGERNN_ISA {

struct ResidualParts {
  // added to the variance, as in edgernn/blocks.py
  static constexpr float kEpsilon = 1e-5f;

  static float SumLanes(Vec a) { return Sum4(a, Zero(), Zero(), Zero())[0]; }

  static void Normalise(const float* u, const float* scale, const float* shift, std::int64_t batch,
                        std::int64_t hidden, float* to) {
    const float count = static_cast<float>(hidden);
    for (std::int64_t b = 0; b < batch; ++b, u += hidden, to += hidden) {
      Vec sum = Zero(), squares = Zero();
      for (std::int64_t i = 0; i < hidden; i += kLanes) {
        sum = sum + Lanes(hidden - i).Load(u + i);
      }
      const float mean = SumLanes(sum) / count;
      for (std::int64_t i = 0; i < hidden; i += kLanes) {
        const Lanes lanes(hidden - i);
        lanes.Store(to + i, lanes.Load(u + i) - Fill(mean));
        // lanes after the end are 0 again
        const Vec centred = lanes.Load(to + i);
        squares = squares + centred * centred;
      }
      const float factor = 1.0f / __builtin_sqrtf(SumLanes(squares) / count + kEpsilon);
      for (std::int64_t i = 0; i < hidden; i += kLanes) {
        const Lanes lanes(hidden - i);
        const Vec normalised = lanes.Load(to + i) * factor;
        lanes.Store(to + i, normalised * lanes.Load(scale + i) + lanes.Load(shift + i));
      }
    }
  }

  static void Add(const float* u, const float* branch, const float* gate, std::int64_t count,
                  float* y) {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const Lanes lanes(count - i);
      Vec added = lanes.Load(branch + i);
      if (gate != nullptr) added = added * Sigmoid(lanes.Load(gate + i));
      lanes.Store(y + i, lanes.Load(u + i) + added);
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
