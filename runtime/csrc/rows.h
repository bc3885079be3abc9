// SPDX-License-Identifier: Apache-2.0
// Runs a cell under a rule that picks neurons: a lister says which, and only they are computed.

#ifndef EDGERNN_ROWS_H_
#define EDGERNN_ROWS_H_

#include "lister.h"
#include "neuron_pairs.h"
#include "state.h"

namespace edgernn::EDGERNN_ISA {

struct RowWeights {
  void* rule;    // the lister's
  void* rows;    // see neuron_rows.h and neuron_pairs.h
  float* row_b;  // (H, stored sums)
  float* q;      // a packed matrix
  GroupWeights mid;
  GroupWeights whole;  // the same as `rows`, for steps at which most neurons change
  PackedParams params;
  std::size_t bytes;

  RowWeights(const Kernel& kernel, const Sizes& sizes, void* base) {
    const CellTable& cell = *kernel.cell;
    Carver carver(base);
    rule = carver.Take<char>(static_cast<std::int64_t>(kernel.lister->packed_bytes(sizes)));
    rows = carver.Take(RowBytes(cell, sizes));
    row_b = carver.Take<float>(sizes.hidden * StoredSums(cell));
    q = carver.Take<float>(Padded(sizes.rank) * sizes.hidden);
    mid.Carve(cell, cell.mid_gates, MidSize(cell, sizes), sizes, &carver);
    whole.Carve(cell, cell.update_gates, sizes.hidden, sizes, &carver);
    params.Carve(cell, sizes, &carver);
    bytes = carver.used();
  }

  static std::size_t RowBytes(const CellTable& cell, const Sizes& sizes) {
    if (sizes.weights == NumberType::kFloat32) {
      return Bytes(sizes.hidden * RowLayout(cell, sizes).floats);
    }
    return static_cast<std::size_t>(sizes.hidden * PairLayout(cell, sizes).bytes);
  }
};

struct RowScratch {
  std::int64_t chunk;
  void* rule;                       // the lister's, for (chunk, B) rows
  float* x;                         // (padded I,), then the last x likewise
  float* pair;                      // (2I,): both without padding, cells that read both only
  float* mid_sums;                  // (blocks of M, mid gates, lanes)
  float* mid;                       // (padded M,)
  float* factor;                    // (padded rank,): Q h
  GroupShorts shorts;               // of one row
  ShortRows parts[kMaxParts];       // of one row each: what single neurons multiply
  float* sums;                      // (gates, padded H) of the listed neurons, or as `whole` has them
  float* picked_x;                  // (padded H,): their x
  float* picked[kMaxStates];        // (padded H,) each: their states
  float* picked_param[kMaxParams];  // (padded H,) each: their parameters, if one a neuron
  float* masked[kMaxStates];        // (padded H,) each: the states as the cell sees them
  float* state[kMaxStates];         // (B, padded H) each
  float* memory;                    // (B,)
  std::int64_t* macs;               // (B,)
  std::size_t bytes;

  RowScratch(const Kernel& kernel, const Sizes& sizes, std::int64_t steps, std::int64_t batch,
             void* base) {
    const CellTable& cell = *kernel.cell;
    const std::int64_t padded = Padded(sizes.hidden), middle = Padded(MidSize(cell, sizes));
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    rule = carver.Take<char>(
        static_cast<std::int64_t>(kernel.lister->scratch_bytes(sizes, chunk * batch)));
    x = carver.Take<float>(Padded(sizes.input) * InputCount(cell));
    pair = carver.Take<float>(cell.reads_last ? 2 * sizes.input : 0);
    mid_sums = carver.Take<float>(middle * cell.mid_gates.all.count);
    mid = carver.Take<float>(cell.has_mid ? middle : 0);
    factor = carver.Take<float>(Padded(sizes.rank));
    shorts.Carve(cell, sizes, 1, 1, &carver);
    const std::int64_t columns[kMaxParts] = {sizes.input, sizes.input, RecurrentColumns(sizes),
                                             sizes.hidden, MidSize(cell, sizes)};
    for (int p = 0; p < kMaxParts; ++p) parts[p].Carve(sizes.weights, 1, columns[p], &carver);
    sums = carver.Take<float>(padded * cell.update_gates.all.count);
    picked_x = carver.Take<float>(cell.square ? padded : 0);
    for (int s = 0; s < cell.states; ++s) picked[s] = carver.Take<float>(padded);
    for (int i = 0; i < cell.params; ++i) {
      picked_param[i] = carver.Take<float>(IsPicked(cell, i) ? padded : 0);
    }
    for (int s = 0; s < cell.states; ++s) masked[s] = carver.Take<float>(padded);
    for (int s = 0; s < cell.states; ++s) state[s] = carver.Take<float>(batch * padded);
    memory = carver.Take<float>(batch);
    macs = carver.Take<std::int64_t>(batch);
    bytes = carver.used();
  }

