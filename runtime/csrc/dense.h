// SPDX-License-Identifier: Apache-2.0
// Runs a cell under the rule `always`: every neuron at every step.

#ifndef EDGERNN_DENSE_H_
#define EDGERNN_DENSE_H_

#include "params.h"
#include "state.h"

namespace edgernn::EDGERNN_ISA {

template <class Cell>
struct DenseGates {
  using Mid = GateSet<Cell, kMid>;
  using MidInput = GateSet<Cell, kMid | kX>;
  using MidHidden = GateSet<Cell, kMid | kH>;
  using Update = GateSet<Cell, 0, kMid>;
  using UpdateInput = GateSet<Cell, kX, kMid>;
  using UpdateHidden = GateSet<Cell, kH, kMid>;
  using UpdateMid = GateSet<Cell, kM, kMid>;
};

// The packed weights.
template <class Cell>
struct DenseWeights {
  using Gates = DenseGates<Cell>;
  float* w_mid;
  float* b_mid;
  float* r_mid;
  float* w;
  float* b;
  float* r;
  float* v;
  PackedParams<Cell> params;
  std::size_t bytes;

  DenseWeights(const Sizes& sizes, void* base) {
    const std::int64_t padded = Padded(sizes.hidden), middle = MidSize<Cell>(sizes);
    Carver carver(base);
    w_mid = carver.Take<float>(Padded(middle) * sizes.input * Gates::MidInput::kCount);
    b_mid = carver.Take<float>(Gates::Mid::kCount > 0 ? Padded(middle) * kGateCount<Cell> : 0);
    r_mid = carver.Take<float>(Padded(middle) * sizes.hidden * Gates::MidHidden::kCount);
    w = carver.Take<float>(padded * sizes.input * Gates::UpdateInput::kCount);
    b = carver.Take<float>(padded * kGateCount<Cell>);
    r = carver.Take<float>(padded * sizes.hidden * Gates::UpdateHidden::kCount);
    v = carver.Take<float>(padded * middle * Gates::UpdateMid::kCount);
    params.Carve(sizes, &carver);
    bytes = carver.used();
  }
};

template <class Cell>
struct DenseScratch {
  std::int64_t chunk;
  float* x;                         // (chunk, B, padded I), cells whose m has the size of x only
  float* mid_input;                 // (chunk, B, blocks of M, mid gates with x, lanes)
  float* input;                     // (chunk, B, blocks of H, other gates with x, lanes)
  float* next;                      // (B, padded H): the first state being made
  float* mid;                       // (B, padded M)
  float* state[kStateCount<Cell>];  // (B, padded H) each
  std::size_t bytes;

  DenseScratch(const Sizes& sizes, std::int64_t steps, std::int64_t batch, void* base) {
    using Gates = DenseGates<Cell>;
    const std::int64_t size = batch * Padded(sizes.hidden);
    const std::int64_t mid_size = batch * Padded(MidSize<Cell>(sizes));
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    x = carver.Take<float>(kMidIsInput<Cell> ? chunk * mid_size : 0);
    mid_input = carver.Take<float>(chunk * mid_size * Gates::MidInput::kCount);
    input = carver.Take<float>(chunk * size * Gates::UpdateInput::kCount);
    next = carver.Take<float>(size);
    mid = carver.Take<float>(Gates::Mid::kCount > 0 ? mid_size : 0);
    for (float*& s : state) s = carver.Take<float>(size);
    bytes = carver.used();
  }
};

// The pre-activations of one row and block before the terms with h and m: input part (those gates
// are `Input`) or bias.
template <class Input, int G>
[[gnu::always_inline]] inline void LoadInputPart(const float* input, const float* b, Vec (&p)[G]) {
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
    const int rank = Input::kRanks.of[g];
    p[g] = rank >= 0 ? Load(input + rank * kLanes) : Load(b + g * kLanes);
  }
}

// One time step. The two stages are bodies for ForTiles.
template <class Cell>
struct DenseStep {
  using Gates = DenseGates<Cell>;
  static constexpr int kG = kGateCount<Cell>;
  static constexpr int kStates = kStateCount<Cell>;

