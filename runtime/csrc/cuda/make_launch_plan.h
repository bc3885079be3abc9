// SPDX-License-Identifier: Apache-2.0
// Makes launch plans, and lists what is copied where to pack weights.

#ifndef EDGERNN_CUDA_MAKE_LAUNCH_PLAN_H_
#define EDGERNN_CUDA_MAKE_LAUNCH_PLAN_H_

#include <vector>

#include "common/op.h"
#include "cuda/launch_plan.h"

namespace edgernn::cuda {

// Weights that are copied, row by row: the column j of row i of `from` goes to
// to + i * to_stride + j.
struct Piece {
  const float* from;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t from_stride;
  std::int64_t to;
  std::int64_t to_stride;
  Map map;
};

// What a GPU has.
struct Limits {
  int processors;
  int memory;   // on the chip, that a block may have, in bytes
  int blocks;   // that a cluster may have
  int threads;  // that a block may have
};

// Whether an op runs on a GPU.
bool Supports(const Op& op);

// The plan of an op, without what depends on a call.
LaunchPlan MakeLaunchPlan(const Op& op, const LayerSizes& sizes);

// Adds how a call of `batch` sequences is cut up; what is 0 in `wanted` is chosen. Throws
// InvalidArgument where not even one row of states fits on the chip.
void Fit(const Op& op, const Limits& limits, const Geometry& wanted, std::int64_t batch,
         LaunchPlan* plan);

// All weights of an op, which are in the order of its spec.
std::vector<Piece> ListPieces(const Op& op, const LayerSizes& sizes, const LaunchPlan& plan,
                              const float* const* weights);

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_MAKE_LAUNCH_PLAN_H_
