// SPDX-License-Identifier: Apache-2.0
// The kernels of each cell. Every cell has a translation unit of its own, which CMakeLists.txt
// writes, so that several processors compile them.

#pragma once

#include "cuda/launch_plan.h"
#include "op/op.h"

namespace edgernn::cuda {

constexpr int kMaxThreads = 512;

using KernelFunction = void (*)(LaunchPlan, Call, const float*);

// The kernels of a cell for tiles of one and four sequences.
struct CellKernels {
  KernelFunction one;
  KernelFunction four;
};

// Defined in recurrence_kernel.h and instantiated in the cell's translation unit.
template <class Cell>
CellKernels KernelsOf();

}  // namespace edgernn::cuda
