// SPDX-License-Identifier: Apache-2.0
// Runs a cell under the rule `always`: every neuron at every step.

#ifndef EDGERNN_DENSE_H_
#define EDGERNN_DENSE_H_

#include "group.h"
#include "state.h"

namespace edgernn::EDGERNN_ISA {

// The packed weights.
struct DenseWeights {
  GroupWeights mid;
  GroupWeights update;
  float* q;  // a packed matrix
  PackedParams params;
  std::size_t bytes;

  DenseWeights(const CellTable& cell, const Sizes& sizes, void* base) {
    Carver carver(base);
    mid.Carve(cell, cell.mid_gates, MidSize(cell, sizes), sizes, &carver);
    update.Carve(cell, cell.update_gates, sizes.hidden, sizes, &carver);
    q = carver.Take<float>(Padded(sizes.rank) * sizes.hidden);
    params.Carve(cell, sizes, &carver);
    bytes = carver.used();
  }

  void Pack(const CellTable& cell, const Sizes& sizes, const Weights& from) const {
    mid.Pack(cell, sizes, from);
    update.Pack(cell, sizes, from);
    PackMatrix(from.q, sizes.rank, sizes.hidden, 1, q);
    params.Pack(cell, sizes, from);
  }

  // Multiply-adds of a step of one sample.
  std::int64_t Macs(const CellTable& cell, const Sizes& sizes) const {
    return mid.Macs(cell, sizes) + update.Macs(cell, sizes) + sizes.rank * sizes.hidden;
  }
};

struct DenseScratch {
  std::int64_t chunk;
  float* x;                  // (chunk, B, padded I), cells that read x itself only
  float* pairs;              // (chunk, B, 2I): x_t and x_{t-1}, cells that read both only
  float* mid_sums;           // (chunk, B, blocks of M, mid gates, lanes)
  float* sums;               // (chunk, B, blocks of H, other gates, lanes)
  float* mid;                // (B, padded M)
  float* factor;             // (B, padded rank)
  GroupShorts shorts;        // of B rows, of (chunk, B) of x
  float* state[kMaxStates];  // (B, padded H) each
  float* next[kMaxStates];   // (B, padded H) each, of the states that weights multiply
  std::size_t bytes;

  DenseScratch(const CellTable& cell, const Sizes& sizes, std::int64_t steps, std::int64_t batch,
               void* base) {
    const std::int64_t size = batch * Padded(sizes.hidden);
    const std::int64_t mid_size = batch * Padded(MidSize(cell, sizes));
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    x = carver.Take<float>(cell.reads_input ? chunk * batch * Padded(sizes.input) : 0);
    pairs = carver.Take<float>(cell.reads_last ? chunk * batch * 2 * sizes.input : 0);
    mid_sums = carver.Take<float>(chunk * mid_size * cell.mid_gates.all.count);
    sums = carver.Take<float>(chunk * size * cell.update_gates.all.count);
    mid = carver.Take<float>(cell.has_mid ? mid_size : 0);
    factor = carver.Take<float>(batch * Padded(sizes.rank));
    shorts.Carve(cell, sizes, batch, chunk * batch, &carver);
    for (int s = 0; s < cell.states; ++s) state[s] = carver.Take<float>(size);
    for (int s = 0; s < cell.factor_states; ++s) next[s] = carver.Take<float>(size);
    bytes = carver.used();
  }
};

// One time step of any B samples. All buffers are the caller's; those that the cell does not need
// may be null. A caller that picks samples gathers their rows into buffers of its own, projects
// them, calls Run, and scatters the states.
struct DenseStep {
  const CellKernel& cell;
  const Sizes& sizes;
  const DenseWeights& weights;
  const float* const* params;
  const float* x;   // (B, padded I), cells that read x itself only
  float* mid_sums;  // (B, blocks of M, mid gates, lanes): with the products with x
  float* sums;      // (B, blocks of H, other gates, lanes): likewise
  float* mid;       // (B, padded M)
  float* factor;    // (B, padded rank): Q h
  const GroupShorts& shorts;
  float** state;    // (B, padded H) each; Run exchanges the first ones with those of `next`
  float** next;     // (B, padded H) each, as many as weights multiply
  float* y;         // (B, H) or null

  void Run(std::int64_t batch) const {
    Factors from{x,
                 state[0],
                 state[cell.factor_states - 1],
                 mid,
                 0,
                 sizes.hidden,
                 sizes.hidden,
                 MidSize(cell, sizes)};
    if (sizes.rank > 0) {
      MultiplyFactor(sizes, weights.q, state[0], batch, sizes.hidden, factor);
      from.h = factor;
      from.h_end = sizes.rank;
    }
    if (cell.has_mid) RunPart(weights.mid, cell.mid, from, batch, mid_sums, &mid, 1);
    float* to[kMaxStates];
    // other tiles still multiply the old values of the first states
    for (int s = 0; s < cell.states; ++s) to[s] = s < cell.factor_states ? next[s] : state[s];
    RunPart(weights.update, cell.update, from, batch, sums, to, cell.states);
    for (int s = 0; s < cell.factor_states; ++s) {
      float* const before = state[s];
      state[s] = next[s];
      next[s] = before;
    }
    WriteState(state[0], batch, sizes.hidden, y);
  }

