// SPDX-License-Identifier: Apache-2.0
// Makes launch plans and lists the copies that pack weights.

#pragma once

#include <vector>

#include "cuda/launch_plan.h"
#include "op/op.h"

namespace edgernn::cuda {

// A strided copy: element (i, j) of `from` goes to offset to + i * to_stride + j *
// to_column_stride, through `map`.
struct WeightCopy {
  const float* from;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t from_stride;
  std::int64_t to;
  std::int64_t to_stride;
  std::int64_t to_column_stride;
  Map map;
};

// The limits of a GPU.
struct Limits {
  int processors;  // streaming multiprocessors
  int memory;      // shared memory per block in bytes
  int blocks;      // blocks per cluster
  int threads;     // threads per block
};

// True if an op runs on a GPU.
bool Supports(const Op& op);

// Makes the plan of an op without the fields that depend on a call.
LaunchPlan MakeLaunchPlan(const Op& op, const LayerSizes& sizes);

// Completes a plan for a call of `batch` sequences; a 0 in `requested` means automatic. Throws
// InvalidArgument if the states of one sequence do not fit in shared memory.
void ChooseGeometry(const Op& op, const Limits& limits, const Geometry& requested,
                    std::int64_t batch, LaunchPlan* plan);

// Lists the copies that pack an op's weights, which are in the order of its spec.
std::vector<WeightCopy> ListWeightCopies(const Op& op, const LayerSizes& sizes,
                                         const LaunchPlan& plan, const float* const* weights);

}  // namespace edgernn::cuda
