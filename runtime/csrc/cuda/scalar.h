// SPDX-License-Identifier: Apache-2.0
// The value type of cells' equations on a GPU: one float, in place of the vectors of cpu/simd.h.

#pragma once

#include <cmath>

#include "cells/gate.h"
#include "cuda/device.h"

namespace edgernn::cuda {

struct Scalar {
  float raw;
};

EDGERNN_BOTH Scalar operator+(Scalar a, Scalar b) { return {a.raw + b.raw}; }
EDGERNN_BOTH Scalar operator-(Scalar a, Scalar b) { return {a.raw - b.raw}; }
EDGERNN_BOTH Scalar operator*(Scalar a, Scalar b) { return {a.raw * b.raw}; }
EDGERNN_BOTH Scalar operator/(Scalar a, Scalar b) { return {a.raw / b.raw}; }
EDGERNN_BOTH Scalar operator+(Scalar a, float b) { return {a.raw + b}; }
EDGERNN_BOTH Scalar operator-(Scalar a, float b) { return {a.raw - b}; }
EDGERNN_BOTH Scalar operator*(Scalar a, float b) { return {a.raw * b}; }
EDGERNN_BOTH Scalar operator-(float a, Scalar b) { return {a - b.raw}; }
EDGERNN_BOTH Scalar operator/(float a, Scalar b) { return {a / b.raw}; }

// The minimum; a if either is NaN.
EDGERNN_BOTH Scalar Min(Scalar a, Scalar b) { return b.raw < a.raw ? b : a; }

EDGERNN_BOTH Scalar Sigmoid(Scalar a) { return {1.0f / (1.0f + expf(-a.raw))}; }
EDGERNN_BOTH Scalar Tanh(Scalar a) { return {tanhf(a.raw)}; }

// The cosine of `a` clamped to [0, pi / 2], never below 0; propagates NaN.
EDGERNN_BOTH Scalar Cos(Scalar a) {
  constexpr float kEnd = 1.57079632679489662f;
  const float angle = a.raw < 0.0f ? 0.0f : a.raw;
  return {angle > kEnd ? 0.0f : cosf(angle)};
}

EDGERNN_BOTH float Apply(Map map, float a) {
  if (map == Map::kSigmoid) return Sigmoid(Scalar{a}).raw;
  return map == Map::kTanh ? Tanh(Scalar{a}).raw : a;
}

}  // namespace edgernn::cuda
