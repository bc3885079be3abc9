// SPDX-License-Identifier: Apache-2.0
// The steps of a graph, as kernels run them. A graph is a list of steps on float buffers; see
// graph/graph.h for the steps as they are stored in a file, and for their meaning. Nothing here
// checks anything: graph/build_graph.cc has done so.
//
// Loops of a step run over streams, rows and columns, slowest first. Loops whose strides allow it
// are merged, so that a loop over streams is often part of a loop over rows.

#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace edgernn {

// The memory of an operand: the model's own, or an array of the call.
enum class Buffer : std::uint8_t { kModel, kX, kY };

// The first number of an operand.
struct Place {
  Buffer buffer;
  std::int64_t offset;  // in floats from the buffer's first
  float* model;         // the first float of the model's buffer for the first group of streams
  std::int64_t group;   // floats from group to group, 0 for a buffer that all groups use
};

// The arguments of a call of a graph for a group of B streams.
struct StepCall {
  std::int64_t group;
  const float* x;  // (B, I)
  float* y;        // (B, O)
  void* scratch;
  std::int64_t* updates;      // (B,), only if a layer skips
  std::int64_t* macs;         // (B,), only if a layer or a branch skips
  std::int64_t* nanoseconds;  // null, or of each step, to which its time is added

  [[gnu::always_inline]] float* Find(const Place& place) const {
    float* const from = place.buffer == Buffer::kModel ? place.model
                        : place.buffer == Buffer::kX   ? const_cast<float*>(x)
                                                       : y;
    return from + place.offset + group * place.group;
  }
};

struct Step {
  void (*run)(const Step&, const StepCall&);
};

// A loop of a step with an operand and a result, and their strides.
struct CopyLoop {
  std::int64_t count;
  std::int64_t from;
  std::int64_t to;
};

// Loops over streams and two kinds of rows.
constexpr int kRowLoops = 3;

// Calls body(from, to) for all rows.
template <class Body>
[[gnu::always_inline]] inline void ForRows(const CopyLoop* loops, const float* from, float* to,
                                           const Body& body) {
  for (std::int64_t i = 0; i < loops[0].count; ++i) {
    for (std::int64_t j = 0; j < loops[1].count; ++j) {
      const float* const a = from + i * loops[0].from + j * loops[1].from;
      float* const y = to + i * loops[0].to + j * loops[1].to;
      for (std::int64_t k = 0; k < loops[2].count; ++k) {
        body(a + k * loops[2].from, y + k * loops[2].to);
      }
    }
  }
}

// y = W a + b for each row a (I,), and y (H,). Numbers of a stream before `begin` and from `end`
// on, counted from its first row, are zeros.
struct LinearStep : Step {
  Place from, to;
  CopyLoop loops[kRowLoops];  // the last has the most rows
  bool is_row;                // there is one row
  bool leaves_out_zeros;      // the rows of the last loop are streams, so that all have as many
  std::int64_t begin, end;
  LayerSizes sizes;
  const void* packed;  // by StepKernels::pack_linear
};

// y_c = b_c + sum over k of w_kc a_(c + tap_k) for each row y (columns,).
struct DepthwiseStep : Step {
  Place from, to;
  CopyLoop loops[kRowLoops];
  std::int64_t columns;
  std::int64_t padded;  // columns, as the weights are stored
  std::int64_t tap_count;
  const std::int64_t* taps;
  const float* w;  // (taps, padded)
  const float* b;  // (padded,)
};

enum class Reduction : std::uint8_t { kSum, kMax, kMin };

// y_c is the sum, maximum or minimum of the numbers of column c over two loops.
struct ReduceStep : Step {
  Place from, to;
  CopyLoop loops[kRowLoops];
  Reduction reduction;
  std::int64_t counts[2];
  std::int64_t strides[2];
  std::int64_t columns;
  std::int64_t column_stride;
};

// The DFT of each row (2 half,), of which the last numbers are zeros: half + 1 real parts, then
// half + 1 imaginary parts.
struct FourierStep : Step {
  Place from, to;
  CopyLoop loops[kRowLoops];
  std::int32_t half;
  std::int64_t count;   // numbers of a row, without the zeros
  const float* window;  // (count,), or null
  const float* tables;  // (2, half): cosine and sine of k / (2 half) turns
};

// The number of floats of scratch that a FourierStep needs.
constexpr std::int64_t FourierScratch(std::int64_t half) { return 4 * half; }

// The kernels of the steps that depend on the instruction set, and the packed weights of a linear
// map, W (H, I) of any storage type and b (H,).
struct StepKernels {
  std::uint64_t (*linear_bytes)(const LayerSizes&);
  void (*pack_linear)(const LayerSizes&, const Values& w, const Values& b, void* packed);
  std::uint64_t (*linear_scratch)(const LayerSizes&, std::int64_t rows);
  void (*linear)(const Step&, const StepCall&);
  void (*depthwise)(const Step&, const StepCall&);
  void (*reduce)(const Step&, const StepCall&);
  void (*fourier)(const Step&, const StepCall&);
  void (*program)(const Step&, const StepCall&);
  std::int64_t lanes;  // columns of depthwise weights are padded to a multiple of it
};

}  // namespace edgernn
