// SPDX-License-Identifier: Apache-2.0
// Upper bounds of this processor, which the benchmark compares kernels with. Plain C functions of
// the training library; the first three use the instruction set that edgernn_train_isa() names.

#ifndef EDGERNN_TESTS_PROBE_H_
#define EDGERNN_TESTS_PROBE_H_

#include <cstdint>

extern "C" {

// Floats of a register. A panel is 12 registers of rows wide; the rows left over by whole panels
// are in panels of 4 registers.
[[gnu::visibility("default")]] std::int64_t edgernn_probe_lanes();

// y = R h, `repeats` times, each after the one before has ended: h[0] becomes y[0] / 1000.
//
// packed: R by panels, columns of a panel one after the other, at a multiple of 64 bytes; rows: a
// multiple of 4 registers.
[[gnu::visibility("default")]] void edgernn_probe_matvec(const float* packed, std::int64_t rows,
                                                         std::int64_t columns,
                                                         float* h,  // (columns,)
                                                         float* y,  // (rows,), as `packed`
                                                         std::int64_t repeats);

// `repeats` times 12 independent multiply-adds of registers. What is returned only keeps the work
// from being left out.
[[gnu::visibility("default")]] float edgernn_probe_fma(std::int64_t repeats);

// step(model, x, y) `repeats` times, as an app does that has no Python; returns the last status
// that was not 0, or 0.
[[gnu::visibility("default")]] int edgernn_probe_steps(int (*step)(void*, const float*, float*),
                                                       void* model, const float* x, float* y,
                                                       std::int64_t repeats);

// Streams sequences x (sequences, steps, stride), each from the initial state, as an app does that
// has no Python; returns the last status that was not 0, or 0.
//
// stride: floats from the input of a step to that of the next; a word takes two.
[[gnu::visibility("default")]] int edgernn_probe_sequences(int (*step)(void*, const float*, float*),
                                                           int (*reset)(void*), void* model,
                                                           const float* x, std::int64_t sequences,
                                                           std::int64_t steps, std::int64_t stride,
                                                           float* y);

}  // extern "C"

#endif  // EDGERNN_TESTS_PROBE_H_
