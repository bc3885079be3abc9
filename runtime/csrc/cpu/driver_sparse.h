// SPDX-License-Identifier: Apache-2.0
// The driver of rules that select neurons: computes the pre-activations of the active set only.

#pragma once

#include "cpu/sparse_step.h"

namespace edgernn::EDGERNN_ISA {

// The ways of computing that are fastest for a chunk. They change no bit of a result.
struct ChunkChoice {
  bool update_ahead = false;  // W x of all neurons is computed for all steps at once
  bool mid_ahead = false;     // so is W x of the gates marked kMid
  bool shares_rows = false;   // samples share the gathered rows of neurons
};

// The work of a chunk so far.
struct ChunkWork {
  std::int64_t projected = 0;  // neurons whose W x was read from a product with a whole block
  std::int64_t busy = 0;       // steps of samples with active neurons
  std::int64_t gathered = 0;   // neurons whose rows were gathered, of all steps and samples
};

// The samples whose products wait for the end of the step.
struct WaitingSamples {
  std::int64_t blocks = 0;    // number of samples that wait for whole blocks
  std::int64_t rows[2] = {};  // that wait for rows: [0] with W x in them, [1] starting from W x
};

// Steps whose W x may be computed at once.
struct SparseChunk {
  const Kernel& kernel;
  const LayerSizes& sizes;
  const SparseWeights& weights;
  const float* const* params;
  const SparseScratch& scratch;
  const Call& call;
  std::int64_t first;  // row of x, (T, B) rows in total, where the chunk begins
  ChunkChoice choice;

  void WriteOutput(std::int64_t row, const float* h) const {
    if (call.y == nullptr) return;
    std::memcpy(call.y + (first + row) * sizes.hidden, h, Bytes(sizes.hidden));
  }
};

struct SparseDriver {
  // Measured: samples share rows if a neuron is active in this many of them on average.
  static constexpr std::int64_t kMinSharing = 3;
  // The smallest batch whose samples share rows in the first chunk, before their activity is known.
  static constexpr std::int64_t kMinShared = 24;

  static std::uint64_t PackedBytes(const Kernel& kernel, const LayerSizes& sizes) {
    return SparseWeights(kernel, sizes, nullptr).bytes;
  }

  static std::uint64_t ScratchBytes(const Kernel& kernel, const LayerSizes& sizes,
                                    std::int64_t steps, std::int64_t batch) {
    return SparseScratch(kernel, sizes, steps, batch, nullptr).bytes;
  }

  static std::uint64_t KeptBytes(const Kernel& kernel, const LayerSizes& sizes,
                                 std::int64_t batch) {
    return KeptMemory(kernel, sizes, batch, nullptr).bytes;
  }

  [[gnu::cold]] static void Pack(const Kernel& kernel, const LayerSizes& sizes, const Weights& from,
                                 void* packed) {
    const CellKernel& cell = *kernel.cell;
    const Selector& selector = *kernel.selector;
    const SparseWeights to(kernel, sizes, packed);
    selector.pack(sizes, from, to.rule);
    const Values* ranks = selector.ranks < 0 ? nullptr : &from.rule[selector.ranks];
    if (sizes.weights == NumberType::kFloat32) {
      PackFloat32Rows(cell, sizes, from, ranks, static_cast<float*>(to.rows));
    } else {
      PackLowPrecisionRows(cell, sizes, from, ranks, to.rows);
    }
    PackRowBiases(cell, sizes, from, false, to.row_b);
    if (to.min_projected <= sizes.hidden) {
      PackRowBiases(cell, sizes, from, true, to.row_b_without_x);
    }
    PackMatrix(from.q, sizes.rank, sizes.hidden, 1, to.q);
    to.mid.Pack(cell, sizes, from);
    to.kept.Pack(to.mid);
    to.dense.Pack(cell, sizes, from);
    to.params.Pack(cell, sizes, from);
  }

