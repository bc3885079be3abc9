// SPDX-License-Identifier: Apache-2.0
// A cell as drivers see it: its table, and the functions that hold its equations.

#ifndef EDGERNN_COMMON_CELL_KERNEL_H_
#define EDGERNN_COMMON_CELL_KERNEL_H_

#include "common/kernel.h"

namespace edgernn {

// The point-wise part of a step for `count` vectors of neurons, from element `first` of the arrays
// on, which are (padded H,) or (padded I,).
struct PointwiseArgs {
  const CellKernel* cell;
  std::int64_t first;
  std::int64_t count;
  const float* sums;           // of the gates of a group, at vector 0
  std::int64_t gate_stride;    // from gate to gate
  std::int64_t stride;         // from vector to vector
  const float* x;              // cells that read x itself only
  const float* const* params;  // by parameter; a scalar is a vector of equal lanes
  const float* const* state;   // by state; for m only where it has the size of the states
  float* const* to;            // by state, the new ones; or m alone
};

// What weights multiply, padded to whole vectors with finite numbers; so many columns of each are
// read.
struct Factors {
  const float* x;  // (padded I,), then the last x likewise in cells that read it
  const float* h;  // (padded H,), or Q h (padded rank,)
  const float* c;  // (padded H,), cells whose second state is multiplied only
  const float* m;  // (padded M,), cells with m only
  std::int64_t x_end;
  std::int64_t h_end;
  std::int64_t c_end;
  std::int64_t m_end;
};

// The sums of `count` neurons, of the gates outside kMid; see cpu/gather_f32.h.
struct NeuronSums {
  const Factors* factors;
  std::int64_t begin;  // the column from which the states are read, the start of a vector
  const void* rows;
  const float* b;
  const std::int32_t* neurons;  // (count,)
  std::int64_t count;
  float* sums;  // sums[i * stride + n]: neuron n, i-th gate
  std::int64_t stride;
};

struct CellFunctions {
  void (*update)(const PointwiseArgs&);
  void (*mid)(const PointwiseArgs&);
  void (*multiply)(const CellTable&, const LayerSizes&, const NeuronSums&);
  // maps the cell's own vectors in place, padded to whole vectors
  void (*map)(const CellKernel&, const LayerSizes&, float* const* params);
  bool whole_rows;  // update and mid are slow to start
};

struct CellKernel : CellTable, CellFunctions {};

}  // namespace edgernn

#endif  // EDGERNN_COMMON_CELL_KERNEL_H_
