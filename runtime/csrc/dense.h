// SPDX-License-Identifier: Apache-2.0
// Runs a cell under the rule `always`: every neuron at every step.

#ifndef EDGERNN_DENSE_H_
#define EDGERNN_DENSE_H_

#include "params.h"
#include "sparse.h"
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
  using UpdateCell = GateSet<Cell, kC, kMid>;
  using UpdateMid = GateSet<Cell, kM, kMid>;
};

// The packed weights.
template <class Cell>
struct DenseWeights {
  using Gates = DenseGates<Cell>;
  float* w_mid;
  float* b_mid;
  SparseMatrix r_mid;
  float* w;
  float* b;
  SparseMatrix r;
  float* q;  // a packed matrix
  float* c;
  float* v;
  PackedParams<Cell> params;
  std::size_t bytes;

  [[gnu::noinline]] DenseWeights(const Sizes& sizes, void* base) {
    const std::int64_t padded = Padded(sizes.hidden), middle = MidSize<Cell>(sizes);
    const std::int64_t inputs = InputColumns<Cell>(sizes);
    Carver carver(base);
    w_mid = carver.Take<float>(Padded(middle) * inputs * Gates::MidInput::kCount);
    b_mid = carver.Take<float>(kHasMid<Cell> ? Padded(middle) * kGateCount<Cell> : 0);
    r_mid.Carve(Gates::MidHidden::kCount, middle, RecurrentColumns(sizes), &carver);
    w = carver.Take<float>(padded * inputs * Gates::UpdateInput::kCount);
    b = carver.Take<float>(padded * kGateCount<Cell>);
    r.Carve(Gates::UpdateHidden::kCount, sizes.hidden, RecurrentColumns(sizes), &carver);
    q = carver.Take<float>(Padded(sizes.rank) * sizes.hidden);
    c = carver.Take<float>(padded * sizes.hidden * Gates::UpdateCell::kCount);
    v = carver.Take<float>(padded * middle * Gates::UpdateMid::kCount);
    params.Carve(sizes, &carver);
    bytes = carver.used();
  }

  void Pack(const Sizes& sizes, const Weights& from) const {
    const std::int64_t hidden = sizes.hidden, middle = MidSize<Cell>(sizes);
    const std::int64_t inputs = InputColumns<Cell>(sizes), columns = RecurrentColumns(sizes);
    if constexpr (kHasMid<Cell>) {
      PackBlocks<Cell, kX, typename Gates::MidInput>(sizes, from.w, middle, inputs, w_mid);
      PackBias<Cell, typename Gates::Mid>(sizes, from.b, middle, b_mid);
      PackBlocks<Cell, kH, typename Gates::MidHidden>(sizes, from.r, middle, columns, r_mid.w);
    }
    r_mid.LeaveOutZeros(Gates::MidHidden::kCount, middle, columns);
    PackBlocks<Cell, kX, typename Gates::UpdateInput>(sizes, from.w, hidden, inputs, w);
    PackBias<Cell, typename Gates::Update>(sizes, from.b, hidden, b);
    PackBlocks<Cell, kH, typename Gates::UpdateHidden>(sizes, from.r, hidden, columns, r.w);
    r.LeaveOutZeros(Gates::UpdateHidden::kCount, hidden, columns);
    PackMatrix(from.q, sizes.rank, hidden, q);
    PackBlocks<Cell, kC, typename Gates::UpdateCell>(sizes, from.c, hidden, hidden, c);
    PackBlocks<Cell, kM, typename Gates::UpdateMid>(sizes, from.v, hidden, middle, v);
    params.Pack(sizes, from);
  }

  // Multiply-adds of a step of one sample.
  [[gnu::noinline]] std::int64_t Macs(const Sizes& sizes) const {
    const std::int64_t hidden = sizes.hidden, middle = MidSize<Cell>(sizes);
    const std::int64_t inputs = InputColumns<Cell>(sizes);
    const std::int64_t row = inputs * Gates::UpdateInput::kCount +
                             hidden * Gates::UpdateCell::kCount +
                             middle * Gates::UpdateMid::kCount;
    return hidden * row + middle * inputs * Gates::MidInput::kCount + r_mid.kind->macs +
           r.kind->macs + sizes.rank * hidden;
  }

