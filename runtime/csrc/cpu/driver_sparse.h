// SPDX-License-Identifier: Apache-2.0
// Runs a cell under a rule that selects neurons; only the active ones are computed.

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
  float* ahead;         // the sums of `whole` with their products with x, or null: none yet
  float* const* state;  // (padded H,) each
  float* seen[kMaxStates] = {};  // (padded H,) each: `state`, or where the rule masks it, masked
  Factors factors{};

  SparseStep(const CellKernel& cell, const LayerSizes& sizes, const SparseWeights& weights,
             const float* const* params, const SparseScratch& scratch, const ActiveSet& active,
             float* ahead, float* const* state)
      : cell(cell),
        sizes(sizes),
        weights(weights),
        params(params),
        scratch(scratch),
        active(active),
        ahead(ahead),
        state(state) {}

  // Copies x into the padded scratch and applies the rule's masks. Returns the multiply-adds.
  std::int64_t Stage(const float* x, const float* last) {
    factors = MakeFactors(cell, sizes, scratch.x, state, scratch.mid);
    std::memcpy(scratch.x, x, Bytes(sizes.input));
    if (cell.reads_last) std::memcpy(scratch.x + PadToLanes(sizes.input), last, Bytes(sizes.input));
    for (int s = 0; s < cell.states; ++s) seen[s] = state[s];
    if (active.x_mask != nullptr) MaskAll();
    if (sizes.rank == 0) return 0;
    const std::int64_t macs = sizes.rank * factors.h_end;
    MultiplyFactor(sizes, weights.q, factors.h, 1, factors.h_end, scratch.factor);
    ClearPadding(scratch.factor, sizes.rank);
    factors.h = scratch.factor;
    factors.h_end = sizes.rank;
    return macs;
  }

  // An infinite number times the 0 weights of the padding is NaN, and rows are read padding and
  // all.
  static void ClearPadding(float* from, std::int64_t size) {
    std::memset(from + size, 0, Bytes(PadToLanes(size) - size));
  }

  // The cell sees x and the states masked.
  void MaskAll() {
    factors.x_end = active.x_end;
    factors.h_end = factors.c_end = active.state_end;
    for (int part = 0; part < InputCount(cell); ++part) {
      float* to = scratch.x + part * PadToLanes(sizes.input);
      Mask(to, active.x_mask, active.x_end, PadToLanes(sizes.input), to);
    }
    for (int s = 0; s < cell.states; ++s) {
      seen[s] = scratch.masked[s];
      Mask(state[s], active.state_mask, active.state_end, PadToLanes(sizes.hidden), seen[s]);
    }
    factors.h = seen[0];
    factors.c = seen[cell.factor_states - 1];
    if (cell.mid_vanishes) factors.m_end = active.state_end;
  }

  static void Mask(const float* from, const float* mask, std::int64_t end, std::int64_t padded,
                   float* to) {
    for (std::int64_t i = 0; i < end; ++i) to[i] = from[i] * mask[i];
    std::memset(to + end, 0, Bytes(padded - end));
  }

  // The first m_end of m. Returns the multiply-adds.
  std::int64_t MakeMid() const {
    const GateGroup& group = cell.mid_gates;
    const std::int64_t size = factors.m_end, blocks = Blocks(size);
    weights.mid.Project(factors.x, 1, factors.x_end, scratch.quantized, scratch.mid_sums);
    PointwiseArgs points{};
    points.cell = &cell;
    points.gate_stride = kLanes;
    points.stride = group.all.count * kLanes;
    points.x = factors.x;
    points.params = params;
    points.state = seen;
    points.to = &scratch.mid;
    RunGroup(cell, weights.mid, factors, 1, blocks, scratch.quantized, scratch.mid_sums,
             [&](std::int64_t, std::int64_t, std::int64_t block, std::int64_t count, Sums sums) {
               points.first = block * kLanes;
               points.count = count;
               points.sums = sums.at;
               cell.mid(points);
             });
    ClearPadding(scratch.mid, size);
    return size * (factors.x_end * group.x.count + factors.h_end * group.h.count);
  }

  // The pre-activations of all active neurons, side by side.
  void Multiply() const {
    const std::int64_t stride = PadToLanes(sizes.hidden);
    if (sizes.weights == NumberType::kInt8) Quantize();
    for (std::int64_t first = 0, end = active.count; first < active.count; first = end) {
      const std::int64_t begin = Begin(first);
      // neighbouring neurons mostly start at the same column
      if (active.starts != nullptr) {
        for (end = first + 1; end < active.count && Begin(end) == begin;) ++end;
      }
      NeuronSums sums{};
      sums.factors = &factors;
      sums.begin = begin;
      sums.rows = weights.rows;
      sums.b = weights.row_b;
      sums.neurons = active.neurons + first;
      sums.count = end - first;
      sums.sums = scratch.sums + first;
      sums.stride = stride;
      if (sizes.weights == NumberType::kFloat32) {
        cell.multiply(cell, sizes, sums);
      } else {
        MultiplyLowPrecisionNeurons(cell, sizes, sums, scratch.parts);
      }
    }
  }

  // What single neurons multiply with bytes, as whole numbers.
  void Quantize() const {
    const GateGroup& group = cell.update_gates;
    const auto read = [&](int part, const GateList& gates, const float* from, std::int64_t end,
                          std::int64_t depth) {
      if (gates.count > 0) scratch.parts[part].Read(from, 0, 1, end, depth);
    };
    read(0, group.x, factors.x, factors.x_end, sizes.input);
    if (cell.reads_last) {
      read(1, group.x, factors.x + PadToLanes(sizes.input), factors.x_end, sizes.input);
    }
    read(2, group.h, factors.h, factors.h_end, RecurrentColumns(sizes));
    read(3, group.c, factors.c, factors.c_end, sizes.hidden);
    read(4, group.m, factors.m, factors.m_end, MidSize(cell, sizes));
  }

  // True if the dense path is faster than the sparse one. A gathered neuron was measured to take
  // 1.3 times as long as one of the dense path.
  bool IsWhole() const {
    return active.starts == nullptr && active.x_mask == nullptr &&
           4 * active.count > 3 * sizes.hidden;
  }

  // Computes all neurons and keeps the active ones. Returns the multiply-adds.
  std::int64_t RunWhole() const {
    float* const sums = ahead == nullptr ? scratch.sums : ahead;
    if (ahead == nullptr) {
      const float* x = factors.x;
      if (cell.reads_last) {
        std::memcpy(scratch.pairs, x, Bytes(sizes.input));
        std::memcpy(scratch.pairs + sizes.input, x + PadToLanes(sizes.input), Bytes(sizes.input));
        x = scratch.pairs;
      }
      weights.whole.Project(x, 1, InputColumns(cell, sizes), scratch.quantized, sums);
    }
    PointwiseArgs points{};
    points.cell = &cell;
    points.gate_stride = kLanes;
    points.stride = weights.whole.group->all.count * kLanes;
    points.x = factors.x;
    points.params = params;
    points.state = state;
    points.to = scratch.picked;
    RunGroup(cell, weights.whole, factors, 1, weights.whole.blocks(), scratch.quantized, sums,
             [&](std::int64_t, std::int64_t, std::int64_t block, std::int64_t count, Sums tile) {
               points.first = block * kLanes;
               points.count = count;
               points.sums = tile.at;
               cell.update(points);
             });
    for (int s = 0; s < cell.states && active.count < sizes.hidden; ++s) {
      for (std::int64_t i = 0; i < active.count; ++i) {
        // never to the right of where it comes from
        scratch.picked[s][i] = scratch.picked[s][active.neurons[i]];
      }
    }
    return weights.whole.Macs(cell, sizes) -
           (ahead == nullptr ? 0 : weights.whole.InputMacs(cell, sizes));
  }

  // The vector at which the i-th active neuron starts to read states.
  std::int64_t Begin(std::int64_t i) const {
    return active.starts == nullptr ? 0 : active.starts[active.neurons[i]] & -kLanes;
  }

  // The new states of the active neurons, side by side.
  void Update() const {
    const std::int64_t count = active.count;
    const auto pick = [&](const float* from, float* to) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[active.neurons[i]];
    };
    for (int s = 0; s < cell.states; ++s) pick(seen[s], scratch.picked[s]);
    const float* neuron_params[kMaxParams];
    for (int i = 0; i < cell.params; ++i) {
      neuron_params[i] = params[i];
      if (!scratch.IsPicked(cell, i)) continue;
      pick(params[i], scratch.picked_param[i]);
      neuron_params[i] = scratch.picked_param[i];
    }
    if (cell.square) pick(factors.x, scratch.picked_x);
    PointwiseArgs points{};
    points.cell = &cell;
    points.count = Blocks(count);
    points.sums = scratch.sums;
    points.gate_stride = PadToLanes(sizes.hidden);
    points.stride = kLanes;
    points.x = scratch.picked_x;
    points.params = neuron_params;
    points.state = scratch.picked;
    points.to = scratch.picked;
    cell.update(points);
  }

  void Scatter() const {
    const std::int64_t count = active.count;
    const float* const blend = active.blend;
    for (int s = 0; s < cell.states; ++s) {
      const float* const now = scratch.picked[s];
      float* const to = state[s];
      if (blend == nullptr && count == sizes.hidden) {
        std::memcpy(to, now, Bytes(count));
      } else if (blend == nullptr) {
        for (std::int64_t i = 0; i < count; ++i) to[active.neurons[i]] = now[i];
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          float& old = to[active.neurons[i]];
          old = blend[i] * now[i] + (1.0f - blend[i]) * old;
        }
      }
    }
  }

  // x, last: (I,). Returns the multiply-adds.
  std::int64_t Run(const float* x, const float* last) {
    const std::int64_t count = active.count;
    if (count == 0) return 0;
    std::int64_t macs = Stage(x, last);
    if (cell.has_mid) macs += MakeMid();
    if (IsWhole()) {
      macs += RunWhole();
      Scatter();
      return macs;
    }
    Multiply();
    Update();
    Scatter();
    const GateGroup& group = cell.update_gates;
    return macs + (count * factors.h_end - active.unread) * group.h.count +
           (count * factors.c_end - active.unread) * group.c.count +
           count *
               (factors.x_end * group.x.count * InputCount(cell) + factors.m_end * group.m.count);
  }
};

