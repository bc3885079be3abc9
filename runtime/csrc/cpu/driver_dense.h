// SPDX-License-Identifier: Apache-2.0
// The driver of the rule `always`: updates every neuron at every step.

#pragma once

#include "cpu/gate_group.h"
#include "cpu/state_copy.h"

namespace edgernn::EDGERNN_ISA {

// The packed weights of a layer. They begin with this list of their parts.
struct DenseWeights {
  GroupWeights mid;     // gates marked kMid
  GroupWeights update;  // all other gates
  float* q;             // packed matrix
  PackedParams params;
  std::uint64_t bytes;

  DenseWeights(const CellTable& cell, const LayerSizes& sizes, void* base) {
    Arena arena(base);
    DenseWeights* const list = arena.Allocate<DenseWeights>(1);
    mid.Allocate(cell, cell.first_stage, MidSize(cell, sizes), sizes, false, &arena);
    update.Allocate(cell, cell.second_stage, sizes.hidden, sizes, false, &arena);
    q = arena.Allocate<float>(PadToLanes(sizes.rank) * sizes.hidden);
    params.Allocate(cell, sizes, &arena);
    bytes = arena.used();
    if (list != nullptr) *list = *this;
  }

  static const DenseWeights& In(const void* packed) {
    return *static_cast<const DenseWeights*>(packed);
  }

  void Pack(const CellKernel& cell, const LayerSizes& sizes, const Weights& from,
            bool drops_zeros = true) const {
    mid.Pack(cell, sizes, from, drops_zeros);
    update.Pack(cell, sizes, from, drops_zeros);
    PackMatrix(from.q, sizes.rank, sizes.hidden, 1, q);
    params.Pack(cell, sizes, from);
  }

  // The multiply-adds of one step of one sample.
  std::int64_t Macs(const CellTable& cell, const LayerSizes& sizes) const {
    return mid.Macs(cell, sizes) + update.Macs(cell, sizes) + sizes.rank * sizes.hidden;
  }
};

struct DenseScratch {
  std::int64_t chunk;
  float* x;                   // (chunk, B, padded I), only for cells that read x itself
  float* pairs;               // (chunk, B, 2I): x_t and x_{t-1}, only for cells that read both
  float* mid_sums;            // (chunk, B, blocks of M, mid gates, lanes)
  float* sums;                // (chunk, B, blocks of H, other gates, lanes)
  float* mid;                 // (B, padded M)
  float* qh;                  // (B, padded rank): Q h
  QuantizedInputs quantized;  // (chunk, B) rows for x, B rows for the others
  float* state[kMaxStates];   // (B, padded H) each
  float* next[kMaxStates];    // (B, padded H) each, only for states that weights multiply
  std::uint64_t bytes;

  DenseScratch(const CellTable& cell, const LayerSizes& sizes, std::int64_t steps,
               std::int64_t batch, void* base) {
    const std::int64_t size = batch * PadToLanes(sizes.hidden);
    const std::int64_t mid_size = batch * PadToLanes(MidSize(cell, sizes));
    Arena arena(base);
    chunk = ChunkSteps(steps, batch);
    x = arena.Allocate<float>(cell.reads_input ? chunk * batch * PadToLanes(sizes.input) : 0);
    pairs = arena.Allocate<float>(cell.reads_last ? chunk * batch * 2 * sizes.input : 0);
    mid_sums = arena.Allocate<float>(chunk * mid_size * cell.first_stage.all.count);
    sums = arena.Allocate<float>(chunk * size * cell.second_stage.all.count);
    mid = arena.Allocate<float>(cell.has_mid ? mid_size : 0);
    qh = arena.Allocate<float>(batch * PadToLanes(sizes.rank));
    quantized.Allocate(cell, sizes, batch, chunk * batch, &arena);
    for (int s = 0; s < cell.states; ++s) state[s] = arena.Allocate<float>(size);
    for (int s = 0; s < cell.factor_states; ++s) next[s] = arena.Allocate<float>(size);
    bytes = arena.used();
  }
};

// The products of the groups, which all steps of a call share.
struct DenseProducts {
  GroupProducts mid;
  GroupProducts update;

  explicit DenseProducts(const DenseWeights& weights)
      : mid(weights.mid, false), update(weights.update, false) {}
};

// One time step of B samples. The caller owns all buffers; those that the cell does not need may be
// null. To run a subset of samples, the caller gathers their rows into these buffers, projects
// them, calls Run, and scatters the states.
struct DenseStep {
  const CellKernel& cell;
  const LayerSizes& sizes;
  const DenseWeights& weights;
  DenseProducts& products;
  const float* const* params;
  const float* x;   // (B, padded I), only for cells that read x itself
  float* mid_sums;  // (B, blocks of M, mid gates, lanes): on entry, bias and W x
  float* sums;      // (B, blocks of H, other gates, lanes): on entry, bias and W x
  float* mid;       // (B, padded M)
  float* qh;        // (B, padded rank): Q h
  const QuantizedInputs& quantized;
  float** state;  // (B, padded H) each; Run swaps the states that weights multiply with `next`
  float** next;   // (B, padded H) each
  float* y;       // (B, H) or null

  // Uses the buffers of `scratch`.
  DenseStep(const CellKernel& cell, const LayerSizes& sizes, const DenseWeights& weights,
            const float* const* params, DenseProducts* products, DenseScratch* scratch)
      : cell(cell),
        sizes(sizes),
        weights(weights),
        products(*products),
        params(params),
        x(scratch->x),
        mid_sums(scratch->mid_sums),
        sums(scratch->sums),
        mid(scratch->mid),
        qh(scratch->qh),
        quantized(scratch->quantized),
        state(scratch->state),
        next(scratch->next),
        y(nullptr) {}