  // The products of `rows` samples x (rows, columns of W) with W, as DenseStep takes them.
  void Project(const Sizes& sizes, const float* x, std::int64_t rows, float* mid_input,
               float* input) const {
    constexpr int kMids = Gates::MidInput::kCount, kUpdates = Gates::UpdateInput::kCount;
    const std::int64_t inputs = InputColumns<Cell>(sizes);
    if constexpr (kMids > 0) {
      const std::int64_t blocks = Blocks(MidSize<Cell>(sizes));
      Multiply<kMids>(x, rows, inputs, w_mid, nullptr, blocks, mid_input);
    }
    if constexpr (kUpdates > 0) {
      Multiply<kUpdates>(x, rows, inputs, w, nullptr, Blocks(sizes.hidden), input);
    }
  }
};

template <class Cell>
struct DenseScratch {
  std::int64_t chunk;
  float* x;                          // (chunk, B, padded I), cells that read x itself only
  float* pairs;                      // (chunk, B, 2I): x_t and x_{t-1}, cells that read both only
  float* mid_input;                  // (chunk, B, blocks of M, mid gates with x, lanes)
  float* input;                      // (chunk, B, blocks of H, other gates with x, lanes)
  float* mid;                        // (B, padded M)
  float* sums;                       // (B, blocks of H or M, gates, lanes)
  float* factor;                     // (B, padded rank)
  float* state[kStateCount<Cell>];   // (B, padded H) each
  float* next[kFactorStates<Cell>];  // (B, padded H) each: the first states, as they are made
  std::size_t bytes;

  [[gnu::noinline]] DenseScratch(const Sizes& sizes, std::int64_t steps, std::int64_t batch,
                                 void* base) {
    using Gates = DenseGates<Cell>;
    const std::int64_t size = batch * Padded(sizes.hidden);
    const std::int64_t mid_size = batch * Padded(MidSize<Cell>(sizes));
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    x = carver.Take<float>(kReadsInput<Cell> ? chunk * batch * Padded(sizes.input) : 0);
    pairs = carver.Take<float>(kReadsLast<Cell> ? chunk * batch * 2 * sizes.input : 0);
    mid_input = carver.Take<float>(chunk * mid_size * Gates::MidInput::kCount);
    input = carver.Take<float>(chunk * size * Gates::UpdateInput::kCount);
    for (float*& s : next) s = carver.Take<float>(size);
    mid = carver.Take<float>(kHasMid<Cell> ? mid_size : 0);
    sums = carver.Take<float>((mid_size > size ? mid_size : size) * kGateCount<Cell>);
    factor = carver.Take<float>(batch * Padded(sizes.rank));
    for (float*& s : state) s = carver.Take<float>(size);
    bytes = carver.used();
  }
};

// One time step of any B samples. All buffers are the caller's; those that the cell does not need
// may be null. A caller that picks samples gathers their rows into buffers of its own, calls
// DenseWeights::Project and Run, and scatters the states.
template <class Cell>
struct DenseStep {
  using Gates = DenseGates<Cell>;
  static constexpr int kG = kGateCount<Cell>;
  static constexpr int kGiven = kGivenCount<Cell>;
  static constexpr int kStates = kStateCount<Cell>;
  static constexpr int kFactors = kFactorStates<Cell>;

  const Sizes sizes;
  const DenseWeights<Cell>& weights;
  const float* x;          // (B, padded I), cells that read x itself only
  const float* mid_input;  // (B, blocks of M, mid gates with x, lanes), see DenseWeights::Project
  const float* input;      // (B, blocks of H, other gates with x, lanes)
  float* mid;              // (B, padded M)
  float* sums;             // (B, blocks of H or M, gates, lanes)
  float* factor;           // (B, padded rank): Q h
  float** state;           // (B, padded H) each; Run exchanges the first ones with those of `next`
  float** next;            // (B, padded H) each, as many as weights multiply
  float* y;                // (B, H) or null

  // What a stage begins with: the biases of all samples or, `stride` blocks apart, of each sample
  // with its product of R and h; and what is left to multiply R with, h or Q h, of so many columns.
  struct Start {
    const float* b;
    std::int64_t stride;
    const float* h;
    std::int64_t columns;
  };