  // Computes bias and W x for `count` steps at once.
  static void ProjectAhead(const CellKernel& cell, const LayerSizes& sizes,
                           const SparseWeights& weights, const SparseScratch& scratch,
                           const Call& call, std::int64_t from, std::int64_t count,
                           ChunkChoice choice) {
    if (!choice.update_ahead && !choice.mid_ahead) return;
    const float* x = call.x + from * call.batch * sizes.input;
    if (cell.reads_last) {
      PairInputs(call, sizes.input, from, count, scratch.pairs);
      x = scratch.pairs;
    }
    const auto project = [&](const GroupWeights& group, float* to) {
      group.Project(x, count * call.batch, InputColumns(cell, sizes), scratch.quantized, to);
      const std::int64_t macs = count * group.InputMacs(cell, sizes);
      for (std::int64_t b = 0; b < call.batch; ++b) scratch.macs[b] += macs;
    };
    if (choice.update_ahead) project(weights.dense, scratch.projected);
    if (choice.mid_ahead) project(weights.mid, scratch.mid_projected);
  }

  // Runs `count` steps, after computing the rule's products with x for all of them, and those of
  // the cell that are computed ahead. Returns the fastest ways for the next chunk. Computed ahead,
  // W x takes 0.6 of the time that it takes step by step. But it is read only for neurons that
  // change, and W x of all neurons is read on some paths only.
  static ChunkChoice RunChunk(const Kernel& kernel, const LayerSizes& sizes,
                              const SparseWeights& weights, const float* const* params,
                              const SparseScratch& scratch, const Call& call, std::int64_t from,
                              std::int64_t count, ChunkChoice choice) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t first = from * call.batch, rows = count * call.batch;
    kernel.selector->project(sizes, weights.rule, call.x + first * sizes.input, rows, scratch.rule);
    ProjectAhead(cell, sizes, weights, scratch, call, from, count, choice);
    const SparseChunk chunk{kernel, sizes, weights, params, scratch, call, first, choice};
    ChunkWork work;
    for (std::int64_t row = 0; row < rows; row += call.batch) RunStep(chunk, row, &work);
    const std::int64_t columns = InputColumns(cell, sizes);
    ChunkChoice next;
    next.update_ahead = 5 * work.projected > 3 * rows * PadToLanes(sizes.hidden);
    next.shares_rows =
        cell.multiply_shared != nullptr && work.gathered > kMinSharing * count * sizes.hidden;
    next.mid_ahead = scratch.mid_projected != nullptr &&
                     5 * work.busy * (columns + SparseWeights::kMidOverhead) > 3 * rows * columns;
    return next;
  }

  // Runs one step of all samples, whose rows of the chunk begin at `row`.
  [[gnu::always_inline]] static void RunStep(const SparseChunk& chunk, std::int64_t row,
                                             ChunkWork* work) {
    const SparseScratch& scratch = chunk.scratch;
    const Kernel& kernel = chunk.kernel;
    WaitingSamples waiting;
    for (std::int64_t sample = 0; sample < chunk.call.batch; ++sample) {
      float** const state = scratch.state_of + sample * kMaxStates;
      float* memory[kMaxMemories];
      for (int i = 0; i < kernel.rule->memory_count; ++i) {
        const std::int64_t width = Width(kernel.rule->memories[i].extent, chunk.sizes);
        memory[i] = scratch.memory[i] + sample * PadToLanes(width);
      }
      ActiveSet active = kernel.selector->select(chunk.sizes, chunk.weights.rule, scratch.rule,
                                                 row + sample, state[0], memory);
      scratch.macs[sample] += active.macs;
      if (chunk.call.updates != nullptr)
        chunk.call.updates[chunk.first + row + sample] = active.count;
      bool waits = false;
      if (active.count > 0) {
        RunSample(chunk, row, sample, &active, work, &waiting, &waits);
        ++work->busy;
      }
      if (kernel.rule->memory_count > 0) {
        kernel.selector->advance_memory(chunk.sizes, chunk.weights.rule, scratch.rule,
                                        state[EvidenceState(kernel.cell->states)], memory);
      }
      if (!waits) chunk.WriteOutput(row + sample, state[0]);
    }
    if (waiting.blocks > 0) RunShared(chunk, row, waiting.blocks);
    if (chunk.choice.shares_rows) RunWaitingRows(chunk, row, waiting);
  }

