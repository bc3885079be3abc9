// SPDX-License-Identifier: Apache-2.0
// Defines the kernels of a cell, for the cell's translation unit.

#pragma once

#include <cuda_runtime.h>

#include "cells/list.h"
#include "cuda/cell_kernels.h"
#include "cuda/cluster_group.h"
#include "cuda/recurrence.h"

namespace edgernn::cuda {

// One block per multiprocessor: the second bound frees registers that nvcc would save for more.
template <class Cell, int kTile>
__global__ void __launch_bounds__(kMaxThreads, 1)
    RecurrenceKernel(const __grid_constant__ LaunchPlan plan, const __grid_constant__ Call call,
                     const float* packed) {
  extern __shared__ __align__(16) float memory[];
  const ClusterGroup cluster(plan.geometry, memory);
  Recurrence<Cell, kTile, ClusterGroup>(plan, call, packed, cluster).Run();
}

template <class Cell>
CellKernels KernelsOf() {
  return {&RecurrenceKernel<Cell, 1>, &RecurrenceKernel<Cell, 4>};
}

}  // namespace edgernn::cuda
