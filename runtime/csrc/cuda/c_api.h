// SPDX-License-Identifier: Apache-2.0
// The GPU's ops as plain C functions, for callers that have device pointers and no ONNX Runtime.

#ifndef EDGERNN_CUDA_C_API_H_
#define EDGERNN_CUDA_C_API_H_

#include <cstdint>

extern "C" {

// Null, or one sentence that says why no GPU can be used.
const char* edgernn_cuda_missing();

// The names of the layers that have a kernel, see LayerName, separated by blanks.
const char* edgernn_cuda_kernels();

// The functions below return 0, or another number; this says why the last one on this thread did.
const char* edgernn_cuda_error();

// How large packed weights are. I, H, rank: as the layer's weights have
// them, rank 0 if R is whole; biases: whether gates whose bias is optional have one.
int edgernn_cuda_packed_bytes(const char* layer, std::int64_t input, std::int64_t hidden,
                              std::int64_t rank, int biases, std::int64_t* bytes);

// Packs weights, in the order of the layer's inputs. All pointers but `layer` and `weights` itself
// are the GPU's, here and below; stream: a cudaStream_t.
int edgernn_cuda_pack(const char* layer, std::int64_t input, std::int64_t hidden, std::int64_t rank,
                      int biases, const float* const* weights, void* packed, void* stream);

// One call: x (T, B, I) and the states, in the layer's order, give y (T, B, H), the new states, and
// for rules that skip updates (T, B) and macs (B,). Each of these may be null.
int edgernn_cuda_run(const char* layer, std::int64_t input, std::int64_t hidden, std::int64_t rank,
                     int biases, const void* packed, std::int64_t steps, std::int64_t batch,
                     const float* x, const float* const* states, float* y, float* const* new_states,
                     std::int64_t* updates, std::int64_t* macs, void* stream);

// How the next calls on this thread are cut up: sequences a cluster (1 or 4), blocks of a cluster,
// threads of a block, bytes that a block may have on the chip; what is 0 is chosen. For tests, and
// to find what is fastest.
int edgernn_cuda_geometry(int tile, int blocks, int threads, int memory);

}  // extern "C"

#endif  // EDGERNN_CUDA_C_API_H_
