// SPDX-License-Identifier: Apache-2.0
// The ops on a GPU, shared by the C interface and the ONNX Runtime node.

#pragma once

#include "cuda/launch.h"

namespace edgernn::cuda {

// Returns the op of this name, or null if it does not run on a GPU.
const Op* FindGpuOp(const std::string& name);

// Returns the names of all ops that run on a GPU, separated by spaces.
const char* GpuOpNames();

// The launch geometry requested for this thread's calls; 0 means automatic.
extern thread_local Geometry requested_geometry;

// Returns the size of packed weights in floats.
std::int64_t PackedFloats(const Op& op, const LayerSizes& sizes);

// Packs weights, which are device pointers in the order of the op's spec; null where absent.
void PackOp(const Op& op, const LayerSizes& sizes, const float* const* weights, float* packed,
            void* stream);

// Runs an op on device pointers.
void RunOp(const Op& op, const LayerSizes& sizes, const float* packed, const Call& call,
           void* stream);

}  // namespace edgernn::cuda
