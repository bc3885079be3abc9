// SPDX-License-Identifier: Apache-2.0
// The C interface of the GPU library, for callers with device pointers and without ONNX Runtime.

#pragma once

#include <cstdint>

extern "C" {

// Returns null if a GPU can be used, else a sentence with the reason.
const char* edgernn_cuda_missing();

// Returns the names (LayerName) of all layers with a kernel, separated by spaces.
const char* edgernn_cuda_kernels();

// Returns the message of the last error on this thread. The functions below return 0 for success.
const char* edgernn_cuda_error();

// Computes the size of packed weights. rank: of R, or 0 if R is a full matrix; biases: 1 if gates
// with an optional bias have one; group_size: neighbouring neurons that share a decision.
int edgernn_cuda_packed_bytes(const char* layer, std::int64_t input, std::int64_t hidden,
                              std::int64_t rank, int biases, std::int64_t group_size,
                              std::int64_t* bytes);

// Packs weights, given in the order of the layer's inputs. Here and below, all pointers except
// `layer` and arrays of pointers are device pointers. stream: a cudaStream_t.
int edgernn_cuda_pack(const char* layer, std::int64_t input, std::int64_t hidden, std::int64_t rank,
                      int biases, std::int64_t group_size, const float* const* weights,
                      void* packed, void* stream);

// Runs a layer on x (T, B, I) and the states, in the layer's order. Writes y (T, B, H), the new
// states and, for rules that skip, updates (T, B) and macs (B,); each output may be null.
int edgernn_cuda_run(const char* layer, std::int64_t input, std::int64_t hidden, std::int64_t rank,
                     int biases, std::int64_t group_size, const void* packed, std::int64_t steps,
                     std::int64_t batch, const float* x, const float* const* states, float* y,
                     float* const* new_states, std::int64_t* updates, std::int64_t* macs,
                     void* stream);

// Sets the launch geometry of the next calls on this thread: sequences per cluster (1 or 4), blocks
// per cluster, threads per block, and maximum shared memory per block in bytes. 0 means automatic.
// For tests and tuning.
int edgernn_cuda_geometry(int tile, int blocks, int threads, int memory);

}  // extern "C"