  // A sparse R is multiplied ahead, as its blocks have different columns.
  template <class Hidden>
  Start MakeStart(const SparseMatrix& r, const float* b, std::int64_t batch,
                  std::int64_t blocks) const {
    const float* h = sizes.rank > 0 ? factor : state[0];
    const std::int64_t columns = RecurrentColumns(sizes);
    if constexpr (Hidden::kCount > 0) {
      if (r.kind->sparse) {
        MultiplySparse<Hidden::kCount>(r, h, Padded(columns), batch, blocks, Hidden::kList, kG, b,
                                       sums);
        return {sums, blocks, h, 0};
      }
    }
    return {b, 0, h, columns};
  }

  // Where the tile's pre-activations begin: what the stage begins with, and for the gates of
  // `Input` their products with x, at `from` over `count` blocks.
  template <class Input, int MB, int NB>
  [[gnu::always_inline]] static void Begin(const float* from, const Start& start,
                                           std::int64_t count, std::int64_t row,
                                           std::int64_t block, Vec (&p)[MB][NB][kGiven]) {
    for (int i = 0; i < MB; ++i) {
      for (int j = 0; j < NB; ++j) {
        const float* input = from + ((row + i) * count + block + j) * Input::kCount * kLanes;
        const float* bias = start.b + ((row + i) * start.stride + block + j) * kG * kLanes;
#pragma GCC unroll 16
        for (int g = 0; g < kG; ++g) {
          const int rank = Input::kRanks.of[g];
          p[i][j][g] = Load(bias + g * kLanes);
          if (rank >= 0) p[i][j][g] = p[i][j][g] + Load(input + rank * kLanes);
        }
      }
    }
  }

  // p += a W^T over the `depth` columns of the matrix packed at `w`; a (B, padded depth).
  template <class Set, int MB, int NB>
  [[gnu::always_inline]] static void Add(const float* a, std::int64_t depth, const float* w,
                                         std::int64_t row, std::int64_t block,
                                         Vec (&p)[MB][NB][kGiven]) {
    if constexpr (Set::kCount > 0) {
      const std::int64_t stride = Padded(depth);
      Accumulate<Set>(a + row * stride, stride, depth, w + block * depth * Set::kCount * kLanes, p);
    }
  }

  struct MidStage {
    const DenseStep& step;
    std::int64_t blocks;
    Start start;

    template <int MB, int NB>
    void Tile(std::int64_t row, std::int64_t block) const {
      const DenseWeights<Cell>& weights = step.weights;
      Vec p[MB][NB][kGiven];
      Begin<typename Gates::MidInput>(step.mid_input, start, blocks, row, block, p);
      Add<typename Gates::MidHidden>(start.h, start.columns, weights.r_mid.w, row, block, p);
      for (int i = 0; i < MB; ++i) {
        for (int j = 0; j < NB; ++j) {
          const std::int64_t at = ((row + i) * blocks + block + j) * kLanes;
          Store(step.mid + at, RunMid<Cell>(weights.params, p[i][j], (block + j) * kLanes, step.x,
                                            step.state, at));
        }
      }
    }
  };

  struct UpdateStage {
    const DenseStep& step;
    std::int64_t blocks;
    Start start;

    template <int MB, int NB>
    void Tile(std::int64_t row, std::int64_t block) const {
      const DenseWeights<Cell>& weights = step.weights;
      const std::int64_t hidden = step.sizes.hidden, middle = MidSize<Cell>(step.sizes);
      Vec p[MB][NB][kGiven];
      Begin<typename Gates::UpdateInput>(step.input, start, blocks, row, block, p);
      Add<typename Gates::UpdateHidden>(start.h, start.columns, weights.r.w, row, block, p);
      Add<typename Gates::UpdateCell>(step.state[kFactors - 1], hidden, weights.c, row, block, p);
      Add<typename Gates::UpdateMid>(step.mid, middle, weights.v, row, block, p);
      Finish(row, MB, block, NB, &p[0][0]);
    }

    // From the pre-activations to the states. One copy for tiles of all shapes, for the library's
    // size: inlined it was measured up to 1.03 times faster.
    [[gnu::noinline, gnu::flatten]] void Finish(std::int64_t row, int row_count,
                                                std::int64_t block, int block_count,
                                                Vec (*p)[kGiven]) const {
      for (int i = 0; i < row_count; ++i) {
        for (int j = 0; j < block_count; ++j) FinishOne(row + i, block + j, *p++);
      }
    }

