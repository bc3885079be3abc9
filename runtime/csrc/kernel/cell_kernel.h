// SPDX-License-Identifier: Apache-2.0
// A cell as drivers call it: its table of gates and the functions that compute its equations.

#pragma once

#include "kernel/kernel.h"

namespace edgernn {

// Arguments of the point-wise part of a step, for `count` vectors of neurons from element `first`
// of arrays of padded size H or I.
struct PointwiseArgs {
  const CellKernel* cell;
  std::int64_t first;
  std::int64_t count;
  const float* sums;           // pre-activations of the group's gates, from the first vector on
  std::int64_t gate_stride;    // from gate to gate
  std::int64_t stride;         // from vector to vector
  const float* x;              // only for cells that read x itself
  const float* const* params;  // by parameter; a scalar is one vector of equal lanes
  const float* const* state;   // by state; for m only if it has the size of the states
  float* const* to;            // results: the new states, or m
};

// The inputs of the matrix products of a step, padded to whole vectors with finite values. Only
// the first x_end, h_end, c_end and m_end columns are read.
struct MatmulInputs {
  const float* x;  // (padded I,), followed by the previous x in cells that read it
  const float* h;  // (padded H,), or Q h (padded rank,)
  const float* c;  // (padded H,), only for cells that multiply their second state
  const float* m;  // (padded M,), only for cells with m
  std::int64_t x_end;
  std::int64_t h_end;
  std::int64_t c_end;
  std::int64_t m_end;
};

// The weights of gathered products: see cpu/gather_f32.h.
struct RowWeights {
  const void* rows;  // the packed rows of all neurons
  const float* b;    // (H, stored sums)
};

// Arguments of a gathered product: the pre-activations of `count` neurons, for the gates without
// kMid.
struct GatherArgs {
  const MatmulInputs* inputs;
  std::int64_t begin;  // first column of the states that is read; starts a vector
  RowWeights weights;
  const std::int32_t* neurons;  // (count,), indices
  std::int64_t count;
  float* sums;  // result: sums[g * stride + n] for gate g of neuron n
  std::int64_t stride;
};

// Arguments of the gathered products of at most 64 samples, which share the loaded rows.
struct SharedGatherArgs {
  RowWeights weights;
  const std::uint64_t* samples;       // (H,): a bit for each sample in which the neuron is active
  const MatmulInputs* const* inputs;  // by sample; all with the same ends
  // by sample, (gates, stride): the sums of its active neurons, one after the other. The call moves
  // each pointer by the number of its sample's neurons.
  float** sums;
  std::int64_t stride;
};

struct CellFunctions {
  void (*update)(const PointwiseArgs&);
  void (*mid)(const PointwiseArgs&);
  void (*multiply)(const CellTable&, const LayerSizes&, const GatherArgs&);
  // null: samples are multiplied one by one
  void (*multiply_shared)(const CellTable&, const LayerSizes&, const SharedGatherArgs&);
  // applies the maps of the cell's parameters in place, which are padded to whole vectors; null:
  // the maps are those of the table
  void (*map)(const CellKernel&, const LayerSizes&, float* const* params);
  bool untiled;  // call update and mid once for all tiles, as each call has a high fixed cost
};

struct CellKernel : CellTable, CellFunctions {};

// The structure of a cell's rows: per gate, four bits for the terms x, h, c and m, and one more bit
// for the previous x. Cells of the same shape share one kernel. A gate without bits has no
// products.
using RowShape = std::uint64_t;
constexpr RowShape kLastInputShape = RowShape{1} << 4 * kMaxGates;

constexpr RowShape RowShapeOf(const CellTable& cell) {
  const GateGroup& group = cell.second_stage;
  const GateList* const terms[] = {&group.x, &group.h, &group.c, &group.m};
  RowShape shape = cell.reads_last ? kLastInputShape : 0;
  for (int term = 0; term < 4; ++term) {
    for (int i = 0; i < terms[term]->count; ++i) {
      shape |= RowShape{1} << (4 * terms[term]->at[i] + term);
    }
  }
  return shape;
}

// The gathered products of the cells whose rows have one shape.
struct RowProducts {
  RowShape shape;
  void (*multiply)(const CellTable&, const LayerSizes&, const GatherArgs&);
  void (*multiply_shared)(const CellTable&, const LayerSizes&, const SharedGatherArgs&);
};

}  // namespace edgernn
