// SPDX-License-Identifier: Apache-2.0
// A single number, in place of the vectors of vec.h: what cells calculate with on a GPU.

#ifndef EDGERNN_CUDA_VALUE_H_
#define EDGERNN_CUDA_VALUE_H_

#include <cmath>

#include "cuda/device.h"
#include "gate.h"

namespace edgernn::cuda {

struct Value {
  float raw;
};

EDGERNN_BOTH Value operator+(Value a, Value b) { return {a.raw + b.raw}; }
EDGERNN_BOTH Value operator-(Value a, Value b) { return {a.raw - b.raw}; }
EDGERNN_BOTH Value operator*(Value a, Value b) { return {a.raw * b.raw}; }
EDGERNN_BOTH Value operator/(Value a, Value b) { return {a.raw / b.raw}; }
EDGERNN_BOTH Value operator+(Value a, float b) { return {a.raw + b}; }
EDGERNN_BOTH Value operator-(Value a, float b) { return {a.raw - b}; }
EDGERNN_BOTH Value operator*(Value a, float b) { return {a.raw * b}; }
EDGERNN_BOTH Value operator-(float a, Value b) { return {a - b.raw}; }
EDGERNN_BOTH Value operator/(float a, Value b) { return {a / b.raw}; }

EDGERNN_BOTH Value Sigmoid(Value a) { return {1.0f / (1.0f + expf(-a.raw))}; }
EDGERNN_BOTH Value Tanh(Value a) { return {tanhf(a.raw)}; }

// The cosine of `a` brought between 0 and pi / 2, never below 0; NaN stays NaN.
EDGERNN_BOTH Value Cos(Value a) {
  constexpr float kEnd = 1.57079632679489662f;
  const float angle = a.raw < 0.0f ? 0.0f : a.raw;
  return {angle > kEnd ? 0.0f : cosf(angle)};
}

EDGERNN_BOTH float Apply(Map map, float a) {
  if (map == Map::kSigmoid) return Sigmoid(Value{a}).raw;
  return map == Map::kTanh ? Tanh(Value{a}).raw : a;
}

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_VALUE_H_
