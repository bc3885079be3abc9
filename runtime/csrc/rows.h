// SPDX-License-Identifier: Apache-2.0
// Runs a cell under a rule that picks neurons: a lister says which, and only they are computed.

#ifndef EDGERNN_ROWS_H_
#define EDGERNN_ROWS_H_

#include "row_memory.h"
#include "state.h"

namespace edgernn::EDGERNN_ISA {

// One time step of one sample.
struct RowStep {
  const CellKernel& cell;
  const Sizes& sizes;
  const RowWeights& weights;
  const float* const* params;
  const RowScratch& scratch;
  const Listing& listing;
  float* ahead;             // the sums of `whole` with their products with x, or null: none yet
  float* const* state;      // (padded H,) each
  float* seen[kMaxStates];  // (padded H,) each: `state`, or where the rule masks it, masked
  Factors factors;

  // Brings x and the states to where and how the cell reads them. Returns the multiply-adds.
  std::int64_t Stage(const float* x, const float* last) {
    factors = {scratch.x,    state[0],     state[cell.factor_states - 1], scratch.mid, sizes.input,
               sizes.hidden, sizes.hidden, MidSize(cell, sizes)};
    std::memcpy(scratch.x, x, Bytes(sizes.input));
    if (cell.reads_last) std::memcpy(scratch.x + Padded(sizes.input), last, Bytes(sizes.input));
    for (int s = 0; s < cell.states; ++s) seen[s] = state[s];
    if (listing.x_mask != nullptr) MaskAll();
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
    std::memset(from + size, 0, Bytes(Padded(size) - size));
  }

  // The cell sees x and the states masked.
  void MaskAll() {
    factors.x_end = listing.x_end;
    factors.h_end = factors.c_end = listing.state_end;
    for (int part = 0; part < InputCount(cell); ++part) {
      float* to = scratch.x + part * Padded(sizes.input);
      Mask(to, listing.x_mask, listing.x_end, Padded(sizes.input), to);
    }
    for (int s = 0; s < cell.states; ++s) {
      seen[s] = scratch.masked[s];
      Mask(state[s], listing.state_mask, listing.state_end, Padded(sizes.hidden), seen[s]);
    }
    factors.h = seen[0];
    factors.c = seen[cell.factor_states - 1];
    if (cell.mid_vanishes) factors.m_end = listing.state_end;
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
    weights.mid.Project(factors.x, 1, factors.x_end, scratch.shorts, scratch.mid_sums);
    float* const made = scratch.mid;
    const std::int64_t stride = group.all.count * kLanes;
    RunGroup(weights.mid, factors, 1, blocks, scratch.shorts, scratch.mid_sums,
             [&](std::int64_t, std::int64_t, std::int64_t block, std::int64_t count, Sums sums) {
               cell.mid({block * kLanes, count, sums.at, kLanes, stride, factors.x, params, seen,
                         &made});
             });
    ClearPadding(scratch.mid, size);
    return size * (factors.x_end * group.x.count + factors.h_end * group.h.count);
  }

  // The pre-activations of all listed neurons, side by side.
  void Multiply() const {
    const std::int64_t stride = Padded(sizes.hidden);
    if (sizes.weights == NumberType::kInt8) Shorten();
    for (std::int64_t first = 0, end = listing.count; first < listing.count; first = end) {
      const std::int64_t begin = Begin(first);
      // neighbouring neurons mostly start at the same column
      if (listing.starts != nullptr) {
        for (end = first + 1; end < listing.count && Begin(end) == begin;) ++end;
      }
      const NeuronSums sums{factors,
                            begin,
                            weights.rows,
                            weights.row_b,
                            listing.neurons + first,
                            end - first,
                            scratch.sums + first,
                            stride};
      if (sizes.weights == NumberType::kFloat32) {
        cell.multiply(sizes, sums);
      } else {
        RunPairNeurons(cell, sizes, sums, scratch.parts);
      }
    }
  }

  // What single neurons multiply with bytes, as whole numbers.
  void Shorten() const {
    const GateGroup& group = cell.update_gates;
    const auto read = [&](int part, const GateList& gates, const float* from, std::int64_t end,
                          std::int64_t depth) {
      if (gates.count > 0) scratch.parts[part].Read(from, 0, 1, end, depth);
    };
    read(0, group.x, factors.x, factors.x_end, sizes.input);
    if (cell.reads_last) {
      read(1, group.x, factors.x + Padded(sizes.input), factors.x_end, sizes.input);
    }
    read(2, group.h, factors.h, factors.h_end, RecurrentColumns(sizes));
    read(3, group.c, factors.c, factors.c_end, sizes.hidden);
    read(4, group.m, factors.m, factors.m_end, MidSize(cell, sizes));
  }