struct SparseDriver {
  static std::size_t PackedBytes(const Kernel& kernel, const LayerSizes& sizes) {
    return SparseWeights(kernel, sizes, nullptr).bytes;
  }

  static std::size_t ScratchBytes(const Kernel& kernel, const LayerSizes& sizes, std::int64_t steps,
                                  std::int64_t batch) {
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
    to.whole.Pack(cell, sizes, from);
    to.params.Pack(cell, sizes, from);
  }

  // The input part of all neurons at `count` steps at once, which takes half the time.
  static void LookAhead(const CellKernel& cell, const LayerSizes& sizes,
                        const SparseWeights& weights, const SparseScratch& scratch,
                        const Call& call, std::int64_t from, std::int64_t count) {
    const float* x = call.x + from * call.batch * sizes.input;
    if (cell.reads_last) {
      PairInputs(call, sizes.input, from, count, scratch.pairs);
      x = scratch.pairs;
    }
    weights.whole.Project(x, count * call.batch, InputColumns(cell, sizes), scratch.quantized,
                          scratch.ahead);
    const std::int64_t macs = count * weights.whole.InputMacs(cell, sizes);
    for (std::int64_t b = 0; b < call.batch; ++b) scratch.macs[b] += macs;
  }

  // Projects the rule's input part of `count` steps and runs them, the cell's too if they are
  // expected to be whole. Returns whether all were.
  static bool RunChunk(const Kernel& kernel, const LayerSizes& sizes, const SparseWeights& weights,
                       const float* const* params, const SparseScratch& scratch, const Call& call,
                       std::int64_t from, std::int64_t count, bool expect_whole) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden, input = sizes.input;
    const std::int64_t first = from * call.batch, rows = count * call.batch;
    kernel.selector->project(sizes, weights.rule, call.x + first * input, rows, scratch.rule);
    if (expect_whole) LookAhead(cell, sizes, weights, scratch, call, from, count);
    bool whole = true;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = first + row, sample = row % call.batch;
      float* state[kMaxStates];
      for (int s = 0; s < cell.states; ++s)
        state[s] = scratch.state[s] + sample * PadToLanes(hidden);
      float* memory[kMaxMemories];
      for (int i = 0; i < kernel.rule->memory_count; ++i) {
        const std::int64_t width = Width(kernel.rule->memories[i].extent, sizes);
        memory[i] = scratch.memory[i] + sample * PadToLanes(width);
      }
      const ActiveSet active =
          kernel.selector->select(sizes, weights.rule, scratch.rule, row, state[0], memory);
      float* const ahead = expect_whole ? scratch.ahead + row * weights.whole.Floats() : nullptr;
      SparseStep step(cell, sizes, weights, params, scratch, active, ahead, state);
      const float* last = cell.reads_last ? LastInput(call, at, input) : nullptr;
      scratch.macs[sample] += active.macs + step.Run(call.x + at * input, last);
      kernel.selector->remember(sizes, weights.rule, scratch.rule,
                                state[EvidenceState(cell.states)], memory);
      whole = whole && step.IsWhole();
      if (call.updates != nullptr) call.updates[at] = active.count;
      if (call.y != nullptr) std::memcpy(call.y + at * hidden, state[0], Bytes(hidden));
    }
    return whole;
  }

  static void Run(const Kernel& kernel, const LayerSizes& sizes, const void* packed,
                  const Call& call, void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t batch = call.batch;
    const SparseWeights weights(kernel, sizes, const_cast<void*>(packed));
    const CallParams params(cell, weights.params, call.length);
    const SparseScratch scratch(kernel, sizes, call.steps, batch, base);
    std::memset(base, 0, scratch.cleared);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, sizes.hidden, scratch.state[s]);
    }
    const auto width = [&](int i) { return Width(kernel.rule->memories[i].extent, sizes); };
    for (int i = 0; i < kernel.rule->memory_count; ++i) {
      ReadState(call.memory_in[i], batch, width(i), scratch.memory[i]);
    }
    // steps are expected to go on as those before
    bool whole = false;
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      whole = RunChunk(kernel, sizes, weights, params.at(), scratch, call, from,
                       left < scratch.chunk ? left : scratch.chunk, whole);
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