  const DenseWeights<Cell>& weights;
  std::int64_t hidden;
  std::int64_t blocks;
  std::int64_t mid_size;
  std::int64_t mid_blocks;
  const float* x;          // (B, padded I), cells whose m has the size of x only
  const float* mid_input;  // (B, blocks of M, mid gates with x, lanes)
  const float* input;      // (B, blocks, other gates with x, lanes)
  float* const* state;     // (B, padded H) each
  float* next;             // (B, padded H)
  float* mid;              // (B, padded M)
  float* y;                // (B, H) or null

  // Where the tile's pre-activations begin: input parts at `from` over `count` blocks, and biases.
  template <class Input, int MB, int NB>
  [[gnu::always_inline]] static void Begin(const float* from, const float* b, std::int64_t count,
                                           std::int64_t row, std::int64_t block,
                                           Vec (&p)[MB][NB][kG]) {
    for (int i = 0; i < MB; ++i) {
      for (int j = 0; j < NB; ++j) {
        const std::int64_t at = ((row + i) * count + block + j) * kLanes;
        LoadInputPart<Input>(from + at * Input::kCount, b + (block + j) * kG * kLanes, p[i][j]);
      }
    }
  }

  // p += a W^T over the `depth` columns of the matrix packed at `w`; a (B, padded depth).
  template <class Set, int MB, int NB>
  [[gnu::always_inline]] static void Add(const float* a, std::int64_t depth, const float* w,
                                         std::int64_t row, std::int64_t block,
                                         Vec (&p)[MB][NB][kG]) {
    if constexpr (Set::kCount > 0) {
      const std::int64_t stride = Padded(depth);
      Accumulate<Set>(a + row * stride, stride, depth, w + block * depth * Set::kCount * kLanes, p);
    }
  }

  struct MidStage {
    const DenseStep& step;

    template <int MB, int NB>
    void Tile(std::int64_t row, std::int64_t block) const {
      Vec p[MB][NB][kG];
      Begin<typename Gates::MidInput>(step.mid_input, step.weights.b_mid, step.mid_blocks, row,
                                      block, p);
      Add<typename Gates::MidHidden>(step.state[0], step.hidden, step.weights.r_mid, row, block, p);
      for (int i = 0; i < MB; ++i) {
        for (int j = 0; j < NB; ++j) {
          const std::int64_t at = ((row + i) * step.mid_blocks + block + j) * kLanes;
          Store(step.mid + at, RunMid<Cell>(step.weights.params, p[i][j], (block + j) * kLanes,
                                            step.x, step.state, at));
        }
      }
    }
  };

  struct UpdateStage {
    const DenseStep& step;

    template <int MB, int NB>
    void Tile(std::int64_t row, std::int64_t block) const {
      Vec p[MB][NB][kG];
      Begin<typename Gates::UpdateInput>(step.input, step.weights.b, step.blocks, row, block, p);
      Add<typename Gates::UpdateHidden>(step.state[0], step.hidden, step.weights.r, row, block, p);
      Add<typename Gates::UpdateMid>(step.mid, step.mid_size, step.weights.v, row, block, p);
      for (int i = 0; i < MB; ++i) {
        for (int j = 0; j < NB; ++j) step.Finish(row + i, block + j, p[i][j]);
      }
    }
  };

  [[gnu::always_inline]] void Finish(std::int64_t row, std::int64_t block, const Vec* p) const {
    const std::int64_t at = (row * blocks + block) * kLanes;
    Vec q[kParamSlots<Cell>];
    weights.params.template LoadAt<Extent::kHidden>(block * kLanes, q);
    Vec now[kStates];
    for (int s = 0; s < kStates; ++s) now[s] = Load(state[s] + at);
    Cell::Update(p, q, now);
    Store(next + at, now[0]);
    for (int s = 1; s < kStates; ++s) Store(state[s] + at, now[s]);
    if (y != nullptr) {
      const std::int64_t first = block * kLanes;
      StoreFirst(y + row * hidden + first, now[0], hidden - first);
    }
  }

  // kept apart: inlined into the loop over time, the dense LSTM was measured 1.2 times slower
  [[gnu::noinline]] void Run(std::int64_t batch) const {
    if constexpr (Gates::Mid::kCount > 0) {
      ForTiles<Gates::Mid::kCount>(MidStage{*this}, batch, mid_blocks);
    }
    constexpr int kSums = Gates::UpdateHidden::kCount + Gates::UpdateMid::kCount;
    ForTiles<kSums>(UpdateStage{*this}, batch, blocks);
  }
};

