// SPDX-License-Identifier: Apache-2.0
// The driver of rules that select neurons: computes the pre-activations of the active set only.

#ifndef EDGERNN_CPU_DRIVER_SPARSE_H_
#define EDGERNN_CPU_DRIVER_SPARSE_H_

#include "cpu/driver_sparse_memory.h"
#include "cpu/state_copy.h"

namespace edgernn::EDGERNN_ISA {

// One time step of one sample.
struct SparseStep {
  const CellKernel& cell;
  const LayerSizes& sizes;
  const SparseWeights& weights;
  const float* const* params;
  const SparseScratch& scratch;
  const ActiveSet& active;
  std::int64_t sample;
  float* projected;             // bias and W x of all neurons (blocks, gates, lanes), or null
  float* const* state;          // (padded H,) each
  const std::int32_t* neurons;  // (count,), indices of the active neurons; or null
  float* x;                     // (padded I,), followed by the previous x in cells that read it
  float* mid;                   // (padded M,)
  // (padded H,) each: `state`, or masked copies if the rule has masks
  float* cell_state[kMaxStates] = {};
  MatmulInputs inputs{};

  SparseStep(const CellKernel& cell, const LayerSizes& sizes, const SparseWeights& weights,
             const float* const* params, const SparseScratch& scratch, const ActiveSet& active,
             std::int64_t sample, float* projected, float* const* state)
      : cell(cell),
        sizes(sizes),
        weights(weights),
        params(params),
        scratch(scratch),
        active(active),
        sample(sample),
        projected(projected),
        state(state),
        neurons(active.neurons),
        x(scratch.x + sample * PadToLanes(sizes.input) * InputCount(cell)),
        mid(scratch.mid + sample * PadToLanes(MidSize(cell, sizes))) {}

  // Copies x into padded scratch, applies the rule's masks and computes Q h. Returns the
  // multiply-adds.
  std::int64_t LoadInputs(const float* now, const float* last) {
    inputs = MakeMatmulInputs(cell, sizes, x, state, mid);
    std::memcpy(x, now, Bytes(sizes.input));
    if (cell.reads_last) std::memcpy(x + PadToLanes(sizes.input), last, Bytes(sizes.input));
    for (int s = 0; s < cell.states; ++s) cell_state[s] = state[s];
    if (active.x_mask != nullptr) ApplyMasks();
    if (sizes.rank == 0) return 0;
    const std::int64_t macs = sizes.rank * inputs.h_end;
    float* const qh = scratch.qh + sample * PadToLanes(sizes.rank);
    MultiplyQ(sizes, weights.q, inputs.h, 1, inputs.h_end, qh);
    ClearPadding(qh, sizes.rank);
    inputs.h = qh;
    inputs.h_end = sizes.rank;
    return macs;
  }

  // Rows are multiplied including their padding, whose weights are 0: an infinity there gives NaN.
  static void ClearPadding(float* from, std::int64_t size) {
    std::memset(from + size, 0, Bytes(PadToLanes(size) - size));
  }

  // Applies the rule's masks to x and the states.
  void ApplyMasks() {
    inputs.x_end = active.x_end;
    inputs.h_end = inputs.c_end = active.state_end;
    for (int part = 0; part < InputCount(cell); ++part) {
      float* to = x + part * PadToLanes(sizes.input);
      Mask(to, active.x_mask, active.x_end, PadToLanes(sizes.input), to);
    }
    for (int s = 0; s < cell.states; ++s) {
      cell_state[s] = scratch.masked[s];
      Mask(state[s], active.state_mask, active.state_end, PadToLanes(sizes.hidden), cell_state[s]);
    }
    inputs.h = cell_state[0];
    inputs.c = cell_state[cell.factor_states - 1];
    if (cell.mid_vanishes) inputs.m_end = active.state_end;
  }