  // Whether all neurons take less time than the listed ones. A neuron by itself was measured to
  // take 1.3 times as long.
  bool IsWhole() const {
    return listing.starts == nullptr && listing.x_mask == nullptr &&
           4 * listing.count > 3 * sizes.hidden;
  }

  // Computes all neurons, and of these keeps the listed ones. Returns the multiply-adds.
  std::int64_t RunWhole() const {
    float* const sums = ahead == nullptr ? scratch.sums : ahead;
    if (ahead == nullptr) {
      const float* x = factors.x;
      if (cell.reads_last) {
        std::memcpy(scratch.pairs, x, Bytes(sizes.input));
        std::memcpy(scratch.pairs + sizes.input, x + Padded(sizes.input), Bytes(sizes.input));
        x = scratch.pairs;
      }
      weights.whole.Project(x, 1, InputColumns(cell, sizes), scratch.shorts, sums);
    }
    const std::int64_t stride = weights.whole.group->all.count * kLanes;
    RunGroup(weights.whole, factors, 1, weights.whole.blocks(), scratch.shorts, sums,
             [&](std::int64_t, std::int64_t, std::int64_t block, std::int64_t count, Sums made) {
               cell.update({block * kLanes, count, made.at, kLanes, stride, factors.x, params,
                            state, scratch.picked});
             });
    for (int s = 0; s < cell.states && listing.count < sizes.hidden; ++s) {
      for (std::int64_t i = 0; i < listing.count; ++i) {
        // never to the right of where it comes from
        scratch.picked[s][i] = scratch.picked[s][listing.neurons[i]];
      }
    }
    return weights.whole.Macs(cell, sizes) -
           (ahead == nullptr ? 0 : weights.whole.InputMacs(cell, sizes));
  }

  // The vector at which the i-th listed neuron starts to read states.
  std::int64_t Begin(std::int64_t i) const {
    return listing.starts == nullptr ? 0 : listing.starts[listing.neurons[i]] & -kLanes;
  }

  // The new states of the listed neurons, side by side.
  void Update() const {
    const std::int64_t count = listing.count;
    const auto pick = [&](const float* from, float* to) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[listing.neurons[i]];
    };
    for (int s = 0; s < cell.states; ++s) pick(seen[s], scratch.picked[s]);
    const float* own[kMaxParams];
    for (int i = 0; i < cell.params; ++i) {
      own[i] = params[i];
      if (!scratch.IsPicked(cell, i)) continue;
      pick(params[i], scratch.picked_param[i]);
      own[i] = scratch.picked_param[i];
    }
    if (cell.square) pick(factors.x, scratch.picked_x);
    cell.update({0, Blocks(count), scratch.sums, Padded(sizes.hidden), kLanes, scratch.picked_x,
                 own, scratch.picked, scratch.picked});
  }

  void Scatter() const {
    const std::int64_t count = listing.count;
    const float* const shares = listing.shares;
    for (int s = 0; s < cell.states; ++s) {
      const float* const now = scratch.picked[s];
      float* const to = state[s];
      if (shares == nullptr && count == sizes.hidden) {
        std::memcpy(to, now, Bytes(count));
      } else if (shares == nullptr) {
        for (std::int64_t i = 0; i < count; ++i) to[listing.neurons[i]] = now[i];
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          float& old = to[listing.neurons[i]];
          old = shares[i] * now[i] + (1.0f - shares[i]) * old;
        }
      }
    }
  }

  // x, last: (I,). Returns the multiply-adds.
  std::int64_t Run(const float* x, const float* last) {
    const std::int64_t count = listing.count;
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
    return macs + (count * factors.h_end - listing.unread) * group.h.count +
           (count * factors.c_end - listing.unread) * group.c.count +
           count *
               (factors.x_end * group.x.count * InputCount(cell) + factors.m_end * group.m.count);
  }
};

struct RowDriver {
  static std::size_t PackedBytes(const Kernel& kernel, const Sizes& sizes) {
    return RowWeights(kernel, sizes, nullptr).bytes;
  }

