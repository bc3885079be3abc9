// SPDX-License-Identifier: Apache-2.0
// Function qualifiers for code that is compiled for the GPU and, in tests, for the CPU.

#pragma once

#ifdef __CUDACC__
#define EDGERNN_DEVICE __device__ __forceinline__
#define EDGERNN_BOTH __host__ __device__ __forceinline__
#else
#define EDGERNN_DEVICE inline
#define EDGERNN_BOTH inline
#endif

namespace edgernn::cuda {

// The number of bits that are 1.
EDGERNN_DEVICE int CountBits(unsigned bits) {
#ifdef __CUDA_ARCH__
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

}  // namespace edgernn::cuda
