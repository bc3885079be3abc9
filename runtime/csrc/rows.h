// SPDX-License-Identifier: Apache-2.0
// Runs a cell under a rule that picks neurons: a lister says which, and only they are computed.

#ifndef EDGERNN_ROWS_H_
#define EDGERNN_ROWS_H_

#include "lister.h"
#include "mid.h"
#include "neuron_rows.h"
#include "params.h"
#include "sparse.h"
#include "state.h"

namespace edgernn::EDGERNN_ISA {

template <class Cell>
struct RowWeights {
  void* rule;    // the lister's
  float* rows;   // see neuron_rows.h
  float* row_b;  // (H, kSums)
  float* q;      // a packed matrix
  MidWeights<Cell> mid;
  PackedParams<Cell> params;
  std::size_t bytes;

  RowWeights(const Lister* lister, const Sizes& sizes, void* base) {
    Carver carver(base);
    rule = carver.Take<char>(static_cast<std::int64_t>(lister->packed_bytes(sizes)));
    rows = carver.Take<float>(sizes.hidden * RowGates<Cell>::Floats(sizes));
    row_b = carver.Take<float>(sizes.hidden * RowGates<Cell>::kSums);
    q = carver.Take<float>(Padded(sizes.rank) * sizes.hidden);
    mid.Carve(sizes, &carver);
    params.Carve(sizes, &carver);
    bytes = carver.used();
  }
};

template <class Cell>
struct RowScratch {
  static constexpr int kStates = kStateCount<Cell>;

  std::int64_t chunk;
  void* rule;                              // the lister's, for (chunk, B) rows
  float* x;                                // (padded I,), then the last x likewise
  float* mid;                              // (padded M,)
  float* factor;                           // (padded rank,): Q h
  float* sums;                             // (gates, padded H) of the listed neurons, then their x
  float* picked[kStates];                  // (padded H,) each: their states
  float* picked_param[kParamSlots<Cell>];  // (padded H,) each: their parameters, if one a neuron
  float* masked[kStates];                  // (padded H,) each: the states as the cell sees them
  float* state[kStates];                   // (B, padded H) each
  float* memory;                           // (B,)
  std::int64_t* macs;                      // (B,)
  std::size_t bytes;

  RowScratch(const Lister* lister, const Sizes& sizes, std::int64_t steps, std::int64_t batch,
             void* base) {
    const std::int64_t padded = Padded(sizes.hidden);
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    rule =
        carver.Take<char>(static_cast<std::int64_t>(lister->scratch_bytes(sizes, chunk * batch)));
    x = carver.Take<float>(Padded(sizes.input) * kInputCount<Cell>);
    mid = carver.Take<float>(kHasMid<Cell> ? Padded(MidSize<Cell>(sizes)) : 0);
    factor = carver.Take<float>(Padded(sizes.rank));
    sums = carver.Take<float>(padded * (RowGates<Cell>::All::kCount + 1));
    for (float*& s : picked) s = carver.Take<float>(padded);
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      picked_param[i] = carver.Take<float>(IsPicked(i) ? padded : 0);
    }
    for (float*& s : masked) s = carver.Take<float>(padded);
    for (float*& s : state) s = carver.Take<float>(batch * padded);
    memory = carver.Take<float>(batch);
    macs = carver.Take<std::int64_t>(batch);
    bytes = carver.used();
  }

  // Whether each neuron has a value of its own of parameter i.
  static bool IsPicked(int i) {
    const Extent extent = ParamsOf<Cell>::kList[i].extent;
    return extent == Extent::kHidden || (kSquare<Cell> && extent == Extent::kInput);
  }
};

// One time step of one sample.
template <class Cell>
struct RowStep {
  static constexpr int kStates = kStateCount<Cell>;
  static constexpr int kG = kGateCount<Cell>;
  using Gates = RowGates<Cell>;

  const Sizes& sizes;
  const RowWeights<Cell>& weights;
  const RowScratch<Cell>& scratch;
  const Listing& listing;
  float* state[kStates];  // (padded H,) each
  float* seen[kStates];   // (padded H,) each: `state`, or where the rule masks it, masked
  Factors factors;