  // A group and what is made of it: `count` arrays `to` (B, padded size).
  void RunPart(const GroupWeights& group, void (*map)(const Points&), const Factors& from,
               std::int64_t batch, float* group_sums, float* const* to, int count) const {
    const std::int64_t wide = Padded(sizes.hidden), stride = group.group->all.count * kLanes;
    const std::int64_t x_wide = cell.reads_input ? Padded(sizes.input) : 0;
    const float* old[kMaxStates];
    float* made[kMaxStates];
    Points points{0, 0, nullptr, kLanes, stride, nullptr, params, old, made};
    std::int64_t pointed = -1;
    const auto point_at = [&](std::int64_t row) {
      points.x = x + row * x_wide;
      for (int s = 0; s < cell.states; ++s) old[s] = state[s] + row * wide;
      for (int s = 0; s < count; ++s) made[s] = to[s] + row * Padded(group.size);
      pointed = row;
    };
    RunGroup(group, from, batch, group.blocks(), shorts, group_sums,
             [&](std::int64_t row, std::int64_t rows, std::int64_t block, std::int64_t blocks,
                 Sums made_of) {
               points.first = block * kLanes;
               points.count = blocks;
               points.sums = made_of.at;
               for (const std::int64_t end = row + rows; row < end; ++row) {
                 if (row != pointed) point_at(row);
                 map(points);
                 points.sums += made_of.stride;
               }
             });
  }
};

struct Dense {
  static std::size_t PackedBytes(const Kernel& kernel, const Sizes& sizes) {
    return DenseWeights(*kernel.cell, sizes, nullptr).bytes;
  }

  static std::size_t ScratchBytes(const Kernel& kernel, const Sizes& sizes, std::int64_t steps,
                                  std::int64_t batch) {
    return DenseScratch(*kernel.cell, sizes, steps, batch, nullptr).bytes;
  }

  static void Pack(const Kernel& kernel, const Sizes& sizes, const Weights& from, void* packed) {
    DenseWeights(*kernel.cell, sizes, packed).Pack(*kernel.cell, sizes, from);
  }

  // Projects the inputs of `count` steps from step `from` on.
  static void Project(const CellKernel& cell, const Sizes& sizes, const DenseWeights& weights,
                      const Call& call, std::int64_t from, std::int64_t count,
                      const DenseScratch& scratch) {
    const std::int64_t rows = count * call.batch, columns = InputColumns(cell, sizes);
    const float* x = call.x + from * call.batch * sizes.input;
    if (cell.reads_input) ReadState(x, rows, sizes.input, scratch.x);
    if (cell.reads_last) {
      PairInputs(call, sizes.input, from, count, scratch.pairs);
      x = scratch.pairs;
    }
    weights.mid.Project(x, rows, columns, scratch.shorts, scratch.mid_sums);
    weights.update.Project(x, rows, columns, scratch.shorts, scratch.sums);
  }

  static void Run(const Kernel& kernel, const Sizes& sizes, const void* packed, const Call& call,
                  void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden, batch = call.batch;
    const DenseWeights weights(cell, sizes, const_cast<void*>(packed));
    const CallParams params(cell, weights.params, call.length);
    DenseScratch scratch(cell, sizes, call.steps, batch, base);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, hidden, scratch.state[s]);
    }
    DenseStep step{cell,          sizes,         weights,      params.at(), scratch.x,
                   nullptr,       nullptr,       scratch.mid,  scratch.factor, scratch.shorts,
                   scratch.state, scratch.next,  nullptr};
    for (std::int64_t t = 0; t < call.steps; ++t) {
      const std::int64_t place = t % scratch.chunk, left = call.steps - t;
      if (place == 0) {
        Project(cell, sizes, weights, call, t, left < scratch.chunk ? left : scratch.chunk,
                scratch);
      }
      const std::int64_t row = place * batch;
      if (cell.reads_input) step.x = scratch.x + row * Padded(sizes.input);
      step.mid_sums = scratch.mid_sums + row * weights.mid.Floats();
      step.sums = scratch.sums + row * weights.update.Floats();
      if (call.y != nullptr) step.y = call.y + t * batch * hidden;
      step.Run(batch);
    }
    for (int s = 0; s < cell.states; ++s) {
      WriteState(scratch.state[s], batch, hidden, call.state_out[s]);
    }
    if (cell.reads_last) WriteLast(call, sizes.input);
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_DENSE_H_