  void Run(std::int64_t batch) const {
    MatmulInputs from = MakeMatmulInputs(cell, sizes, x, state, mid);
    if (sizes.rank > 0) {
      MultiplyQ(sizes, weights.q, state[0], batch, sizes.hidden, qh);
      from.h = qh;
      from.h_end = sizes.rank;
    }
    if (cell.has_mid) {
      RunPart(weights.mid, &products.mid, cell.mid, from, batch, mid_sums, &mid, 1);
    }
    float* to[kMaxStates];
    // states that weights multiply go to `next`: later tiles still read their old values
    for (int s = 0; s < cell.states; ++s) to[s] = s < cell.factor_states ? next[s] : state[s];
    RunPart(weights.update, &products.update, cell.update, from, batch, sums, to, cell.states);
    for (int s = 0; s < cell.factor_states; ++s) {
      float* const before = state[s];
      state[s] = next[s];
      next[s] = before;
    }
    WriteState(state[0], batch, sizes.hidden, y);
  }

  // Computes the pre-activations of a group and maps them to `count` arrays `to` (B, padded size).
  void RunPart(const GroupWeights& group, GroupProducts* group_products,
               void (*map)(const PointwiseArgs&), const MatmulInputs& from, std::int64_t batch,
               float* group_sums, float* const* to, int count) const {
    const std::int64_t wide = PadToLanes(sizes.hidden), stride = group.group->all.count * kLanes;
    const std::int64_t x_wide = cell.reads_input ? PadToLanes(sizes.input) : 0;
    const float* old[kMaxStates];
    float* results[kMaxStates];
    PointwiseArgs args{};
    args.cell = &cell;
    args.gate_stride = kLanes;
    args.stride = stride;
    args.params = params;
    args.state = old;
    args.to = results;
    std::int64_t current_row = -1;
    const auto set_row = [&](std::int64_t row) {
      args.x = x + row * x_wide;
      for (int s = 0; s < cell.states; ++s) old[s] = state[s] + row * wide;
      for (int s = 0; s < count; ++s) results[s] = to[s] + row * PadToLanes(group.size);
      current_row = row;
    };
    RunGroup(
        cell, from, batch, group.blocks(), quantized, group_sums,
        [&](std::int64_t row, std::int64_t rows, std::int64_t block, std::int64_t blocks,
            Sums tile_sums) {
          args.first = block * kLanes;
          args.count = blocks;
          args.sums = tile_sums.at;
          for (const std::int64_t end = row + rows; row < end; ++row) {
            if (row != current_row) set_row(row);
            map(args);
            args.sums += tile_sums.stride;
          }
        },
        group_products);
  }
};

struct DenseDriver {
  static std::uint64_t PackedBytes(const Kernel& kernel, const LayerSizes& sizes) {
    return DenseWeights(*kernel.cell, sizes, nullptr).bytes;
  }

  static std::uint64_t ScratchBytes(const Kernel& kernel, const LayerSizes& sizes,
                                    std::int64_t steps, std::int64_t batch) {
    return DenseScratch(*kernel.cell, sizes, steps, batch, nullptr).bytes;
  }

  static std::uint64_t KeptBytes(const Kernel&, const LayerSizes&, std::int64_t) { return 0; }

  static void Pack(const Kernel& kernel, const LayerSizes& sizes, const Weights& from,
                   void* packed) {
    DenseWeights(*kernel.cell, sizes, packed).Pack(*kernel.cell, sizes, from);
  }

  // Computes bias and W x of `count` steps, from step `from` on.
  static void Project(const CellKernel& cell, const LayerSizes& sizes, const DenseWeights& weights,
                      const Call& call, std::int64_t from, std::int64_t count,
                      const DenseScratch& scratch) {
    const std::int64_t rows = count * call.batch, columns = InputColumns(cell, sizes);
    const float* x = call.x + from * call.batch * sizes.input;
    if (cell.reads_input) ReadState(x, rows, sizes.input, scratch.x);
    if (cell.reads_last) {
      PairInputs(call, sizes.input, from, count, scratch.pairs);
      x = scratch.pairs;
    }
    weights.mid.Project(x, rows, columns, scratch.quantized, scratch.mid_sums);
    weights.update.Project(x, rows, columns, scratch.quantized, scratch.sums);
  }

  static void Run(const Kernel& kernel, const LayerSizes& sizes, const void* packed,
                  const Call& call, void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden, batch = call.batch;
    const DenseWeights& weights = DenseWeights::In(packed);
    const CallParams params(cell, weights.params, call.length);
    DenseScratch scratch(cell, sizes, call.steps, batch, base);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, hidden, scratch.state[s]);
    }
    DenseProducts products(weights);
    DenseStep step(cell, sizes, weights, params.at(), &products, &scratch);
    for (std::int64_t t = 0; t < call.steps; ++t) {
      const std::int64_t chunk_step = t % scratch.chunk, left = call.steps - t;
      if (chunk_step == 0) {
        Project(cell, sizes, weights, call, t, left < scratch.chunk ? left : scratch.chunk,
                scratch);
      }
      const std::int64_t row = chunk_step * batch;
      if (cell.reads_input) step.x = scratch.x + row * PadToLanes(sizes.input);
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