  // Brings x and the states to where and how the cell reads them. Returns the multiply-adds.
  std::int64_t Stage(const float* x, const float* last) {
    factors = {scratch.x,    state[0],     state[kFactorStates<Cell> - 1], scratch.mid,
               sizes.input, sizes.hidden, sizes.hidden, MidSize<Cell>(sizes)};
    const std::size_t bytes = static_cast<std::size_t>(sizes.input) * sizeof(float);
    std::memcpy(scratch.x, x, bytes);
    if constexpr (kReadsLast<Cell>) std::memcpy(scratch.x + Padded(sizes.input), last, bytes);
    for (int s = 0; s < kStates; ++s) seen[s] = state[s];
    if (listing.x_mask != nullptr) MaskAll();
    if (sizes.rank == 0) return 0;
    const std::int64_t macs = sizes.rank * factors.h_end;
    MultiplyFactor(sizes, weights.q, factors.h, 1, factors.h_end, scratch.factor);
    // an infinite h times the 0 weights of the padding is NaN, and rows are read padding and all
    std::memset(scratch.factor + sizes.rank, 0,
                static_cast<std::size_t>(Padded(sizes.rank) - sizes.rank) * sizeof(float));
    factors.h = scratch.factor;
    factors.h_end = sizes.rank;
    return macs;
  }

  // The cell sees x and the states masked.
  void MaskAll() {
    factors.x_end = listing.x_end;
    factors.h_end = factors.c_end = listing.state_end;
    for (int part = 0; part < kInputCount<Cell>; ++part) {
      float* to = scratch.x + part * Padded(sizes.input);
      Mask(to, listing.x_mask, listing.x_end, Padded(sizes.input), to);
    }
    for (int s = 0; s < kStates; ++s) {
      seen[s] = scratch.masked[s];
      Mask(state[s], listing.state_mask, listing.state_end, Padded(sizes.hidden), seen[s]);
    }
    factors.h = seen[0];
    factors.c = seen[kFactorStates<Cell> - 1];
    if constexpr (kMidVanishes<Cell>) factors.m_end = listing.state_end;
  }

  static void Mask(const float* from, const float* mask, std::int64_t end, std::int64_t padded,
                   float* to) {
    for (std::int64_t i = 0; i < end; ++i) to[i] = from[i] * mask[i];
    std::memset(to + end, 0, static_cast<std::size_t>(padded - end) * sizeof(float));
  }

  // The pre-activations of all listed neurons, side by side.
  void Multiply() const {
    const std::int64_t stride = Padded(sizes.hidden);
    for (std::int64_t first = 0, end = listing.count; first < listing.count; first = end) {
      const std::int64_t begin = Begin(first);
      // neighbouring neurons mostly start at the same column
      if (listing.starts != nullptr) {
        for (end = first + 1; end < listing.count && Begin(end) == begin;) ++end;
      }
      MultiplyList<Cell>(sizes, factors, begin, weights.rows, weights.row_b,
                         listing.neurons + first, end - first, scratch.sums + first, stride);
    }
  }