template <class Cell>
struct Dense {
  using Gates = DenseGates<Cell>;

  static std::size_t PackedBytes(const Sizes& sizes) {
    return DenseWeights<Cell>(sizes, nullptr).bytes;
  }

  static std::size_t ScratchBytes(const Sizes& sizes, std::int64_t steps, std::int64_t batch) {
    return DenseScratch<Cell>(sizes, steps, batch, nullptr).bytes;
  }

  static void Pack(const Sizes& sizes, const Weights& from, void* packed) {
    const std::int64_t hidden = sizes.hidden, input = sizes.input, middle = MidSize<Cell>(sizes);
    const DenseWeights<Cell> to(sizes, packed);
    if constexpr (Gates::Mid::kCount > 0) {
      PackBlocks<Cell, kX, typename Gates::MidInput>(sizes, from.w, middle, input, to.w_mid);
      PackBias<Cell, typename Gates::Mid>(sizes, from.b, middle, to.b_mid);
      PackBlocks<Cell, kH, typename Gates::MidHidden>(sizes, from.r, middle, hidden, to.r_mid);
    }
    PackBlocks<Cell, kX, typename Gates::UpdateInput>(sizes, from.w, hidden, input, to.w);
    PackBias<Cell, typename Gates::Update>(sizes, from.b, hidden, to.b);
    PackBlocks<Cell, kH, typename Gates::UpdateHidden>(sizes, from.r, hidden, hidden, to.r);
    PackBlocks<Cell, kM, typename Gates::UpdateMid>(sizes, from.v, hidden, middle, to.v);
    to.params.Pack(sizes, from);
  }

  // The input part of the gates of `Set`, of `rows` samples.
  template <class Set>
  static void Project(const float* x, std::int64_t rows, std::int64_t depth, const float* w,
                      const float* b, std::int64_t blocks, float* out) {
    if constexpr (Set::kCount > 0) {
      const Projection<Set, kGateCount<Cell>> projection{x, depth, w, b, blocks, out};
      ForTiles<Set::kCount>(projection, rows, blocks);
    }
  }

  // Runs `count` steps from step `from` on.
  static void RunChunk(const Sizes& sizes, const DenseWeights<Cell>& weights, const Call& call,
                       std::int64_t from, std::int64_t count, DenseScratch<Cell>* scratch) {
    const std::int64_t hidden = sizes.hidden, batch = call.batch, blocks = Blocks(hidden);
    const std::int64_t middle = MidSize<Cell>(sizes), mid_blocks = Blocks(middle);
    const float* x = call.x + from * batch * sizes.input;
    Project<typename Gates::MidInput>(x, count * batch, sizes.input, weights.w_mid, weights.b_mid,
                                      mid_blocks, scratch->mid_input);
    Project<typename Gates::UpdateInput>(x, count * batch, sizes.input, weights.w, weights.b,
                                         blocks, scratch->input);
    if constexpr (kMidIsInput<Cell>) ReadState(x, count * batch, sizes.input, scratch->x);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t row = t * batch;
      const std::int64_t mid_at = row * mid_blocks * kLanes, at = row * blocks * kLanes;
      const DenseStep<Cell> step{
          weights,
          hidden,
          blocks,
          middle,
          mid_blocks,
          kMidIsInput<Cell> ? scratch->x + mid_at : nullptr,
          scratch->mid_input + mid_at * Gates::MidInput::kCount,
          scratch->input + at * Gates::UpdateInput::kCount,
          scratch->state,
          scratch->next,
          scratch->mid,
          call.y == nullptr ? nullptr : call.y + (from * batch + row) * hidden};
      step.Run(batch);
      float* old = scratch->state[0];
      scratch->state[0] = scratch->next;
      scratch->next = old;
    }
  }

  static void Run(const Sizes& sizes, const void* packed, const Call& call, void* base) {
    const std::int64_t hidden = sizes.hidden, batch = call.batch;
    const DenseWeights<Cell> weights(sizes, const_cast<void*>(packed));
    DenseScratch<Cell> scratch(sizes, call.steps, batch, base);
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      ReadState(call.state_in[s], batch, hidden, scratch.state[s]);
    }
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      RunChunk(sizes, weights, call, from, left < scratch.chunk ? left : scratch.chunk, &scratch);
    }
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      WriteState(scratch.state[s], batch, hidden, call.state_out[s]);
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_DENSE_H_