  // Whether each neuron has a value of its own of parameter i.
  static bool IsPicked(const CellTable& cell, int i) {
    const Extent extent = cell.extents[i];
    return extent == Extent::kHidden || (cell.square && extent == Extent::kInput);
  }
};

// One time step of one sample.
struct RowStep {
  const CellKernel& cell;
  const Sizes& sizes;
  const RowWeights& weights;
  const float* const* params;
  const RowScratch& scratch;
  const Listing& listing;
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
      const NeuronSums sums{factors,     begin,  weights.rows,         weights.row_b,
                            listing.neurons + first, end - first, scratch.sums + first, stride};
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

  // Whether all neurons take less time than the listed ones. A neuron by itself was measured to take
  // 1.3 times as long.
  bool IsWhole() const {
    return listing.starts == nullptr && listing.x_mask == nullptr &&
           4 * listing.count > 3 * sizes.hidden;
  }

  // Computes all neurons, and of these keeps the listed ones. Returns the multiply-adds.
  std::int64_t RunWhole() const {
    const float* x = factors.x;
    if (cell.reads_last) {
      std::memcpy(scratch.pair, x, Bytes(sizes.input));
      std::memcpy(scratch.pair + sizes.input, x + Padded(sizes.input), Bytes(sizes.input));
      x = scratch.pair;
    }
    weights.whole.Project(x, 1, InputColumns(cell, sizes), scratch.shorts, scratch.sums);
    const std::int64_t stride = weights.whole.group->all.count * kLanes;
    RunGroup(weights.whole, factors, 1, weights.whole.blocks(), scratch.shorts,
             scratch.sums,
             [&](std::int64_t, std::int64_t, std::int64_t block, std::int64_t count, Sums sums) {
               cell.update({block * kLanes, count, sums.at, kLanes, stride, factors.x, params,
                            state, scratch.picked});
             });
    for (int s = 0; s < cell.states && listing.count < sizes.hidden; ++s) {
      for (std::int64_t i = 0; i < listing.count; ++i) {
        // never to the right of where it comes from
        scratch.picked[s][i] = scratch.picked[s][listing.neurons[i]];
      }
    }
    return weights.whole.Macs(cell, sizes);
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

  [[gnu::cold]] static void Pack(const Kernel& kernel, const Sizes& sizes, const Weights& from, void* packed) {
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

  // Projects the rule's input part of `count` steps and runs them.
  static void RunChunk(const Kernel& kernel, const Sizes& sizes, const RowWeights& weights,
                       const float* const* params, const RowScratch& scratch, const Call& call,
                       std::int64_t from, std::int64_t count) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden, input = sizes.input;
    const std::int64_t first = from * call.batch, rows = count * call.batch;
    kernel.lister->project(sizes, weights.rule, call.x + first * input, rows, scratch.rule);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = first + row, sample = row % call.batch;
      float* state[kMaxStates];
      for (int s = 0; s < cell.states; ++s) state[s] = scratch.state[s] + sample * Padded(hidden);
      const Listing listing = kernel.lister->list(sizes, weights.rule, scratch.rule, row, state[0],
                                                  scratch.memory + sample);
      RowStep step{cell, sizes, weights, params, scratch, listing, state, {}, {}};
      const float* last = cell.reads_last ? LastInput(call, at, input) : nullptr;
      scratch.macs[sample] += listing.macs + step.Run(call.x + at * input, last);
      if (call.updates != nullptr) call.updates[at] = listing.count;
      if (call.y != nullptr) std::memcpy(call.y + at * hidden, state[0], Bytes(hidden));
    }
  }

  static void Run(const Kernel& kernel, const Sizes& sizes, const void* packed, const Call& call,
                  void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t batch = call.batch;
    const RowWeights weights(kernel, sizes, const_cast<void*>(packed));
    const CallParams params(cell, weights.params, call.length);
    const RowScratch scratch(kernel, sizes, call.steps, batch, base);
    std::memset(base, 0, scratch.bytes);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, sizes.hidden, scratch.state[s]);
    }
    for (std::int64_t b = 0; call.memory_in != nullptr && b < batch; ++b) {
      scratch.memory[b] = call.memory_in[b];
    }
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      RunChunk(kernel, sizes, weights, params.at(), scratch, call, from,
               left < scratch.chunk ? left : scratch.chunk);
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
