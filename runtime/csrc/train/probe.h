// SPDX-License-Identifier: Apache-2.0
// Probes of the benchmark: the processor's upper bounds, and loops without Python. C functions of
// the training library; the first three use the instruction set of edgernn_train_isa().

#pragma once

#include <cstdint>

#include "edgernn.h"

extern "C" {

// Returns the floats per register. A panel is 12 registers of rows wide; remaining rows are in
// panels of 4 registers.
EDGERNN_API std::int64_t edgernn_probe_lanes();

// Computes y = R h `repeats` times. Each product depends on the previous one: h[0] becomes y[0] /
// 1000.
//
// packed: R in panels, each column-major, aligned to 64 bytes. rows: a multiple of 4 registers.
EDGERNN_API void edgernn_probe_matvec(const float* packed, std::int64_t rows, std::int64_t columns,
                                      float* h,  // (columns,)
                                      float* y,  // (rows,), in panel order
                                      std::int64_t repeats);

// Runs 12 independent multiply-adds of registers `repeats` times. The result prevents dead-code
// elimination.
EDGERNN_API float edgernn_probe_fma(std::int64_t repeats);

// Calls step(model, x, y) `repeats` times, as an app without Python would. Returns the last nonzero
// status, or 0.
EDGERNN_API int edgernn_probe_steps(int (*step)(void*, const float*, float*), void* model,
                                    const float* x, float* y, std::int64_t repeats);

// Streams sequences x (sequences, steps, stride), each from the initial state, as an app without
// Python would. Returns the last nonzero status, or 0.
//
// stride: floats between the inputs of two steps; a word index (int64) takes two.
EDGERNN_API int edgernn_probe_sequences(int (*step)(void*, const float*, float*),
                                        int (*reset)(void*), void* model, const float* x,
                                        std::int64_t sequences, std::int64_t steps,
                                        std::int64_t stride, float* y);

}  // extern "C"
