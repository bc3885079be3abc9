// SPDX-License-Identifier: Apache-2.0
// The ops on a GPU, for plain C and for ONNX Runtime.

#ifndef EDGERNN_CUDA_RUN_H_
#define EDGERNN_CUDA_RUN_H_

#include "cuda/launch.h"

namespace edgernn::cuda {

// The ops that run on a GPU.
const std::deque<Op>& ListGpuOps();

// Their names, separated by blanks.
const char* GpuOpNames();

// How this thread's calls are cut up; what is 0 is chosen.
extern thread_local Geometry wanted_geometry;

std::int64_t PackedFloats(const Op& op, const Sizes& sizes);

// Weights in the order of the op's spec, on the GPU.
void PackOp(const Op& op, const Sizes& sizes, const float* const* weights, float* packed,
            void* stream);

void RunOp(const Op& op, const Sizes& sizes, const float* packed, const Call& call, void* stream);

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_RUN_H_
