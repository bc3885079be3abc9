// SPDX-License-Identifier: Apache-2.0
// Dual numbers: a value and its partial derivatives, so that the equations of a cell, which are
// written once for any vector type, give its point-wise Jacobian too.

#ifndef EDGERNN_TRAIN_DUAL_H_
#define EDGERNN_TRAIN_DUAL_H_

#include "vec.h"

namespace edgernn::EDGERNN_ISA {

// Which derivatives there are is known to the compiler once all calls are inlined, so that those
// that are zero cost nothing.
template <int K>
struct Dual {
  Vec value;
  unsigned along = 0;  // bit k: depends on input k
  Vec d[K];            // the derivative by input k, where bit k is set

  [[gnu::always_inline]] bool DependsOn(int k) const { return (along >> k & 1) != 0; }
};

// The constant a.
template <int K>
[[gnu::always_inline]] inline Dual<K> Constant(Vec a) {
  Dual<K> made;
  made.value = a;
  return made;
}

// Input k of a function, at a.
template <int K>
[[gnu::always_inline]] inline Dual<K> Input(Vec a, int k) {
  Dual<K> made = Constant<K>(a);
  made.along = 1u << k;
  made.d[k] = Fill(1.0f);
  return made;
}

// `value`, a function of a and b whose derivatives by them are da and db.
template <int K>
[[gnu::always_inline]] inline Dual<K> Chain(Vec value, const Dual<K>& a, Vec da, const Dual<K>& b,
                                            Vec db) {
  Dual<K> made = Constant<K>(value);
  made.along = a.along | b.along;
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) {
    if (a.DependsOn(k) && b.DependsOn(k)) {
      made.d[k] = a.d[k] * da + b.d[k] * db;
    } else if (a.DependsOn(k)) {
      made.d[k] = a.d[k] * da;
    } else if (b.DependsOn(k)) {
      made.d[k] = b.d[k] * db;
    }
  }
  return made;
}

template <int K>
[[gnu::always_inline]] inline Dual<K> Chain(Vec value, const Dual<K>& a, Vec da) {
  return Chain(value, a, da, Constant<K>(Zero()), Zero());
}

// `value`, which is a + b or a - b but for a constant.
template <int K>
[[gnu::always_inline]] inline Dual<K> Sum(Vec value, const Dual<K>& a, const Dual<K>& b,
                                          bool minus) {
  Dual<K> made = Constant<K>(value);
  made.along = a.along | b.along;
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) {
    if (a.DependsOn(k) && b.DependsOn(k)) {
      made.d[k] = minus ? a.d[k] - b.d[k] : a.d[k] + b.d[k];
    } else if (a.DependsOn(k)) {
      made.d[k] = a.d[k];
    } else if (b.DependsOn(k)) {
      made.d[k] = minus ? 0.0f - b.d[k] : b.d[k];
    }
  }
  return made;
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
[[gnu::always_inline]] inline Dual<K> Sigmoid(const Dual<K>& a) {
  const Vec value = Sigmoid(a.value);
  return Chain(value, a, value * (1.0f - value));
}

template <int K>
[[gnu::always_inline]] inline Dual<K> Tanh(const Dual<K>& a) {
  const Vec value = Tanh(a.value);
  return Chain(value, a, 1.0f - value * value);
}

// Of the angle brought between 0 and pi / 2: beyond them the derivative is 0.
template <int K>
[[gnu::always_inline]] inline Dual<K> Cos(const Dual<K>& a) {
  constexpr float kEnd = 1.57079632679489662f;
  const Vec sine = Cos(kEnd - a.value);
  const Vec::Raw slope = a.value.raw > kEnd ? Vec::Raw{} : (0.0f - sine).raw;
  return Chain(Cos(a.value), a, Vec{slope});
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_DUAL_H_