  static std::size_t ScratchBytes(const Kernel& kernel, const Sizes& sizes, std::int64_t steps,
                                  std::int64_t batch) {
    return RowScratch(kernel, sizes, steps, batch, nullptr).bytes;
  }

  [[gnu::cold]] static void Pack(const Kernel& kernel, const Sizes& sizes, const Weights& from,
                                 void* packed) {
    const CellTable& cell = *kernel.cell;
    const Lister& lister = *kernel.lister;
    const RowWeights to(kernel, sizes, packed);
    lister.pack(sizes, from, to.rule);
    const Values* ranks = lister.ranks < 0 ? nullptr : &from.rule[lister.ranks];
    if (sizes.weights == NumberType::kFloat32) {
      PackRows(cell, sizes, from, ranks, static_cast<float*>(to.rows));
    } else {
      PackPairRows(cell, sizes, from, ranks, to.rows);
    }
    PackRowBiases(cell, sizes, from, to.row_b);
    PackMatrix(from.q, sizes.rank, sizes.hidden, 1, to.q);
    to.mid.Pack(cell, sizes, from);
    to.whole.Pack(cell, sizes, from);
    to.params.Pack(cell, sizes, from);
  }

  // The input part of all neurons at `count` steps at once, which takes half the time.
  static void LookAhead(const CellKernel& cell, const Sizes& sizes, const RowWeights& weights,
                        const RowScratch& scratch, const Call& call, std::int64_t from,
                        std::int64_t count) {
    const float* x = call.x + from * call.batch * sizes.input;
    if (cell.reads_last) {
      PairInputs(call, sizes.input, from, count, scratch.pairs);
      x = scratch.pairs;
    }
    weights.whole.Project(x, count * call.batch, InputColumns(cell, sizes), scratch.shorts,
                          scratch.ahead);
    const std::int64_t macs = count * weights.whole.InputMacs(cell, sizes);
    for (std::int64_t b = 0; b < call.batch; ++b) scratch.macs[b] += macs;
  }

  // Projects the rule's input part of `count` steps and runs them, the cell's too if they are
  // expected to be whole. Returns whether all were.
  static bool RunChunk(const Kernel& kernel, const Sizes& sizes, const RowWeights& weights,
                       const float* const* params, const RowScratch& scratch, const Call& call,
                       std::int64_t from, std::int64_t count, bool expect_whole) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden, input = sizes.input;
    const std::int64_t first = from * call.batch, rows = count * call.batch;
    kernel.lister->project(sizes, weights.rule, call.x + first * input, rows, scratch.rule);
    if (expect_whole) LookAhead(cell, sizes, weights, scratch, call, from, count);
    bool whole = true;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = first + row, sample = row % call.batch;
      float* state[kMaxStates];
      for (int s = 0; s < cell.states; ++s) state[s] = scratch.state[s] + sample * Padded(hidden);
      const Listing listing = kernel.lister->list(sizes, weights.rule, scratch.rule, row, state[0],
                                                  scratch.memory + sample);
      float* const ahead = expect_whole ? scratch.ahead + row * weights.whole.Floats() : nullptr;
      RowStep step{cell, sizes, weights, params, scratch, listing, ahead, state, {}, {}};
      const float* last = cell.reads_last ? LastInput(call, at, input) : nullptr;
      scratch.macs[sample] += listing.macs + step.Run(call.x + at * input, last);
      whole = whole && step.IsWhole();
      if (call.updates != nullptr) call.updates[at] = listing.count;
      if (call.y != nullptr) std::memcpy(call.y + at * hidden, state[0], Bytes(hidden));
    }
    return whole;
  }

  static void Run(const Kernel& kernel, const Sizes& sizes, const void* packed, const Call& call,
                  void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t batch = call.batch;
    const RowWeights weights(kernel, sizes, const_cast<void*>(packed));
    const CallParams params(cell, weights.params, call.length);
    const RowScratch scratch(kernel, sizes, call.steps, batch, base);
    std::memset(base, 0, scratch.cleared);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, sizes.hidden, scratch.state[s]);
    }
    for (std::int64_t b = 0; call.memory_in != nullptr && b < batch; ++b) {
      scratch.memory[b] = call.memory_in[b];
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
    for (std::int64_t b = 0; b < batch; ++b) {
      if (call.memory_out != nullptr) call.memory_out[b] = scratch.memory[b];
      if (call.macs != nullptr) call.macs[b] = scratch.macs[b];
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_ROWS_H_
