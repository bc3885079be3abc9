// SPDX-License-Identifier: Apache-2.0
// A vector of floats with the width of this instruction set's registers, and its functions.
//
// This header and those that include it are compiled once per instruction set, each in its own
// namespace. They must not call inline functions of other namespaces, including std: the linker
// keeps one copy of those, which may use instructions that the processor lacks.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace edgernn::EDGERNN_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
#else
constexpr int kLanes = 4;
constexpr int kRegisters = 16;
#endif

struct Vec {
  typedef float Raw __attribute__((vector_size(kLanes * 4)));
  typedef float Loose __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
  typedef std::int32_t Bits __attribute__((vector_size(kLanes * 4)));
  Raw raw;
};

typedef float Quad __attribute__((vector_size(16)));
typedef float LooseQuad __attribute__((vector_size(16), aligned(4), may_alias));

[[gnu::always_inline]] inline Vec operator+(Vec a, Vec b) { return {a.raw + b.raw}; }
[[gnu::always_inline]] inline Vec operator-(Vec a, Vec b) { return {a.raw - b.raw}; }
#if defined(__wasm_relaxed_simd__)
// A product whose sum with another vector is one instruction, which may round once or twice: clang
// does not contract products and sums of this instruction set itself.
struct VecProduct {
  Vec::Raw a, b;
  [[gnu::always_inline]] operator Vec() const { return {a * b}; }
};

[[gnu::always_inline]] inline VecProduct operator*(Vec a, Vec b) { return {a.raw, b.raw}; }
[[gnu::always_inline]] inline VecProduct operator*(Vec a, float b) {
  return {a.raw, b - Vec::Raw{}};
}
[[gnu::always_inline]] inline Vec operator+(VecProduct p, Vec c) {
  return {__builtin_wasm_relaxed_madd_f32x4(p.a, p.b, c.raw)};
}
[[gnu::always_inline]] inline Vec operator+(Vec c, VecProduct p) { return p + c; }
[[gnu::always_inline]] inline Vec operator+(VecProduct p, float c) {
  return p + Vec{c - Vec::Raw{}};
}
[[gnu::always_inline]] inline Vec operator+(VecProduct p, VecProduct c) { return p + Vec(c); }
[[gnu::always_inline]] inline Vec operator-(Vec c, VecProduct p) {
  return {__builtin_wasm_relaxed_nmadd_f32x4(p.a, p.b, c.raw)};
}
#else
[[gnu::always_inline]] inline Vec operator*(Vec a, Vec b) { return {a.raw * b.raw}; }
[[gnu::always_inline]] inline Vec operator*(Vec a, float b) { return {a.raw * b}; }
#endif
[[gnu::always_inline]] inline Vec operator/(Vec a, Vec b) { return {a.raw / b.raw}; }
[[gnu::always_inline]] inline Vec operator+(Vec a, float b) { return {a.raw + b}; }
[[gnu::always_inline]] inline Vec operator-(Vec a, float b) { return {a.raw - b}; }
[[gnu::always_inline]] inline Vec operator-(float a, Vec b) { return {a - b.raw}; }
[[gnu::always_inline]] inline Vec operator/(float a, Vec b) { return {a / b.raw}; }

[[gnu::always_inline]] inline Vec Zero() { return {Vec::Raw{}}; }
[[gnu::always_inline]] inline Vec Fill(float a) { return {a - Vec::Raw{}}; }

[[gnu::always_inline]] inline Vec Load(const float* from) {
  return {*reinterpret_cast<const Vec::Loose*>(from)};
}

[[gnu::always_inline]] inline void Store(float* to, Vec a) {
  *reinterpret_cast<Vec::Loose*>(to) = a.raw;
}

// Keeps a in a register, where the compiler would load it again for every use.
[[gnu::always_inline]] inline void KeepInRegister(Vec& a) {
#if defined(__AVX512F__)
  asm("" : "+v"(a.raw));
#elif defined(__x86_64__)
  asm("" : "+x"(a.raw));
#elif defined(__aarch64__)
  asm("" : "+w"(a.raw));
#else
  (void)a;
#endif
}