  // Runs a step of one sample with active neurons, or adds it to the samples whose products are
  // computed together at the end of the step; then it `waits`.
  [[gnu::always_inline]] static void RunSample(const SparseChunk& chunk, std::int64_t row,
                                               std::int64_t sample, ActiveSet* active,
                                               ChunkWork* work, WaitingSamples* waiting,
                                               bool* waits) {
    const SparseWeights& weights = chunk.weights;
    const SparseScratch& scratch = chunk.scratch;
    const CellKernel& cell = *chunk.kernel.cell;
    const std::int64_t at = chunk.first + row + sample, input = chunk.sizes.input;
    std::int64_t& macs = scratch.macs[sample];
    float* const ahead = chunk.choice.update_ahead
                             ? scratch.projected + (row + sample) * weights.dense.Floats()
                             : nullptr;
    float* const mid_ahead = chunk.choice.mid_ahead
                                 ? scratch.mid_projected + (row + sample) * weights.mid.Floats()
                                 : nullptr;
    SparseStep step(cell, chunk.sizes, weights, chunk.params, scratch, *active, sample, ahead,
                    mid_ahead, scratch.state_of + sample * kMaxStates);
    const float* const last = cell.reads_last ? LastInput(chunk.call, at, input) : nullptr;
    macs += step.Prepare(chunk.call.x + at * input, last);
    if (chunk.kernel.selector->select_largest != nullptr) {
      chunk.kernel.selector->select_largest(chunk.sizes, scratch.rule, scratch.scores, active);
      step.neurons = active->neurons;
    }
    const SparsePath path = step.ChoosePath();
    if (path != SparsePath::kBlocks) {
      const bool starts_from_x = path == SparsePath::kProjected;
      work->gathered += active->count;
      if (starts_from_x) work->projected += PadToLanes(chunk.sizes.hidden);
      if (chunk.choice.shares_rows && CanShare(chunk.kernel, chunk.sizes, weights, *active)) {
        *waits = true;
        return WaitForRows(chunk, *active, starts_from_x,
                           {step.inputs, ahead, active->count, active->blocks, sample}, waiting);
      }
      if (!starts_from_x) {
        macs += step.RunRows(false);
      } else {
        macs += step.Project();
        macs += step.RunRows(true);
      }
      return;
    }
    *waits = chunk.call.batch > 1 && CanShare(chunk.kernel, chunk.sizes, weights, *active);
    // the next selection reuses the list
    if (*waits)
      active->lanes = scratch.KeepLanes(sample, Blocks(chunk.sizes.hidden), active->lanes);
    work->projected += step.CountBlocks() * kLanes;
    float** const next = scratch.next_of + sample * kMaxStates;
    if (weights.dense.sparse.stats->sparse) macs += step.Project();
    BlockSample* const of = scratch.samples + waiting->blocks;
    macs += step.MakeBlockSample(next, of);
    if (*waits) {
      scratch.waiting[waiting->blocks++] = static_cast<std::int32_t>(sample);
    } else {
      RunBlocks(cell, weights, chunk.params, scratch, step.inputs, of, 1);
      if (active->lanes == nullptr) {
        step.KeepListed(next);
      } else {
        KeepBlocks(cell, Blocks(chunk.sizes.hidden), *of);
      }
    }
  }

