// SPDX-License-Identifier: Apache-2.0
// A thread's view of its block and cluster: indices, synchronisation and shared memory. A class
// with the same interface in tests/csrc/cpu_emulator.cc emulates it on the CPU.

#pragma once

#include <cooperative_groups.h>

#include "cuda/launch_plan.h"

namespace edgernn::cuda {

class ClusterGroup {
 public:
  __device__ ClusterGroup(const Geometry& geometry, float* memory)
      : blocks_(geometry.blocks), memory_(memory) {}

  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  // Index of the block in the cluster.
  __device__ int block() const { return static_cast<int>(blockIdx.x) % blocks_; }
  __device__ int blocks() const { return blocks_; }
  __device__ int cluster_index() const { return static_cast<int>(blockIdx.x) / blocks_; }
  // The block's shared memory.
  __device__ float* memory() const { return memory_; }

  // Waits for all threads of the block.
  __device__ void SyncBlock() const { __syncthreads(); }

  // Waits for all threads of the cluster.
  __device__ void SyncCluster() const {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // The sum over kRowThreads adjacent threads, which must all call it.
  __device__ float Sum(float a) const {
    const unsigned first = threadIdx.x % 32 / kRowThreads * kRowThreads;
    const unsigned mask = ((1u << kRowThreads) - 1) << first;
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2) a += __shfl_xor_sync(mask, a, step);
    return a;
  }

  // The same address in another block of the cluster (distributed shared memory).
  template <class T>
  __device__ T* AddressIn(int block, T* at) const {
#if __CUDA_ARCH__ >= 900
    if (blocks_ > 1) return cooperative_groups::this_cluster().map_shared_rank(at, block);
#endif
    return at;
  }

  // Atomically adds 1; returns the previous value.
  __device__ int FetchIncrement(int* at) const { return atomicAdd(at, 1); }

 private:
  const int blocks_;
  float* const memory_;
};

}  // namespace edgernn::cuda
