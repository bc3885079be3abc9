// SPDX-License-Identifier: Apache-2.0
// A step graph: a whole streaming network as a list of steps on float buffers.
//
// A model reads x (B, I) and writes y (B, O). Its values are buffers (B, size): in an arena, whose
// parts several values may share; a state, which a step leaves for the next one; a constant (size,)
// of the file; or a part of x or y. Each step reads and writes operands: a value, an offset in it
// and strides, all in floats. The rows of a batch are independent streams, and a stream has the
// same results in any batch.
//
// A step is its code, the number of its arguments, and the arguments. From and to stand for a value
// and an offset each, loop for a count and two strides, rows for two loops:
//
//   move        from, to, n, n loops                          copies numbers, slowest loop first
//   linear      from, to, W, b, rows                          y = W a + b
//               and, if `from` has margins of zeros, begin and end of the numbers between them,
//               counted from the first row's first
//   depthwise   from, to, w, b, rows, K, K taps               y_c = b_c + sum of w_kc a_(c + tap_k)
//   recurrent   layer, first tensor, from, to, T, rows, reads_zero, S, S values and offsets
//   program     rows1, rows2, columns, n, operands, m, results, k, k instructions, m values
//   reduce      kind, from, to, 2 outer counts and strides, 2 reduced ones, columns and stride
//   gather      from, to, inner, n, n indices                 parts of `inner` numbers; -1: zeros.
//               If n is 0, from and index                     one part, whose index is in a value
//   fourier     from, to, rows, from stride, to stride, N, window
//   branch      from, wanted, updates, macs, n                runs the next n steps if a number is
//                                                             not 0, or without `wanted` if it is 0
//
// An operand of a program is a value, an offset, two strides of rows, and the stride of columns, 0
// or 1; a result is the same without the last. An instruction is its code and three values or -1:
// first the operands, then the instructions are counted. A tensor may be -1 where it is optional: b
// and the window, which may be shorter than N: zeros follow the numbers of a row. The value of a
// layer's result may be -1, as its first state is the result too. A branch adds updates and macs to
// the work of a stream when its steps run; in a graph with branches, streams run one by one.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/arena.h"
#include "kernel/step.h"
#include "op/op.h"

namespace edgernn {

enum class StepCode {
  kMove,
  kLinear,
  kDepthwise,
  kRecurrent,
  kProgram,
  kReduce,
  kGather,
  kFourier,
  kBranch
};
constexpr int kStepCodes = 9;

enum class ValueKind : std::uint32_t { kArena, kState, kConstant, kInput, kOutput };
constexpr std::uint32_t kValueKinds = 5;

// A value as it is stored in a file.
struct GraphValue {
  std::uint32_t kind;    // a ValueKind
  std::uint32_t offset;  // in the arena, in x or in y; of a constant, the index of its tensor
  std::uint32_t size;
  std::uint32_t tensor;  // initial value of a state
};
static_assert(sizeof(GraphValue) == 16);

// A layer that steps may run.
struct GraphLayer {
  std::shared_ptr<const Op> op;
  std::size_t tensors;  // number of weights
  std::int64_t group_size;
};

// A graph as it is stored in a file, which may be damaged or malicious.
struct GraphSource {
  std::int64_t input;          // I
  std::int64_t output;         // O
  std::int64_t arena;          // floats per stream
  std::int64_t updates, macs;  // of a step and stream, in layers that cannot skip
  bool quantizes;              // int8 weights of linear steps multiply quantized inputs
  std::int64_t features;       // the value that callers may read after a call, or -1
  std::vector<GraphValue> values;
  std::vector<std::int32_t> steps;
  std::vector<Tensor> tensors;
  std::vector<GraphLayer> layers;
};

// Steps for groups of neighbouring streams, which run one after the other in the same arena.
struct StreamGroups {
  const Step* const* steps;
  std::int64_t step_count;
  std::int64_t count;
  std::int64_t streams;  // of a group
  std::int64_t first;    // stream of the first group
};

// A checked graph, whose steps are in the model's memory. The last group of streams may be smaller
// than the others.
struct Graph {
  StreamGroups groups[2];
  std::int64_t input, output;
  std::int64_t neurons;  // of all layers, each as often as it runs in a step
  std::uint64_t scratch_bytes;
  const float* features;  // (B, bands), of the last call; null if the source has none
  std::int64_t bands;
  bool skips;                  // a layer has a rule that skips, or the graph has a branch
  std::int64_t updates, macs;  // of a step and stream, without what may be skipped
};

// Checks the values of a graph, and lists the initial value of each state. Returns false and sets
// *error for an invalid one.
[[nodiscard]] bool CheckValues(const GraphSource& source, std::vector<Tensor>* starts,
                               std::string* error);

// Checks the steps of a graph with valid values, and prepares them in the arena for a batch;
// `states` has the place of each state. Returns false and sets *error for an invalid one. Without
// memory, only adds up the bytes that are needed.
[[nodiscard]] bool BuildGraph(const GraphSource& source, const KernelTable& table,
                              std::int64_t batch, const std::vector<float*>& states, Arena* arena,
                              Graph* graph, std::string* error);

// Runs all steps for the streams of a batch; `call` has the arrays of the whole batch.
void RunGraph(const Graph& graph, const StepCall& call);

}  // namespace edgernn