  // Computes the blocks of the `count` samples that wait.
  [[gnu::noinline]] static void RunShared(const SparseChunk& chunk, std::int64_t row,
                                          std::int64_t count) {
    const SparseScratch& scratch = chunk.scratch;
    const CellKernel& cell = *chunk.kernel.cell;
    MatmulInputs inputs =
        MakeMatmulInputs(cell, chunk.sizes, scratch.x, scratch.state_of, scratch.mid);
    if (chunk.sizes.rank > 0) inputs.h_end = chunk.sizes.rank;
    RunBlocks(cell, chunk.weights, chunk.params, scratch, inputs, scratch.samples, count);
    for (std::int64_t i = 0; i < count; ++i) {
      const BlockSample& of = scratch.samples[i];
      KeepBlocks(cell, Blocks(chunk.sizes.hidden), of);
      chunk.WriteOutput(row + scratch.waiting[i], of.state[0]);
    }
  }

  // Adds a sample to those whose gathered rows are computed at the end of the step.
  [[gnu::noinline]] static void WaitForRows(const SparseChunk& chunk, const ActiveSet& active,
                                            bool starts_from_x, WaitingRows rows,
                                            WaitingSamples* waiting) {
    chunk.scratch.KeepLanes(rows.sample, Blocks(chunk.sizes.hidden), active.lanes);
    if (starts_from_x) rows.inputs.x_end = 0;
    chunk.scratch.waiting_rows[starts_from_x][waiting->rows[starts_from_x]++] = rows;
  }

  // Computes the gathered rows of all samples that wait.
  [[gnu::noinline]] static void RunWaitingRows(const SparseChunk& chunk, std::int64_t row,
                                               const WaitingSamples& waiting) {
    for (const bool starts_from_x : {false, true}) {
      const std::int64_t count = waiting.rows[starts_from_x];
      for (std::int64_t first = 0; first < count; first += kMaxSharing) {
        const std::int64_t left = count - first;
        RunSharedRows(chunk, row, starts_from_x, first, left < kMaxSharing ? left : kMaxSharing);
      }
    }
  }

  // Computes the gathered rows of `count` samples that wait, from the first on.
  static void RunSharedRows(const SparseChunk& chunk, std::int64_t row, bool starts_from_x,
                            std::int64_t first, std::int64_t count) {
    const SparseScratch& scratch = chunk.scratch;
    const SparseWeights& weights = chunk.weights;
    const CellKernel& cell = *chunk.kernel.cell;
    const LayerSizes& sizes = chunk.sizes;
    const std::int64_t blocks = Blocks(sizes.hidden), stride = SparseScratch::SharedStride(sizes);
    const WaitingRows* const waiting = scratch.waiting_rows[starts_from_x] + first;
    std::memset(scratch.sharing, 0, static_cast<std::size_t>(sizes.hidden) * 8);
    const MatmulInputs* inputs[kMaxSharing];
    float* sums[kMaxSharing];
    for (std::int64_t i = 0; i < count; ++i) {
      inputs[i] = &waiting[i].inputs;
      sums[i] = scratch.shared_sums + i * cell.second_stage.all.count * stride;
      const LaneBits* const lanes = scratch.lanes + waiting[i].sample * blocks;
      for (std::int64_t block = 0; block < blocks; ++block) {
        std::uint64_t* const of = scratch.sharing + block * kLanes;
        for (LaneBits left = lanes[block]; left != 0; left &= left - 1) {
          of[__builtin_ctz(left)] |= std::uint64_t{1} << i;
        }
      }
    }
    cell.multiply_shared(cell, sizes,
                         {weights.Rows(starts_from_x), scratch.sharing, inputs, sums, stride});
    for (std::int64_t i = 0; i < count; ++i) {
      const WaitingRows& of = waiting[i];
      ActiveSet set{of.count, nullptr, 0};
      set.lanes = scratch.lanes + of.sample * blocks;
      set.blocks = of.blocks;
      float* const* const state = scratch.state_of + of.sample * kMaxStates;
      SparseStep step(cell, sizes, weights, chunk.params, scratch, set, of.sample, of.projected,
                      nullptr, state);
      step.inputs = of.inputs;
      std::int64_t& macs = scratch.macs[of.sample];
      if (starts_from_x) macs += step.Project();
      step.ListNeurons();
      step.sums = scratch.shared_sums + i * cell.second_stage.all.count * stride;
      step.sums_stride = stride;
      step.FinishRows(starts_from_x);
      macs += step.RowMacs();
      chunk.WriteOutput(row + of.sample, state[0]);
    }
  }

