// SPDX-License-Identifier: Apache-2.0
// Implements launch.h with the CUDA runtime.

#include <cuda_runtime.h>

#include <string>

#include "cells/list.h"
#include "cuda/cell_kernels.h"
#include "cuda/launch.h"
#include "cuda/scalar.h"

namespace edgernn::cuda {

namespace {

void Check(cudaError_t error) {
  if (error != cudaSuccess) {
    // clear the error, which the next caller would see otherwise
    static_cast<void>(cudaGetLastError());
    throw GpuError(std::string("CUDA: ") + cudaGetErrorString(error));
  }
}

cudaStream_t AsStream(void* stream) { return static_cast<cudaStream_t>(stream); }

__global__ void CopyWeights(const __grid_constant__ WeightCopy copy, float* packed) {
  const std::int64_t count = copy.rows * copy.columns;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; at < count; at += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = at / copy.columns, column = at % copy.columns;
    packed[copy.to + row * copy.to_stride + column * copy.to_column_stride] =
        Apply(copy.map, copy.from[row * copy.from_stride + column]);
  }
}

template <class... AllCells>
CellKernels FindKernels(TypeList<AllCells...>, std::size_t cell) {
  static constexpr CellKernels (*kList[])() = {&KernelsOf<AllCells>...};
  return kList[cell]();
}

}  // namespace

const char* Missing() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is missing or older than CUDA 13, which edgernn's library was built "
           "for: install driver 580 or newer";
  }
  if (error != cudaSuccess || count == 0)
    return "no NVIDIA GPU was found: nvidia-smi should list one";
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return "the NVIDIA GPU does not answer";
  }
  if (major < 8) return "the GPU is older than compute capability 8.0, which edgernn needs";
  return nullptr;
}

Limits FindLimits() {
  int device = 0, major = 0;
  Limits limits{};
  Check(cudaGetDevice(&device));
  const auto get = [device](cudaDeviceAttr attribute, int* value) {
    Check(cudaDeviceGetAttribute(value, attribute, device));
  };
  get(cudaDevAttrComputeCapabilityMajor, &major);
  get(cudaDevAttrMultiProcessorCount, &limits.processors);
  get(cudaDevAttrMaxSharedMemoryPerBlockOptin, &limits.memory);
  limits.blocks = major >= 9 ? 8 : 1;
  limits.threads = kMaxThreads;
  return limits;
}

void FreeMemory::operator()(float* memory) const {
  static_cast<void>(cudaFreeAsync(memory, AsStream(stream)));
}

Memory Allocate(std::int64_t floats, void* stream) {
  void* memory = nullptr;
  Check(
      cudaMallocAsync(&memory, static_cast<std::size_t>(floats) * sizeof(float), AsStream(stream)));
  return Memory(static_cast<float*>(memory), {stream});
}

Memory Upload(const float* from, std::int64_t floats, void* stream) {
  Memory memory = Allocate(floats, stream);
  Check(cudaMemcpyAsync(memory.get(), from, static_cast<std::size_t>(floats) * sizeof(float),
                        cudaMemcpyDefault, AsStream(stream)));
  Wait(stream);
  return memory;
}

void Wait(void* stream) { Check(cudaStreamSynchronize(AsStream(stream))); }

void Pack(const std::vector<WeightCopy>& copies, std::int64_t floats, float* packed, void* stream) {
  Check(cudaMemsetAsync(packed, 0, static_cast<std::size_t>(floats) * sizeof(float),
                        AsStream(stream)));
  for (const WeightCopy& copy : copies) {
    CopyWeights<<<64, 256, 0, AsStream(stream)>>>(copy, packed);
    Check(cudaGetLastError());
  }
}

void Launch(std::size_t cell, const LaunchPlan& plan, const Call& call, const float* packed,
            void* stream) {
  const Geometry& geometry = plan.geometry;
  const CellKernels kernels = FindKernels(Cells{}, cell);
  const KernelFunction kernel = geometry.tile == 1 ? kernels.one : kernels.four;
  const auto clusters = static_cast<unsigned>((call.batch + geometry.tile - 1) / geometry.tile);
  Check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, geometry.memory));
  cudaLaunchConfig_t config{};
  config.gridDim = clusters * static_cast<unsigned>(geometry.blocks);
  config.blockDim = static_cast<unsigned>(geometry.threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(geometry.memory);
  config.stream = AsStream(stream);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(geometry.blocks), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = geometry.blocks > 1 ? 1 : 0;
  Check(cudaLaunchKernelEx(&config, kernel, plan, call, packed));
}

}  // namespace edgernn::cuda