  static void Mask(const float* from, const float* mask, std::int64_t end, std::int64_t padded,
                   float* to) {
    for (std::int64_t i = 0; i < end; ++i) to[i] = from[i] * mask[i];
    std::memset(to + end, 0, Bytes(padded - end));
  }

  // Computes the first m_end elements of m. Returns the multiply-adds.
  std::int64_t ComputeMid() {
    const GateGroup& group = cell.mid_gates;
    const std::int64_t size = inputs.m_end, blocks = Blocks(size);
    weights.mid.Project(inputs.x, 1, inputs.x_end, scratch.quantized, scratch.mid_sums);
    PointwiseArgs args{};
    args.cell = &cell;
    args.gate_stride = kLanes;
    args.stride = group.all.count * kLanes;
    args.x = inputs.x;
    args.params = params;
    args.state = cell_state;
    args.to = &mid;
    RunGroup(cell, weights.mid, inputs, 1, blocks, scratch.quantized, scratch.mid_sums,
             [&](std::int64_t, std::int64_t, std::int64_t block, std::int64_t count, Sums sums) {
               args.first = block * kLanes;
               args.count = count;
               args.sums = sums.at;
               cell.mid(args);
             });
    ClearPadding(mid, size);
    return size * (inputs.x_end * group.x.count + inputs.h_end * group.h.count);
  }

  // Computes the pre-activations of the active neurons, stored contiguously.
  void Multiply() const {
    const std::int64_t stride = PadToLanes(sizes.hidden);
    if (sizes.weights == NumberType::kInt8) Quantize();
    for (std::int64_t first = 0, end = active.count; first < active.count; first = end) {
      const std::int64_t begin = Begin(first);
      // neighbouring neurons usually start at the same column
      if (active.starts != nullptr) {
        for (end = first + 1; end < active.count && Begin(end) == begin;) ++end;
      }
      GatherArgs args{};
      args.inputs = &inputs;
      args.begin = begin;
      args.rows = weights.rows;
      args.b = weights.row_b;
      args.neurons = neurons + first;
      args.count = end - first;
      args.sums = scratch.sums + first;
      args.stride = stride;
      if (sizes.weights == NumberType::kFloat32) {
        cell.multiply(cell, sizes, args);
      } else {
        MultiplyLowPrecisionNeurons(cell, sizes, args, scratch.parts);
      }
    }
  }

  // Quantizes the inputs of the gathered products with int8 weights.
  void Quantize() const {
    const GateGroup& group = cell.update_gates;
    const auto read = [&](int part, const GateList& gates, const float* from, std::int64_t end,
                          std::int64_t depth) {
      if (gates.count > 0) scratch.parts[part].Read(from, 0, 1, end, depth);
    };
    read(0, group.x, inputs.x, inputs.x_end, sizes.input);
    if (cell.reads_last) {
      read(1, group.x, inputs.x + PadToLanes(sizes.input), inputs.x_end, sizes.input);
    }
    read(2, group.h, inputs.h, inputs.h_end, RecurrentColumns(sizes));
    read(3, group.c, inputs.c, inputs.c_end, sizes.hidden);
    read(4, group.m, inputs.m, inputs.m_end, MidSize(cell, sizes));
  }

  // True if whole blocks of neurons are faster than single ones. Measured: a gathered neuron takes
  // 1.3 times as long as a neuron of a block. The choice must not depend on the batch: a sample has
  // the same results in any batch.
  bool PrefersBlocks() const {
    return active.starts == nullptr && active.x_mask == nullptr &&
           4 * active.count > 3 * kLanes * CountBlocks();
  }

  // The number of blocks with active neurons; all, if the rule lists neurons.
  std::int64_t CountBlocks() const {
    return active.lanes == nullptr ? Blocks(sizes.hidden) : active.blocks;
  }