    [[gnu::always_inline]] void FinishOne(std::int64_t row, std::int64_t block, Vec* p) const {
      const std::int64_t at = (row * blocks + block) * kLanes, first = block * kLanes;
      Vec q[kParamSlots<Cell>];
      step.weights.params.template LoadAt<Extent::kHidden>(first, q);
      // Padded(I) is Padded(H) here
      if constexpr (kSquare<Cell>) p[kG] = Load(step.x + at);
      Vec now[kStates];
      float* to[kStates];
      for (int s = 0; s < kStates; ++s) {
        now[s] = Load(step.state[s] + at);
        // other tiles still multiply the old values of the first states
        to[s] = (s < kFactors ? step.next[s] : step.state[s]) + at;
      }
      const std::int64_t hidden = step.sizes.hidden;
      float* out = step.y;
      Cell::Update(p, q, now);
      for (int s = 0; s < kStates; ++s) Store(to[s], now[s]);
      if (out != nullptr) StoreFirst(out + row * hidden + first, now[0], hidden - first);
    }
  };

  // kept apart: inlined into the loop over time, the dense LSTM was measured 1.2 times slower
  [[gnu::noinline]] void Run(std::int64_t batch) const {
    if (sizes.rank > 0) MultiplyFactor(sizes, weights.q, state[0], batch, sizes.hidden, factor);
    if constexpr (kHasMid<Cell>) {
      const std::int64_t blocks = Blocks(MidSize<Cell>(sizes));
      const Start start =
          MakeStart<typename Gates::MidHidden>(weights.r_mid, weights.b_mid, batch, blocks);
      ForTiles<Gates::Mid::kCount>(MidStage{*this, blocks, start}, batch, blocks);
    }
    constexpr int kSums =
        Gates::UpdateHidden::kCount + Gates::UpdateCell::kCount + Gates::UpdateMid::kCount;
    const std::int64_t blocks = Blocks(sizes.hidden);
    const Start start =
        MakeStart<typename Gates::UpdateHidden>(weights.r, weights.b, batch, blocks);
    ForTiles<kSums>(UpdateStage{*this, blocks, start}, batch, blocks);
    for (int s = 0; s < kFactors; ++s) {
      float* old = state[s];
      state[s] = next[s];
      next[s] = old;
    }
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
    DenseWeights<Cell>(sizes, packed).Pack(sizes, from);
  }

  // Runs `count` steps from step `from` on.
  static void RunChunk(const Sizes& sizes, const DenseWeights<Cell>& weights, const Call& call,
                       std::int64_t from, std::int64_t count, DenseScratch<Cell>* scratch) {
    const std::int64_t batch = call.batch, rows = count * batch;
    const std::int64_t wide = Padded(sizes.hidden), mid_wide = Padded(MidSize<Cell>(sizes));
    const float* x = call.x + from * batch * sizes.input;
    if constexpr (kReadsInput<Cell>) ReadState(x, rows, sizes.input, scratch->x);
    if constexpr (kReadsLast<Cell>) {
      PairInputs(call, sizes.input, from, count, scratch->pairs);
      x = scratch->pairs;
    }
    weights.Project(sizes, x, rows, scratch->mid_input, scratch->input);
    for (std::int64_t row = 0; row < rows; row += batch) {
      const DenseStep<Cell> step{
          sizes,
          weights,
          kReadsInput<Cell> ? scratch->x + row * Padded(sizes.input) : nullptr,
          scratch->mid_input + row * mid_wide * Gates::MidInput::kCount,
          scratch->input + row * wide * Gates::UpdateInput::kCount,
          scratch->mid,
          scratch->sums,
          scratch->factor,
          scratch->state,
          scratch->next,
          call.y == nullptr ? nullptr : call.y + (from * batch + row) * sizes.hidden};
      step.Run(batch);
    }
  }

  static void Run(const Sizes& sizes, const void* packed, const Call& call, void* base) {
    const std::int64_t hidden = sizes.hidden, batch = call.batch;
    DenseWeights<Cell> weights(sizes, const_cast<void*>(packed));
    weights.params.ForCall(call.length);
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
    if constexpr (kReadsLast<Cell>) WriteLast(call, sizes.input);
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_DENSE_H_
