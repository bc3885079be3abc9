// SPDX-License-Identifier: Apache-2.0
// Dual numbers: a value with its partial derivatives. The equations of a cell are templates over
// the vector type, so evaluating them on dual numbers gives their point-wise Jacobian.

#pragma once

#include "cpu/simd.h"

namespace edgernn::EDGERNN_ISA {

// The value and its derivatives by K inputs. After inlining, `dependencies` is a compile-time
// constant, so derivatives that are zero cost nothing.
template <int K>
struct Dual {
  Vec value;
  unsigned dependencies = 0;  // bit k: depends on input k
  Vec d[K];                   // derivative by input k; valid where bit k is set

  [[gnu::always_inline]] bool DependsOn(int k) const { return (dependencies >> k & 1) != 0; }
};

// A constant: no derivatives.
template <int K>
[[gnu::always_inline]] inline Dual<K> Constant(Vec a) {
  Dual<K> result;
  result.value = a;
  return result;
}

// Input k of a function, with the value a.
template <int K>
[[gnu::always_inline]] inline Dual<K> Input(Vec a, int k) {
  Dual<K> result = Constant<K>(a);
  result.dependencies = 1u << k;
  result.d[k] = Fill(1.0f);
  return result;
}

// Chain rule: the function value `value` of a and b, with the derivatives da and db by them.
template <int K>
[[gnu::always_inline]] inline Dual<K> Chain(Vec value, const Dual<K>& a, Vec da, const Dual<K>& b,
                                            Vec db) {
  Dual<K> result = Constant<K>(value);
  result.dependencies = a.dependencies | b.dependencies;
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) {
    if (a.DependsOn(k) && b.DependsOn(k)) {
      result.d[k] = a.d[k] * da + b.d[k] * db;
    } else if (a.DependsOn(k)) {
      result.d[k] = a.d[k] * da;
    } else if (b.DependsOn(k)) {
      result.d[k] = b.d[k] * db;
    }
  }
  return result;
}

template <int K>
[[gnu::always_inline]] inline Dual<K> Chain(Vec value, const Dual<K>& a, Vec da) {
  return Chain(value, a, da, Constant<K>(Zero()), Zero());
}

// The sum `value` = a + b or a - b, up to a constant.
template <int K>
[[gnu::always_inline]] inline Dual<K> Sum(Vec value, const Dual<K>& a, const Dual<K>& b,
                                          bool minus) {
  Dual<K> result = Constant<K>(value);
  result.dependencies = a.dependencies | b.dependencies;
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) {
    if (a.DependsOn(k) && b.DependsOn(k)) {
      result.d[k] = minus ? a.d[k] - b.d[k] : a.d[k] + b.d[k];
    } else if (a.DependsOn(k)) {
      result.d[k] = a.d[k];
    } else if (b.DependsOn(k)) {
      result.d[k] = minus ? 0.0f - b.d[k] : b.d[k];
    }
  }
  return result;
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator+(const Dual<K>& a, const Dual<K>& b) {
  return Sum(a.value + b.value, a, b, false);
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator-(const Dual<K>& a, const Dual<K>& b) {
  return Sum(a.value - b.value, a, b, true);
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator*(const Dual<K>& a, const Dual<K>& b) {
  return Chain(a.value * b.value, a, b.value, b, a.value);
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator+(const Dual<K>& a, float b) {
  return Sum(a.value + b, a, Constant<K>(Zero()), false);
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator-(float a, const Dual<K>& b) {
  return Sum(a - b.value, Constant<K>(Zero()), b, true);
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator/(float a, const Dual<K>& b) {
  const Vec value = a / b.value;
  return Chain(value, b, 0.0f - value / b.value);
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator-(const Dual<K>& a, float b) {
  return Sum(a.value - b, a, Constant<K>(Zero()), true);
}

template <int K>
[[gnu::always_inline]] inline Dual<K> operator*(const Dual<K>& a, float b) {
  return Chain(a.value * b, a, Fill(b));
}

// For ties the derivative is 1/2 by each operand, as in torch.
template <int K>
[[gnu::always_inline]] inline Dual<K> Min(const Dual<K>& a, const Dual<K>& b) {
  const Vec::Raw one = Fill(1.0f).raw, half = Fill(0.5f).raw, x = a.value.raw, y = b.value.raw;
  const Vec::Raw a_slope = y < x ? Vec::Raw{} : y == x ? half : one;
  return Chain(Min(a.value, b.value), a, Vec{a_slope}, b, Vec{one - a_slope});
}

template <int K>
[[gnu::always_inline]] inline Dual<K> Clamp(const Dual<K>& a, float low, float high) {
  const Vec::Raw inside =
      (a.value.raw >= low) & (a.value.raw <= high) ? Fill(1.0f).raw : Vec::Raw{};
  return Chain(Clamp(a.value, low, high), a, Vec{inside});
}

template <int K>
[[gnu::always_inline]] inline Dual<K> Sigmoid(const Dual<K>& a) {
  const Vec value = Sigmoid(a.value);
  return Chain(value, a, value * (1.0f - value));
}

template <int K>
[[gnu::always_inline]] inline Dual<K> Tanh(const Dual<K>& a) {
  const Vec value = Tanh(a.value);
  return Chain(value, a, 1.0f - value * value);
}

// Cosine of the angle clamped to [0, pi / 2]; the derivative is 0 outside.
template <int K>
[[gnu::always_inline]] inline Dual<K> Cos(const Dual<K>& a) {
  constexpr float kEnd = 1.57079632679489662f;
  const Vec sine = Cos(kEnd - a.value);
  const Vec::Raw slope = a.value.raw > kEnd ? Vec::Raw{} : (0.0f - sine).raw;
  return Chain(Cos(a.value), a, Vec{slope});
}

}  // namespace edgernn::EDGERNN_ISA