// Stores the first `count` lanes, or all of them.
inline void StoreFirst(float* to, Vec a, std::int64_t count) {
  if (count >= kLanes) {
    Store(to, a);
  } else {
    std::memcpy(to, &a, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// The minimum; returns a if either is NaN.
[[gnu::always_inline]] inline Vec Min(Vec a, Vec b) {
#if defined(__AVX512F__)
  // GCC would compare and select, in two instructions; its _mm512_min_ps causes warnings
  return {_mm512_maskz_min_ps(0xffff, b.raw, a.raw)};
#else
  return {b.raw < a.raw ? b.raw : a.raw};
#endif
}

// The maximum; returns a if either is NaN.
[[gnu::always_inline]] inline Vec Max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return {_mm512_maskz_max_ps(0xffff, b.raw, a.raw)};
#else
  return {b.raw > a.raw ? b.raw : a.raw};
#endif
}

// Clamps a to [low, high]; NaN stays NaN.
[[gnu::always_inline]] inline Vec Clamp(Vec a, float low, float high) {
  return Max(Min(a, Fill(high)), Fill(low));
}

// e^r - 1 for |r| <= ln(2) / 2.
//
// (e^r - 1) / r is approximated by the minimax polynomial of degree 5; relative error 1.2e-8.
[[gnu::always_inline]] inline Vec ExpLessOne(Vec r) {
  Vec q = r * 0.00138888729f + 0.00836907607f;
  q = q * r + 0.0416671373f;
  q = q * r + 0.166665062f;
  q = q * r + 0.49999997f;
  q = q * r + 1.0f;
  return q * r;
}

// Splits exp(sign a) = 2^n e^r with |r| <= ln(2) / 2, for a sign of 1 or -1. Returns e^r - 1 and
// sets scale to 2^n, infinity for n = 128.
[[gnu::always_inline]] inline Vec SplitExp(Vec a, float sign, Vec* scale) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = a * (sign * 1.44269504088896341f) + kShift;
  const Vec r = a * sign - (shifted - kShift) * 0.693147180559945309f;
  const Vec::Bits bits = (reinterpret_cast<Vec::Bits>(shifted.raw) << 23) + 0x3f800000;
  scale->raw = reinterpret_cast<Vec::Raw>(bits);
  return ExpLessOne(r);
}

// 1 / (1 + exp(-a)); absolute error below 2e-7, saturates at exactly 0 and 1.
[[gnu::always_inline]] inline Vec Sigmoid(Vec a) {
  Vec scale;
  const Vec less_one = SplitExp(Clamp(a, -89.0f, 87.0f), -1.0f, &scale);
  // scale may be infinite, so it must not be multiplied by less_one, which may be negative
  return 1.0f / (scale * (less_one + 1.0f) + 1.0f);
}

// Absolute error below 2e-7, relative error below 4e-7 even near 0, saturates at exactly -1 and 1.
[[gnu::always_inline]] inline Vec Tanh(Vec a) {
  Vec scale;
  const Vec less_one = SplitExp(Clamp(a + a, -20.0f, 20.0f), 1.0f, &scale);
  const Vec e = scale * less_one + (scale - 1.0f);
  return e / (e + 2.0f);
}

// The cosine of a, clamped to [0, e] with e = pi / 2, as (e - a) (e + a) S(a^2). Absolute error
// below 2e-7, monotonic, exactly 1 and 0 at the ends.
//
// S is the polynomial of degree 4 that minimises the absolute error of the product, 2.5e-10. Its
// constant term is rounded so that the value at 0 is exactly 1.
[[gnu::always_inline]] inline Vec Cos(Vec a) {
  constexpr float kEnd = 1.57079632679489662f;
  const Vec angle = Clamp(a, 0.0f, kEnd);
  const Vec square = angle * angle;
  Vec s = square * 2.60260236e-07f - 2.41165690e-05f;
  s = s * square + 1.32932817e-03f;
  s = s * square - 3.83866467e-02f;
  s = s * square + 4.05284703e-01f;
  return (kEnd - angle) * (angle + kEnd) * s;
}

// Interleaves lanes kLow and kLow + 1 of a and b within each group of four: as a b a b if kPairs is
// 1, as a a b b if it is 2.
template <int kLow, int kPairs, class Raw, std::size_t... kLane>
[[gnu::always_inline]] inline Raw Zip(Raw a, Raw b, std::index_sequence<kLane...>) {
  constexpr auto source = [](int lane) {
    const int group = lane / 4 * 4, i = lane % 4;
    const bool second = kPairs == 1 ? i % 2 : i / 2;
    return group + kLow + (kPairs == 1 ? i / 2 : i % 2) + (second ? kLanes : 0);
  };
  return __builtin_shufflevector(a, b, source(static_cast<int>(kLane))...);
}

template <class Number, int kCount>
struct Numbers {
  typedef Number Type __attribute__((vector_size(kCount * 4)));
};

// Sums the groups of four lanes.
template <class Number, int kCount, std::size_t... kLane>
[[gnu::always_inline]] inline typename Numbers<Number, 4>::Type AddGroups(
    typename Numbers<Number, kCount>::Type a, std::index_sequence<kLane...>) {
  if constexpr (kCount == 4) {
    return a;
  } else {
    constexpr int kHalf = kCount / 2;
    const typename Numbers<Number, kHalf>::Type sum =
        __builtin_shufflevector(a, a, static_cast<int>(kLane)...) +
        __builtin_shufflevector(a, a, static_cast<int>(kHalf + kLane)...);
    return AddGroups<Number, kHalf>(sum, std::make_index_sequence<kHalf / 2>());
  }
}

// The sums over the lanes of a, b, c and d.
template <class Number, class Raw>
[[gnu::always_inline]] inline typename Numbers<Number, 4>::Type AddLanes(Raw a, Raw b, Raw c,
                                                                         Raw d) {
  constexpr std::make_index_sequence<kLanes> lanes;
  const Raw ab = Zip<0, 1>(a, b, lanes) + Zip<2, 1>(a, b, lanes);
  const Raw cd = Zip<0, 1>(c, d, lanes) + Zip<2, 1>(c, d, lanes);
  const Raw abcd = Zip<0, 2>(ab, cd, lanes) + Zip<2, 2>(ab, cd, lanes);
  return AddGroups<Number, kLanes>(abcd, std::make_index_sequence<kLanes / 2>());
}

[[gnu::always_inline]] inline Quad Sum4(Vec a, Vec b, Vec c, Vec d) {
  return AddLanes<float>(a.raw, b.raw, c.raw, d.raw);
}

}  // namespace edgernn::EDGERNN_ISA