  // Describes the sample's part of a step of blocks. Returns the multiply-adds.
  std::int64_t MakeBlockSample(float* const* next, BlockSample* to) const {
    const float* input = inputs.x;
    if (cell.reads_last && projected == nullptr) {
      float* const pair = scratch.pair + sample * 2 * sizes.input;
      std::memcpy(pair, x, Bytes(sizes.input));
      std::memcpy(pair + sizes.input, x + PadToLanes(sizes.input), Bytes(sizes.input));
      input = pair;
    }
    const LaneBits* const lanes = active.lanes == nullptr ? scratch.all_lanes : active.lanes;
    *to = {lanes, {input, inputs.h, inputs.c, inputs.m}, inputs.x, projected, state, next};
    return weights.dense.BlockMacs(cell, sizes, lanes, projected == nullptr);
  }

  // Writes the new states of the listed neurons, at their places in `next`, to `state`.
  void KeepListed(float* const* next) const {
    for (int s = 0; s < cell.states; ++s) {
      for (std::int64_t i = 0; i < active.count; ++i) scratch.gathered[s][i] = next[s][neurons[i]];
    }
    Scatter();
  }

  // The first column of the states that the i-th active neuron reads, rounded down to a vector.
  std::int64_t Begin(std::int64_t i) const {
    return active.starts == nullptr ? 0 : active.starts[neurons[i]] & -kLanes;
  }

  // Computes the new states of the active neurons, stored contiguously.
  void Update() const {
    const std::int64_t count = active.count;
    const auto gather = [&](const float* from, float* to) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[neurons[i]];
    };
    for (int s = 0; s < cell.states; ++s) gather(cell_state[s], scratch.gathered[s]);
    const float* neuron_params[kMaxParams];
    for (int i = 0; i < cell.params; ++i) {
      neuron_params[i] = params[i];
      if (!BlockBuffers::HasNeurons(cell, i)) continue;
      gather(params[i], scratch.gathered_param[i]);
      neuron_params[i] = scratch.gathered_param[i];
    }
    if (cell.square) gather(inputs.x, scratch.gathered_x);
    PointwiseArgs args{};
    args.cell = &cell;
    args.count = Blocks(count);
    args.sums = scratch.sums;
    args.gate_stride = PadToLanes(sizes.hidden);
    args.stride = kLanes;
    args.x = scratch.gathered_x;
    args.params = neuron_params;
    args.state = scratch.gathered;
    args.to = scratch.gathered;
    cell.update(args);
  }

  // Writes the new states of the active neurons to `state`, blended if the rule says so.
  void Scatter() const {
    const std::int64_t count = active.count;
    const float* const blend = active.blend;
    for (int s = 0; s < cell.states; ++s) {
      const float* const now = scratch.gathered[s];
      float* const to = state[s];
      if (blend == nullptr && count == sizes.hidden) {
        std::memcpy(to, now, Bytes(count));
      } else if (blend == nullptr) {
        for (std::int64_t i = 0; i < count; ++i) to[neurons[i]] = now[i];
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          float& old = to[neurons[i]];
          old = blend[i] * now[i] + (1.0f - blend[i]) * old;
        }
      }
    }
  }

  // Lists the active neurons.
  void ListNeurons() {
    std::int64_t count = 0;
    for (std::int64_t block = 0; block < Blocks(sizes.hidden); ++block) {
      count += AppendLanes(active.lanes[block], static_cast<std::int32_t>(block * kLanes),
                           scratch.neurons + count);
    }
    neurons = scratch.neurons;
  }

  // Computes the inputs of the products from x and the previous x, (I,) each. Returns the
  // multiply-adds.
  std::int64_t Prepare(const float* now, const float* last) {
    const std::int64_t macs = LoadInputs(now, last);
    return macs + (cell.has_mid ? ComputeMid() : 0);
  }

  // Computes the active neurons one by one. Returns the multiply-adds.
  std::int64_t RunNeurons() {
    if (active.neurons == nullptr) ListNeurons();
    Multiply();
    Update();
    Scatter();
    const GateGroup& group = cell.update_gates;
    const std::int64_t count = active.count;
    return (count * inputs.h_end - active.unread) * group.h.count +
           (count * inputs.c_end - active.unread) * group.c.count +
           count * (inputs.x_end * group.x.count * InputCount(cell) + inputs.m_end * group.m.count);
  }
};

