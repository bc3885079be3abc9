// SPDX-License-Identifier: Apache-2.0
// Runs a cell under the rule `always`: every neuron at every step.

#ifndef EDGERNN_DENSE_H_
#define EDGERNN_DENSE_H_

#include "gemm.h"
#include "state.h"

namespace edgernn::EDGERNN_ISA {

template <class Cell>
struct DenseGates {
  using Input = GateSet<Cell, kX>;
  using Mid = GateSet<Cell, kMid>;
  using MidHidden = GateSet<Cell, kMid | kH>;
  using Update = GateSet<Cell, 0, kMid>;
  using UpdateHidden = GateSet<Cell, kH, kMid>;
  using UpdateMid = GateSet<Cell, kM, kMid>;
};

// The packed weights.
template <class Cell>
struct DenseWeights {
  using Gates = DenseGates<Cell>;
  float* w;
  float* b;
  float* r_mid;
  float* r;
  float* v;
  std::size_t bytes;

  DenseWeights(const Sizes& sizes, void* base) {
    const std::int64_t padded = Padded(sizes.hidden);
    Carver carver(base);
    w = carver.Take<float>(padded * sizes.input * Gates::Input::kCount);
    b = carver.Take<float>(padded * kGateCount<Cell>);
    r_mid = carver.Take<float>(padded * sizes.hidden * Gates::MidHidden::kCount);
    r = carver.Take<float>(padded * sizes.hidden * Gates::UpdateHidden::kCount);
    v = carver.Take<float>(padded * sizes.hidden * Gates::UpdateMid::kCount);
    bytes = carver.used();
  }
};

template <class Cell>
struct DenseScratch {
  std::int64_t chunk;
  float* input;                     // (chunk, B, blocks, input gates, lanes)
  float* next;                      // (B, padded H): the first state being made
  float* mid;                       // (B, padded H)
  float* state[kStateCount<Cell>];  // (B, padded H) each
  std::size_t bytes;

