// SPDX-License-Identifier: Apache-2.0
// Makes plans, and says what goes where in packed weights.

#ifndef EDGERNN_CUDA_MAKE_PLAN_H_
#define EDGERNN_CUDA_MAKE_PLAN_H_

#include <vector>

#include "cuda/plan.h"
#include "op.h"

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

// Whether an op runs on a GPU, and in which mode.
bool Supports(const Op& op, Mode* mode);

// The plan of an op, without what depends on a call.
Plan MakePlan(const Op& op, const Sizes& sizes);

// Adds how a call of `batch` sequences is cut up; what is 0 in `wanted` is chosen. Throws
// InvalidArgument where not even one row of states fits on the chip.
void Fit(const Op& op, const Limits& limits, const Geometry& wanted, std::int64_t batch,
         Plan* plan);

// All weights of an op, which are in the order of its spec.
std::vector<Piece> ListPieces(const Op& op, const Sizes& sizes, const Plan& plan,
                              const float* const* weights);

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_MAKE_PLAN_H_