struct SparseDriver {
  static std::uint64_t PackedBytes(const Kernel& kernel, const LayerSizes& sizes) {
    return SparseWeights(kernel, sizes, nullptr).bytes;
  }

  static std::uint64_t ScratchBytes(const Kernel& kernel, const LayerSizes& sizes,
                                    std::int64_t steps, std::int64_t batch) {
    return SparseScratch(kernel, sizes, steps, batch, nullptr).bytes;
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
    PackRowBiases(cell, sizes, from, to.row_b);
    PackMatrix(from.q, sizes.rank, sizes.hidden, 1, to.q);
    to.mid.Pack(cell, sizes, from);
    to.dense.Pack(cell, sizes, from);
    to.params.Pack(cell, sizes, from);
  }

  // Computes bias and W x of all neurons for `count` steps at once, in half the time of single
  // steps.
  static void ProjectAhead(const CellKernel& cell, const LayerSizes& sizes,
                           const SparseWeights& weights, const SparseScratch& scratch,
                           const Call& call, std::int64_t from, std::int64_t count) {
    const float* x = call.x + from * call.batch * sizes.input;
    if (cell.reads_last) {
      PairInputs(call, sizes.input, from, count, scratch.pairs);
      x = scratch.pairs;
    }
    weights.dense.Project(x, count * call.batch, InputColumns(cell, sizes), scratch.quantized,
                          scratch.projected);
    const std::int64_t macs = count * weights.dense.InputMacs(cell, sizes);
    for (std::int64_t b = 0; b < call.batch; ++b) scratch.macs[b] += macs;
  }

  // Runs `count` steps, after computing the rule's products with x for all of them, and the cell's
  // if `ahead`. Returns whether that pays for the next steps: all of these products take half the
  // time that they take step by step, and only blocks read them.
  static bool RunChunk(const Kernel& kernel, const LayerSizes& sizes, const SparseWeights& weights,
                       const float* const* params, const SparseScratch& scratch, const Call& call,
                       std::int64_t from, std::int64_t count, bool ahead) {
    const std::int64_t first = from * call.batch, rows = count * call.batch;
    kernel.selector->project(sizes, weights.rule, call.x + first * sizes.input, rows, scratch.rule);
    if (ahead) ProjectAhead(*kernel.cell, sizes, weights, scratch, call, from, count);
    std::int64_t in_blocks = 0;
    for (std::int64_t row = 0; row < rows; row += call.batch) {
      in_blocks += RunStep(kernel, sizes, weights, params, scratch, call, first, row, ahead);
    }
    return 2 * in_blocks > rows * sizes.hidden;
  }