  DenseScratch(const Sizes& sizes, std::int64_t steps, std::int64_t batch, void* base) {
    const std::int64_t size = batch * Padded(sizes.hidden);
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    input = carver.Take<float>(chunk * size * DenseGates<Cell>::Input::kCount);
    next = carver.Take<float>(size);
    mid = carver.Take<float>(DenseGates<Cell>::Mid::kCount > 0 ? size : 0);
    for (float*& s : state) s = carver.Take<float>(size);
    bytes = carver.used();
  }
};

// The pre-activations of one row and block before the terms with h and m: input part or bias.
template <class Cell>
[[gnu::always_inline]] inline void LoadInputPart(const float* input, const float* b, Vec* p) {
#pragma GCC unroll 16
  for (int g = 0; g < kGateCount<Cell>; ++g) {
    const int rank = kRanks<Cell, kX>.of[g];
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
  const float* input;   // (B, blocks, input gates, lanes)
  float* const* state;  // (B, padded H) each
  float* next;          // (B, padded H)
  float* mid;           // (B, padded H)
  float* y;             // (B, H) or null

  std::int64_t At(std::int64_t row, std::int64_t block) const {
    return (row * blocks + block) * kLanes;
  }

  template <int MB, int NB>
  [[gnu::always_inline]] void Begin(std::int64_t row, std::int64_t block,
                                    Vec (&p)[MB][NB][kG]) const {
    for (int i = 0; i < MB; ++i) {
      for (int j = 0; j < NB; ++j) {
        LoadInputPart<Cell>(input + At(row + i, block + j) * Gates::Input::kCount,
                            weights.b + (block + j) * kG * kLanes, p[i][j]);
      }
    }
  }

  // p += a W^T over `depth` = H columns of the matrix packed at `w`.
  template <class Set, int MB, int NB>
  [[gnu::always_inline]] void Add(const float* a, const float* w, std::int64_t row,
                                  std::int64_t block, Vec (&p)[MB][NB][kG]) const {
    if constexpr (Set::kCount > 0) {
      const std::int64_t stride = blocks * kLanes;
      Accumulate<Set>(a + row * stride, stride, hidden, w + block * hidden * Set::kCount * kLanes,
                      p);
    }
  }

  struct MidStage {
    const DenseStep& step;

    template <int MB, int NB>
    void Tile(std::int64_t row, std::int64_t block) const {
      Vec p[MB][NB][kG];
      step.Begin(row, block, p);
      step.template Add<typename Gates::MidHidden>(step.state[0], step.weights.r_mid, row, block,
                                                   p);
      for (int i = 0; i < MB; ++i) {
        for (int j = 0; j < NB; ++j) {
          const std::int64_t at = step.At(row + i, block + j);
          Vec state[kStates];
          for (int s = 0; s < kStates; ++s) state[s] = Load(step.state[s] + at);
          Store(step.mid + at, Cell::Mid(p[i][j], state));
        }
      }
    }
  };

  struct UpdateStage {
    const DenseStep& step;

    template <int MB, int NB>
    void Tile(std::int64_t row, std::int64_t block) const {
      Vec p[MB][NB][kG];
      step.Begin(row, block, p);
      step.template Add<typename Gates::UpdateHidden>(step.state[0], step.weights.r, row, block, p);
      step.template Add<typename Gates::UpdateMid>(step.mid, step.weights.v, row, block, p);
      for (int i = 0; i < MB; ++i) {
        for (int j = 0; j < NB; ++j) step.Finish(row + i, block + j, p[i][j]);
      }
    }
  };

  [[gnu::always_inline]] void Finish(std::int64_t row, std::int64_t block, const Vec* p) const {
    const std::int64_t at = At(row, block);
    Vec now[kStates];
    for (int s = 0; s < kStates; ++s) now[s] = Load(state[s] + at);
    Cell::Update(p, now);
    Store(next + at, now[0]);
    for (int s = 1; s < kStates; ++s) Store(state[s] + at, now[s]);
    if (y != nullptr) {
      const std::int64_t first = block * kLanes;
      StoreFirst(y + row * hidden + first, now[0], hidden - first);
    }
  }

  void Run(std::int64_t batch) const {
    if constexpr (Gates::Mid::kCount > 0) {
      ForTiles<Gates::Mid::kCount>(MidStage{*this}, batch, blocks);
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
    const std::int64_t hidden = sizes.hidden;
    const DenseWeights<Cell> to(sizes, packed);
    PackBlocks<Cell, kX, typename Gates::Input>(from.w, hidden, sizes.input, to.w);
    PackBias<Cell>(from.b, hidden, to.b);
    PackBlocks<Cell, kH, typename Gates::MidHidden>(from.r, hidden, hidden, to.r_mid);
    PackBlocks<Cell, kH, typename Gates::UpdateHidden>(from.r, hidden, hidden, to.r);
    PackBlocks<Cell, kM, typename Gates::UpdateMid>(from.v, hidden, hidden, to.v);
  }

  static void Run(const Sizes& sizes, const void* packed, const Call& call, void* base) {
    const std::int64_t hidden = sizes.hidden, batch = call.batch, blocks = Blocks(hidden);
    const DenseWeights<Cell> weights(sizes, const_cast<void*>(packed));
    DenseScratch<Cell> scratch(sizes, call.steps, batch, base);
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      ReadState(call.state_in[s], batch, hidden, scratch.state[s]);
    }
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      const std::int64_t count = left < scratch.chunk ? left : scratch.chunk;
      const Projection<typename Gates::Input, kGateCount<Cell>> projection{
          call.x + from * batch * sizes.input,
          sizes.input,
          weights.w,
          weights.b,
          blocks,
          scratch.input};
      ForTiles<Gates::Input::kCount>(projection, count * batch, blocks);
      for (std::int64_t t = 0; t < count; ++t) {
        float* y = call.y == nullptr ? nullptr : call.y + (from + t) * batch * hidden;
        const float* input = scratch.input + t * batch * blocks * Gates::Input::kCount * kLanes;
        DenseStep<Cell>{weights, hidden, blocks, input, scratch.state, scratch.next, scratch.mid, y}
            .Run(batch);
        float* old = scratch.state[0];
        scratch.state[0] = scratch.next;
        scratch.next = old;
      }
    }
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      WriteState(scratch.state[s], batch, hidden, call.state_out[s]);
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_DENSE_H_