  // Brings what else Update needs of the listed neurons side by side.
  void Pick() const {
    const std::int64_t count = listing.count;
    const auto pick = [&](const float* from, float* to) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[listing.neurons[i]];
    };
    for (int s = 0; s < kStates; ++s) pick(seen[s], scratch.picked[s]);
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      if (scratch.IsPicked(i)) pick(weights.params.at[i], scratch.picked_param[i]);
    }
    if constexpr (kSquare<Cell>) {
      pick(scratch.x, scratch.sums + Gates::All::kCount * Padded(sizes.hidden));
    }
  }

  // The vector at which the i-th listed neuron starts to read states.
  std::int64_t Begin(std::int64_t i) const {
    return listing.starts == nullptr ? 0 : listing.starts[listing.neurons[i]] & -kLanes;
  }

  void Update() const {
    const std::int64_t stride = Padded(sizes.hidden);
    for (std::int64_t i = 0; i < listing.count; i += kLanes) {
      Vec p[kGivenCount<Cell>];
      for (int g = 0; g < Gates::All::kCount; ++g) {
        p[Gates::All::kList.at[g]] = Load(scratch.sums + g * stride + i);
      }
      if constexpr (kSquare<Cell>) p[kG] = Load(scratch.sums + Gates::All::kCount * stride + i);
      Vec now[kStates];
      for (int s = 0; s < kStates; ++s) now[s] = Load(scratch.picked[s] + i);
      Vec q[kParamSlots<Cell>];
      weights.params.template LoadAt<Extent::kOne>(0, q);
      for (int k = 0; k < ParamsOf<Cell>::kCount; ++k) {
        if (scratch.IsPicked(k)) q[k] = Load(scratch.picked_param[k] + i);
      }
      Cell::Update(p, q, now);
      for (int s = 0; s < kStates; ++s) Store(scratch.picked[s] + i, now[s]);
    }
  }

  void Scatter() const {
    const std::int64_t count = listing.count;
    const float* const shares = listing.shares;
    for (int s = 0; s < kStates; ++s) {
      const float* const now = scratch.picked[s];
      float* const to = state[s];
      if (shares == nullptr) {
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
    if constexpr (kHasMid<Cell>) {
      const std::int64_t size = factors.m_end;
      const MidStep<Cell> mid{sizes,       weights.mid, weights.params,    factors.x_end,
                              factors.h_end, scratch.x, factors.h, seen, scratch.mid};
      mid.Run(size);
      macs += size * mid.RowMacs();
    }
    Multiply();
    Pick();
    Update();
    Scatter();
    return macs + (count * factors.h_end - listing.unread) * Gates::Hidden::kCount +
           (count * factors.c_end - listing.unread) * Gates::Second::kCount +
           count * (factors.x_end * Gates::kInputs + factors.m_end * Gates::kMiddle);
  }
};

template <class Cell>
struct RowDriver {
  static std::size_t PackedBytes(const Lister* lister, const Sizes& sizes) {
    return RowWeights<Cell>(lister, sizes, nullptr).bytes;
  }

  static std::size_t ScratchBytes(const Lister* lister, const Sizes& sizes, std::int64_t steps,
                                  std::int64_t batch) {
    return RowScratch<Cell>(lister, sizes, steps, batch, nullptr).bytes;
  }

  static void Pack(const Lister* lister, const Sizes& sizes, const Weights& from, void* packed) {
    const RowWeights<Cell> to(lister, sizes, packed);
    lister->pack(sizes, from, to.rule);
    const float* ranks = lister->ranks < 0 ? nullptr : from.rule[lister->ranks];
    PackRows<Cell>(sizes, from, ranks, to.rows, to.row_b);
    PackMatrix(from.q, sizes.rank, sizes.hidden, to.q);
    to.mid.Pack(sizes, from);
    to.params.Pack(sizes, from);
  }

  // Projects the rule's input part of `count` steps and runs them.
  static void RunChunk(const Lister* lister, const Sizes& sizes, const RowWeights<Cell>& weights,
                       const RowScratch<Cell>& scratch, const Call& call, std::int64_t from,
                       std::int64_t count) {
    const std::int64_t hidden = sizes.hidden, input = sizes.input;
    const std::int64_t first = from * call.batch, rows = count * call.batch;
    lister->project(sizes, weights.rule, call.x + first * input, rows, scratch.rule);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = first + row, sample = row % call.batch;
      const float* h = scratch.state[0] + sample * Padded(hidden);
      const Listing listing =
          lister->list(sizes, weights.rule, scratch.rule, row, h, scratch.memory + sample);
      RowStep<Cell> step{sizes, weights, scratch, listing, {}, {}, {}};
      for (int s = 0; s < kStateCount<Cell>; ++s) {
        step.state[s] = scratch.state[s] + sample * Padded(hidden);
      }
      const float* last = nullptr;
      if constexpr (kReadsLast<Cell>) last = LastInput(call, at, input);
      scratch.macs[sample] += listing.macs + step.Run(call.x + at * input, last);
      if (call.updates != nullptr) call.updates[at] = listing.count;
      if (call.y != nullptr) {
        std::memcpy(call.y + at * hidden, h, static_cast<std::size_t>(hidden) * sizeof(float));
      }
    }
  }

  static void Run(const Lister* lister, const Sizes& sizes, const void* packed, const Call& call,
                  void* base) {
    const std::int64_t batch = call.batch;
    RowWeights<Cell> weights(lister, sizes, const_cast<void*>(packed));
    weights.params.ForCall(call.length);
    const RowScratch<Cell> scratch(lister, sizes, call.steps, batch, base);
    std::memset(base, 0, scratch.bytes);
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      ReadState(call.state_in[s], batch, sizes.hidden, scratch.state[s]);
    }
    for (std::int64_t b = 0; call.memory_in != nullptr && b < batch; ++b) {
      scratch.memory[b] = call.memory_in[b];
    }
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      RunChunk(lister, sizes, weights, scratch, call, from,
               left < scratch.chunk ? left : scratch.chunk);
    }
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      WriteState(scratch.state[s], batch, sizes.hidden, call.state_out[s]);
    }
    if constexpr (kReadsLast<Cell>) WriteLast(call, sizes.input);
    for (std::int64_t b = 0; b < batch; ++b) {
      if (call.memory_out != nullptr) call.memory_out[b] = scratch.memory[b];
      if (call.macs != nullptr) call.macs[b] = scratch.macs[b];
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_ROWS_H_