  // Runs one step of all samples, whose rows of the chunk begin at `row`. Returns the number of
  // neurons that were computed in blocks.
  [[gnu::always_inline]] static std::int64_t RunStep(const Kernel& kernel, const LayerSizes& sizes,
                                                     const SparseWeights& weights,
                                                     const float* const* params,
                                                     const SparseScratch& scratch, const Call& call,
                                                     std::int64_t first, std::int64_t row,
                                                     bool ahead) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden;
    // samples whose blocks are computed together at the end of the step
    std::int64_t shared = 0, in_blocks = 0;
    for (std::int64_t sample = 0; sample < call.batch; ++sample) {
      const std::int64_t at = first + row + sample;
      float** const state = scratch.state_of + sample * kMaxStates;
      float* memory[kMaxMemories];
      for (int i = 0; i < kernel.rule->memory_count; ++i) {
        const std::int64_t width = Width(kernel.rule->memories[i].extent, sizes);
        memory[i] = scratch.memory[i] + sample * PadToLanes(width);
      }
      ActiveSet active = kernel.selector->select(sizes, weights.rule, scratch.rule, row + sample,
                                                 state[0], memory);
      float* const projected =
          ahead ? scratch.projected + (row + sample) * weights.dense.Floats() : nullptr;
      SparseStep step(cell, sizes, weights, params, scratch, active, sample, projected, state);
      scratch.macs[sample] += active.macs;
      if (call.updates != nullptr) call.updates[at] = active.count;
      bool waits = false;
      if (active.count > 0) {
        const float* const last = cell.reads_last ? LastInput(call, at, sizes.input) : nullptr;
        scratch.macs[sample] += step.Prepare(call.x + at * sizes.input, last);
        if (!step.PrefersBlocks()) {
          scratch.macs[sample] += step.RunNeurons();
        } else {
          in_blocks += step.CountBlocks() * kLanes;
          float** const next = scratch.next_of + sample * kMaxStates;
          waits = call.batch > 1 && CanShare(kernel, sizes, weights, active);
          // the next selection reuses the list
          if (waits) {
            LaneBits* const lanes = scratch.lanes + sample * Blocks(hidden);
            for (std::int64_t k = 0; k < Blocks(hidden); ++k) lanes[k] = active.lanes[k];
            active.lanes = lanes;
          }
          if (weights.dense.sparse.stats->sparse && projected == nullptr) {
            step.projected = scratch.sums;
            scratch.macs[sample] += weights.dense.InputMacs(cell, sizes);
            weights.dense.Project(step.inputs.x, 1, InputColumns(cell, sizes), scratch.quantized,
                                  scratch.sums);
          }
          BlockSample* const of = scratch.samples + shared;
          scratch.macs[sample] += step.MakeBlockSample(next, of);
          if (waits) {
            scratch.waiting[shared++] = static_cast<std::int32_t>(sample);
          } else {
            RunBlocks(cell, weights, params, scratch, step.inputs, of, 1);
            if (active.lanes == nullptr) {
              step.KeepListed(next);
            } else {
              KeepBlocks(cell, Blocks(hidden), *of);
            }
          }
        }
      }
      if (kernel.rule->memory_count > 0) {
        kernel.selector->advance_memory(sizes, weights.rule, scratch.rule,
                                        state[EvidenceState(cell.states)], memory);
      }
      if (call.y != nullptr && !waits) std::memcpy(call.y + at * hidden, state[0], Bytes(hidden));
    }
    if (shared == 0) return in_blocks;
    MatmulInputs inputs = MakeMatmulInputs(cell, sizes, scratch.x, scratch.state_of, scratch.mid);
    if (sizes.rank > 0) inputs.h_end = sizes.rank;
    RunBlocks(cell, weights, params, scratch, inputs, scratch.samples, shared);
    for (std::int64_t i = 0; i < shared; ++i) {
      const BlockSample& of = scratch.samples[i];
      KeepBlocks(cell, Blocks(hidden), of);
      const std::int64_t at = first + row + scratch.waiting[i];
      if (call.y != nullptr) std::memcpy(call.y + at * hidden, of.state[0], Bytes(hidden));
    }
    return in_blocks;
  }

  // True if the blocks of several samples may be computed together: nothing else is written between
  // their decisions and their new states.
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
    const GroupProducts group(weights.dense, inputs, 1, samples->starts == nullptr,
                              scratch.quantized, samples->lanes, samples->starts);
    BlockStep{cell, weights.dense, params, scratch.blocks, samples}.Run(group, count);
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
    const SparseWeights weights(kernel, sizes, const_cast<void*>(packed));
    const CallParams params(cell, weights.params, call.length);
    const SparseScratch scratch(kernel, sizes, call.steps, batch, base);
    std::memset(base, 0, scratch.zeroed_bytes);
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
    bool ahead = false;
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      ahead = RunChunk(kernel, sizes, weights, params.at(), scratch, call, from,
                       left < scratch.chunk ? left : scratch.chunk, ahead);
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

#endif  // EDGERNN_CPU_DRIVER_SPARSE_H_
