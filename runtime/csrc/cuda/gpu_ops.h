// SPDX-License-Identifier: Apache-2.0
// The ops on a GPU, for plain C and for ONNX Runtime.

#ifndef EDGERNN_CUDA_GPU_OPS_H_
#define EDGERNN_CUDA_GPU_OPS_H_

#include "cuda/launch.h"

namespace edgernn::cuda {

// The op of this name, or null if none of this name runs on a GPU.
const Op* FindGpuOp(const std::string& name);

// The names of those that do, separated by blanks.
const char* GpuOpNames();

// How this thread's calls are cut up; what is 0 is chosen.
extern thread_local Geometry wanted_geometry;

std::int64_t PackedFloats(const Op& op, const LayerSizes& sizes);

// Weights in the order of the op's spec, on the GPU; null for one that is absent.
void PackOp(const Op& op, const LayerSizes& sizes, const float* const* weights, float* packed,
            void* stream);

void RunOp(const Op& op, const LayerSizes& sizes, const float* packed, const Call& call,
           void* stream);

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_GPU_OPS_H_
