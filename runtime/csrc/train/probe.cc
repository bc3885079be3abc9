// SPDX-License-Identifier: Apache-2.0
// Implements probe.h; the matrix-vector product and the multiply-adds once per instruction set.

#include "train/probe.h"

#include <cstring>

extern "C" const char* edgernn_train_isa();

namespace {

// registers of sums: enough to hide the latency of a multiply-add, few enough for 16 registers
constexpr int kPanel = 12;
constexpr int kNarrowPanel = 4;

template <int kLanes>
struct Register {
  typedef float Type __attribute__((vector_size(kLanes * 4), may_alias));
};

// Computes one panel of y = R h; returns the end of its weights.
template <int kLanes, int kWidth>
[[gnu::always_inline]] inline const float* Panel(const float* packed, std::int64_t columns,
                                                 const float* h, float* y) {
  typedef typename Register<kLanes>::Type Vec;
  Vec sums[kWidth] = {};
  for (std::int64_t k = 0; k < columns; ++k, packed += kWidth * kLanes) {
    const Vec value = h[k] - Vec{};
    for (int i = 0; i < kWidth; ++i) sums[i] += value * reinterpret_cast<const Vec*>(packed)[i];
  }
  for (int i = 0; i < kWidth; ++i) reinterpret_cast<Vec*>(y)[i] = sums[i];
  return packed;
}

template <int kLanes>
[[gnu::always_inline]] inline void MatVec(const float* packed, std::int64_t rows,
                                          std::int64_t columns, float* h, float* y,
                                          std::int64_t repeats) {
  for (; repeats > 0; --repeats) {
    const float* at = packed;
    std::int64_t row = 0;
    for (; row + kPanel * kLanes <= rows; row += kPanel * kLanes) {
      at = Panel<kLanes, kPanel>(at, columns, h, y + row);
    }
    for (; row < rows; row += kNarrowPanel * kLanes)
      at = Panel<kLanes, kNarrowPanel>(at, columns, h, y + row);
    h[0] = y[0] * 1e-3f;
  }
}

template <int kLanes>
[[gnu::always_inline]] inline float MultiplyAdd(std::int64_t repeats) {
  typedef typename Register<kLanes>::Type Vec;
  Vec sums[kPanel];
  for (int i = 0; i < kPanel; ++i) sums[i] = static_cast<float>(i) - Vec{};
  const Vec factor = 0.999f - Vec{}, term = 1e-6f - Vec{};
  for (; repeats > 0; --repeats) {
    for (int i = 0; i < kPanel; ++i) sums[i] = sums[i] * factor + term;
  }
  for (int i = 1; i < kPanel; ++i) sums[0] += sums[i];
  return sums[0][0];
}

struct Probes {
  const char* isa;
  int lanes;
  void (*matvec)(const float*, std::int64_t, std::int64_t, float*, float*, std::int64_t);
  float (*multiply_add)(std::int64_t);
};

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void MatVecAvx2(const float* packed, std::int64_t rows,
                                            std::int64_t columns, float* h, float* y,
                                            std::int64_t repeats) {
  MatVec<8>(packed, rows, columns, h, y, repeats);
}

[[gnu::target("avx512f,fma")]] void MatVecAvx512(const float* packed, std::int64_t rows,
                                                 std::int64_t columns, float* h, float* y,
                                                 std::int64_t repeats) {
  MatVec<16>(packed, rows, columns, h, y, repeats);
}

[[gnu::target("avx2,fma")]] float MultiplyAddAvx2(std::int64_t repeats) {
  return MultiplyAdd<8>(repeats);
}

[[gnu::target("avx512f,fma")]] float MultiplyAddAvx512(std::int64_t repeats) {
  return MultiplyAdd<16>(repeats);
}
#endif

const Probes kProbes[] = {
#if defined(__x86_64__)
    {"avx512", 16, &MatVecAvx512, &MultiplyAddAvx512},
    {"avx2", 8, &MatVecAvx2, &MultiplyAddAvx2},
#endif
    {"", 4, &MatVec<4>, &MultiplyAdd<4>},
};

const Probes& ChosenProbes() {
  const char* isa = edgernn_train_isa();
  // compare prefixes: avx512vnni has the registers of avx512
  const auto is = [isa](const char* name) {
    return isa != nullptr && std::strncmp(isa, name, std::strlen(name)) == 0;
  };
  const Probes* probes = kProbes;
  while (*probes->isa != '\0' && !is(probes->isa)) ++probes;
  return *probes;
}

}  // namespace

extern "C" {

std::int64_t edgernn_probe_lanes() { return ChosenProbes().lanes; }

void edgernn_probe_matvec(const float* packed, std::int64_t rows, std::int64_t columns, float* h,
                          float* y, std::int64_t repeats) {
  ChosenProbes().matvec(packed, rows, columns, h, y, repeats);
}

float edgernn_probe_fma(std::int64_t repeats) { return ChosenProbes().multiply_add(repeats); }

int edgernn_probe_steps(int (*step)(void*, const float*, float*), void* model, const float* x,
                        float* y, std::int64_t repeats) {
  int error = 0;
  for (; repeats > 0; --repeats) {
    const int status = step(model, x, y);
    if (status != 0) error = status;
  }
  return error;
}

int edgernn_probe_sequences(int (*step)(void*, const float*, float*), int (*reset)(void*),
                            void* model, const float* x, std::int64_t sequences, std::int64_t steps,
                            std::int64_t stride, float* y) {
  int error = 0;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    if (const int status = reset(model); status != 0) error = status;
    for (std::int64_t t = 0; t < steps; ++t, x += stride) {
      if (const int status = step(model, x, y); status != 0) error = status;
    }
  }
  return error;
}

}  // extern "C"
