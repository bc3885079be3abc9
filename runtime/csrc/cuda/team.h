// SPDX-License-Identifier: Apache-2.0
// The threads of a block on a GPU, as recurrence.h uses them. tests/cpu_emulator.cc has a class of
// the same interface that emulates them on the CPU.

#ifndef EDGERNN_CUDA_TEAM_H_
#define EDGERNN_CUDA_TEAM_H_

#include <cooperative_groups.h>

#include "cuda/launch_plan.h"

namespace edgernn::cuda {

class Team {
 public:
  __device__ Team(const Geometry& geometry, float* memory)
      : blocks_(geometry.blocks), memory_(memory) {}

  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  // of the cluster
  __device__ int block() const { return static_cast<int>(blockIdx.x) % blocks_; }
  __device__ int blocks() const { return blocks_; }
  __device__ int cluster() const { return static_cast<int>(blockIdx.x) / blocks_; }
  // on the chip, of this block
  __device__ float* memory() const { return memory_; }

  // Waits for all threads of the block.
  __device__ void Sync() const { __syncthreads(); }

  // Waits for all threads of the cluster.
  __device__ void SyncAll() const {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // The sum over the kRowThreads threads side by side that call it together.
  __device__ float Sum(float a) const {
    const unsigned first = threadIdx.x % 32 / kRowThreads * kRowThreads;
    const unsigned mask = ((1u << kRowThreads) - 1) << first;
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2) a += __shfl_xor_sync(mask, a, step);
    return a;
  }

  // The same place in another block of the cluster.
  template <class T>
  __device__ T* Of(int block, T* at) const {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1) return cooperative_groups::this_cluster().map_shared_rank(at, block);
#endif
    return at;
  }

  // Adds 1; returns what was there.
  __device__ int Count(int* at) const { return atomicAdd(at, 1); }

 private:
  const int blocks_;
  float* const memory_;
};

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_TEAM_H_