  // True if the products of several samples may be computed together: nothing else is written
  // between their decisions and their new states.
  static bool CanShare(const Kernel& kernel, const LayerSizes& sizes, const SparseWeights& weights,
                       const ActiveSet& active) {
    return active.lanes != nullptr && !kernel.rule->Remembers() &&
           sizes.weights == NumberType::kFloat32 && !weights.dense.sparse.stats->sparse;
  }

  // Computes the new states of the blocks of `count` samples.
  static void RunBlocks(const CellKernel& cell, const SparseWeights& weights,
                        const float* const* params, const SparseScratch& scratch,
                        const MatmulInputs& from, const BlockSample* samples, std::int64_t count) {
    MatmulInputs inputs = from;
    inputs.x = samples->operands[GroupProducts::kX];
    GroupProducts group(weights.dense, samples->starts == nullptr);
    group.Begin(inputs, 1, scratch.quantized, samples->lanes, samples->starts);
    BlockStep{cell, weights.dense, params, scratch.blocks, samples, count}.Run(group);
  }

  // Writes the new states of the active neurons to the states.
  static void KeepBlocks(const CellKernel& cell, std::int64_t blocks, const BlockSample& of) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (of.lanes[block] == 0) continue;
      for (int s = 0; s < cell.states; ++s) {
        const std::int64_t at = block * kLanes;
        StoreLanes(of.state[s] + at, Load(of.next[s] + at), of.lanes[block]);
      }
    }
  }

  static void Run(const Kernel& kernel, const LayerSizes& sizes, const void* packed,
                  const Call& call, void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t batch = call.batch;
    const SparseWeights& weights = SparseWeights::In(packed);
    const CallParams params(cell, weights.params, call.length);
    SparseScratch scratch(kernel, sizes, call.steps, batch, base);
    std::memset(base, 0, scratch.zeroed_bytes);
#ifdef EDGERNN_FILL_SCRATCH
    // fill with NaN and indices out of range, so that tests detect reads of uninitialised memory
    std::memset(static_cast<char*>(base) + scratch.zeroed_bytes, 0xff,
                static_cast<std::size_t>(scratch.bytes - scratch.zeroed_bytes));
#endif
    if (call.kept != nullptr) scratch.kept = KeptMemory(kernel, sizes, batch, call.kept);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, sizes.hidden, scratch.state[s]);
    }
    const auto width = [&](int i) { return Width(kernel.rule->memories[i].extent, sizes); };
    for (int i = 0; i < kernel.rule->memory_count; ++i) {
      ReadState(call.memory_in[i], batch, width(i), scratch.memory[i]);
    }
    for (std::int64_t k = 0; k < Blocks(sizes.hidden); ++k) scratch.all_lanes[k] = kAllLanes;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (int s = 0; s < cell.states; ++s) {
        scratch.state_of[b * kMaxStates + s] = scratch.state[s] + b * PadToLanes(sizes.hidden);
        scratch.next_of[b * kMaxStates + s] = scratch.next[s] + b * PadToLanes(sizes.hidden);
      }
    }
    ChunkChoice choice;
    choice.shares_rows = batch >= kMinShared && cell.multiply_shared != nullptr;
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      choice = RunChunk(kernel, sizes, weights, params.at(), scratch, call, from,
                        left < scratch.chunk ? left : scratch.chunk, choice);
    }
    for (int s = 0; s < cell.states; ++s) {
      WriteState(scratch.state[s], batch, sizes.hidden, call.state_out[s]);
    }
    if (cell.reads_last) WriteLast(call, sizes.input);
    for (int i = 0; i < kernel.rule->memory_count; ++i) {
      WriteState(scratch.memory[i], batch, width(i), call.memory_out[i]);
    }
    for (std::int64_t b = 0; b < batch; ++b) {
      if (call.macs != nullptr) call.macs[b] = scratch.macs[b];
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
