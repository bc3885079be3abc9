// SPDX-License-Identifier: Apache-2.0
// The steps of a graph that run the same code on every instruction set.

#pragma once

#include "kernel/step.h"
#include "op/op.h"

namespace edgernn {

struct MoveStep : Step {
  Place from, to;
  std::int64_t loop_count;  // at least 2
  const CopyLoop* loops;    // slowest first
};

void RunMoveStep(const Step& step, const StepCall& call);

struct GatherStep : Step {
  Place from, to;
  CopyLoop streams;
  std::int64_t inner;
  std::int64_t count;
  const std::int32_t* indices;
};

void RunGatherStep(const Step& step, const StepCall& call);

// Copies the row of a matrix whose number is in `index`: the first one if there is no such row.
struct LookupStep : Step {
  Place index, to;
  CopyLoop streams;
  std::int64_t rows, columns;
  Values matrix;
};

void RunLookupStep(const Step& step, const StepCall& call);

// Steps that run only if a number of the stream is not 0 (`wanted`) or is 0 (not `wanted`). It has
// no function of its own: RunGraph goes on behind its steps.
struct BranchStep : Step {
  Place from;
  bool wanted;
  std::int64_t updates, macs;
  std::int64_t count;
};

// A state of a layer, and its stride from stream to stream.
struct LayerState {
  Place place;
  std::int64_t stride;
  std::int64_t width;
};

// The floats of a call of a layer that follow each other in the step's operands.
struct RecurrentStep : Step {
  Place from, to;
  bool has_output;
  std::int64_t from_stride, to_stride;  // from call to call
  std::int64_t calls;                   // 1, or one for each stream
  OpKernel op;
  LayerSizes sizes;
  const void* packed;
  std::int64_t steps;  // T
  std::int64_t rows;   // sequences of a call
  std::int64_t rows_of_stream;
  bool skips;
  bool starts_from_zero;
  std::int64_t states;
  const LayerState* state;
  const StatePlace* places;  // in `layer_call`
  Call* layer_call;
  std::uint64_t kept_bytes;  // of each call
  char* kept;
  std::int64_t* updates;  // (T, rows)
  std::int64_t* macs;     // (rows,)
};

void RunRecurrentStep(const Step& step, const StepCall& call);

}  // namespace edgernn
