// SPDX-License-Identifier: Apache-2.0
// Runs a cell under the rule `selective`: at every step only the neurons that the rule picks.

#ifndef EDGERNN_SELECTIVE_H_
#define EDGERNN_SELECTIVE_H_

#include "compress.h"
#include "neuron_rows.h"
#include "params.h"
#include "state.h"

namespace edgernn::EDGERNN_ISA {

// The rule as a layer of one gate, so that the generic packing and projection serve it.
struct Coordinator {
  static constexpr Gate kGates[] = {{"v", kX | kBias}};
  using Input = GateSet<Coordinator, kX>;
};

template <class Cell>
struct MidGates {
  using All = GateSet<Cell, kMid>;
  using Input = GateSet<Cell, kMid | kX>;
  using Hidden = GateSet<Cell, kMid | kH>;

  static std::int64_t Macs(const Sizes& sizes) {
    return MidSize<Cell>(sizes) * (sizes.input * Input::kCount + sizes.hidden * Hidden::kCount);
  }
};

template <class Cell>
struct SelectiveWeights {
  float* rule_w;  // packed blocks
  float* rule_d;  // (padded H,)
  float* rule_b;  // (padded H,)
  float* rows;    // see neuron_rows.h
  float* row_b;   // (H, kSums)
  float* mid_w;   // packed blocks, as are the next two
  float* mid_r;
  float* mid_b;
  PackedParams<Cell> params;
  std::size_t bytes;

  SelectiveWeights(const Sizes& sizes, void* base) {
    const std::int64_t padded = Padded(sizes.hidden), middle = Padded(MidSize<Cell>(sizes));
    Carver carver(base);
    rule_w = carver.Take<float>(padded * sizes.input);
    rule_d = carver.Take<float>(padded);
    rule_b = carver.Take<float>(padded);
    rows = carver.Take<float>(sizes.hidden * RowGates<Cell>::Floats(sizes));
    row_b = carver.Take<float>(sizes.hidden * RowGates<Cell>::kSums);
    mid_w = carver.Take<float>(middle * sizes.input * MidGates<Cell>::Input::kCount);
    mid_r = carver.Take<float>(middle * sizes.hidden * MidGates<Cell>::Hidden::kCount);
    mid_b = carver.Take<float>(MidGates<Cell>::All::kCount > 0 ? middle * kGateCount<Cell> : 0);
    params.Carve(sizes, &carver);
    bytes = carver.used();
  }
};

template <class Cell>
struct SelectiveScratch {
  std::int64_t chunk;
  float* rule;                             // (chunk, B, padded H)
  float* x;                                // (padded I,)
  float* mid;                              // (padded M,)
  float* sums;                             // (gates, padded H) of the neurons in the list
  float* picked[kStateCount<Cell>];        // (padded H,) each: their states
  float* picked_param[kParamSlots<Cell>];  // (padded H,) each: their parameters, if of size H
  float* state[kStateCount<Cell>];         // (B, padded H) each
  std::int32_t* list;                      // (padded H + lanes,)
  std::int64_t* macs;                      // (B,)
  std::size_t bytes;

  SelectiveScratch(const Sizes& sizes, std::int64_t steps, std::int64_t batch, void* base) {
    const std::int64_t padded = Padded(sizes.hidden);
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    rule = carver.Take<float>(chunk * batch * padded);
    x = carver.Take<float>(Padded(sizes.input));
    mid = carver.Take<float>(Padded(MidSize<Cell>(sizes)));
    sums = carver.Take<float>(padded * RowGates<Cell>::All::kCount);
    for (float*& s : picked) s = carver.Take<float>(padded);
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      picked_param[i] = carver.Take<float>(IsPicked(i) ? padded : 0);
    }
    for (float*& s : state) s = carver.Take<float>(batch * padded);
    list = carver.Take<std::int32_t>(padded + kLanes);
    macs = carver.Take<std::int64_t>(batch);
    bytes = carver.used();
  }

  // Whether each neuron has a value of its own of parameter i.
  static bool IsPicked(int i) { return ParamsOf<Cell>::kList[i].extent == Extent::kHidden; }
};

// One time step of one sample.
template <class Cell>
struct SelectiveStep {
  static constexpr int kStates = kStateCount<Cell>;
  static constexpr int kG = kGateCount<Cell>;
  using Gates = RowGates<Cell>;

  const Sizes& sizes;
  const SelectiveWeights<Cell>& weights;
  const SelectiveScratch<Cell>& scratch;
  const float* x;         // (I,)
  float* state[kStates];  // (padded H,) each

  // Lists the neurons to update, given the coordinator's input part (padded H,).
  std::int64_t List(const float* rule) const {
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
      const Vec v = Load(rule + j) + Load(weights.rule_d + j) * Load(state[0] + j);
      count += ListPositive(v, static_cast<std::int32_t>(j), scratch.list + count);
    }
    return count;
  }

  // m of NB blocks, for TileBlocks.
  template <int MB, int NB>
  void Tile(std::int64_t, std::int64_t block) const {
    Vec p[1][NB][kG];
    for (int j = 0; j < NB; ++j) {
      const float* b = weights.mid_b + (block + j) * kG * kLanes;
      for (int g = 0; g < kG; ++g) p[0][j][g] = Load(b + g * kLanes);
    }
    const std::int64_t row = block * kLanes;
    if constexpr (MidGates<Cell>::Input::kCount > 0) {
      using Set = typename MidGates<Cell>::Input;
      Accumulate<Set>(x, 0, sizes.input, weights.mid_w + row * sizes.input * Set::kCount, p);
    }
    if constexpr (MidGates<Cell>::Hidden::kCount > 0) {
      using Set = typename MidGates<Cell>::Hidden;
      Accumulate<Set>(state[0], 0, sizes.hidden, weights.mid_r + row * sizes.hidden * Set::kCount,
                      p);
    }
    for (int j = 0; j < NB; ++j) {
      const std::int64_t at = row + j * kLanes;
      Store(scratch.mid + at, RunMid<Cell>(weights.params, p[0][j], at, scratch.x, state, at));
    }
  }

  // Pre-activations and states of the listed neurons from `first` on, N at a time, side by side.
  template <int N>
  void Gather(std::int64_t first, std::int64_t count) const {
    const Factors factors{scratch.x, state[0], scratch.mid};
    for (; first + N <= count; first += N) {
      const std::int32_t* neurons = scratch.list + first;
      MultiplyNeurons<Cell, N>(sizes, factors, weights.rows, weights.row_b, neurons,
                               scratch.sums + first, Padded(sizes.hidden));
      for (int n = 0; n < N; ++n) {
        for (int s = 0; s < kStates; ++s) scratch.picked[s][first + n] = state[s][neurons[n]];
        for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
          if (!scratch.IsPicked(i)) continue;
          scratch.picked_param[i][first + n] = weights.params.at[i][neurons[n]];
        }
      }
    }
    if constexpr (N > 1) Gather<N / 2>(first, count);
  }

  void Update(std::int64_t count) const {
    const std::int64_t stride = Padded(sizes.hidden);
    for (std::int64_t i = 0; i < count; i += kLanes) {
      Vec p[kG];
      for (int g = 0; g < Gates::All::kCount; ++g) {
        p[Gates::All::kList.at[g]] = Load(scratch.sums + g * stride + i);
      }
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
    for (std::int64_t i = 0; i < count; ++i) {
      for (int s = 0; s < kStates; ++s) state[s][scratch.list[i]] = scratch.picked[s][i];
    }
  }

  // Returns how many neurons changed; adds what was multiplied to macs.
  std::int64_t Run(const float* rule, std::int64_t* macs) const {
    const std::int64_t count = List(rule);
    *macs += sizes.hidden * sizes.input + sizes.hidden;
    if (count == 0) return 0;
    std::memcpy(scratch.x, x, static_cast<std::size_t>(sizes.input) * sizeof(float));
    if constexpr (MidGates<Cell>::All::kCount > 0) {
      const std::int64_t middle = MidSize<Cell>(sizes);
      TileBlocks<1, FitBlocks(MidGates<Cell>::All::kCount, 1)>(*this, 1, 0, Blocks(middle));
      // an infinite x times the 0 weights of the padding is NaN, and rows are read padding and all
      std::memset(scratch.mid + middle, 0,
                  static_cast<std::size_t>(Padded(middle) - middle) * sizeof(float));
      *macs += MidGates<Cell>::Macs(sizes);
    }
    Gather<2>(0, count);
    *macs += count * Gates::Macs(sizes);
    Update(count);
    return count;
  }
};

template <class Cell>
struct SelectiveDriver {
  static std::size_t PackedBytes(const Sizes& sizes) {
    return SelectiveWeights<Cell>(sizes, nullptr).bytes;
  }

  static std::size_t ScratchBytes(const Sizes& sizes, std::int64_t steps, std::int64_t batch) {
    return SelectiveScratch<Cell>(sizes, steps, batch, nullptr).bytes;
  }

  static void Pack(const Sizes& sizes, const Weights& from, void* packed) {
    const std::int64_t hidden = sizes.hidden, input = sizes.input;
    const SelectiveWeights<Cell> to(sizes, packed);
    PackBlocks<Coordinator, kX, Coordinator::Input>(sizes, from.rule[0], hidden, input, to.rule_w);
    for (std::int64_t j = 0; j < Padded(hidden); ++j) {
      to.rule_d[j] = j < hidden ? from.rule[1][j] : 0.0f;
      to.rule_b[j] = j < hidden ? from.rule[2][j] : 0.0f;
    }
    PackRows<Cell>(sizes, from, to.rows, to.row_b);
    if constexpr (MidGates<Cell>::All::kCount > 0) {
      using Gates = MidGates<Cell>;
      const std::int64_t middle = MidSize<Cell>(sizes);
      PackBlocks<Cell, kX, typename Gates::Input>(sizes, from.w, middle, input, to.mid_w);
      PackBlocks<Cell, kH, typename Gates::Hidden>(sizes, from.r, middle, hidden, to.mid_r);
      PackBias<Cell, typename Gates::All>(sizes, from.b, middle, to.mid_b);
    }
    to.params.Pack(sizes, from);
  }

  // Projects the rule's input part of `count` steps and runs them.
  static void RunChunk(const Sizes& sizes, const SelectiveWeights<Cell>& weights,
                       const SelectiveScratch<Cell>& scratch, const Call& call, std::int64_t from,
                       std::int64_t count) {
    const std::int64_t hidden = sizes.hidden, padded = Padded(hidden);
    const std::int64_t first = from * call.batch;
    const Projection<Coordinator::Input, 1> projection{call.x + first * sizes.input,
                                                       sizes.input,
                                                       weights.rule_w,
                                                       weights.rule_b,
                                                       Blocks(hidden),
                                                       scratch.rule};
    ForTiles<1>(projection, count * call.batch, Blocks(hidden));
    for (std::int64_t row = 0; row < count * call.batch; ++row) {
      const std::int64_t sample = row % call.batch;
      SelectiveStep<Cell> step{sizes, weights, scratch, call.x + (first + row) * sizes.input, {}};
      for (int s = 0; s < kStateCount<Cell>; ++s) {
        step.state[s] = scratch.state[s] + sample * padded;
      }
      const std::int64_t updates = step.Run(scratch.rule + row * padded, scratch.macs + sample);
      if (call.updates != nullptr) call.updates[first + row] = updates;
      if (call.y != nullptr) {
        std::memcpy(call.y + (first + row) * hidden, step.state[0],
                    static_cast<std::size_t>(hidden) * sizeof(float));
      }
    }
  }

  static void Run(const Sizes& sizes, const void* packed, const Call& call, void* base) {
    const SelectiveWeights<Cell> weights(sizes, const_cast<void*>(packed));
    const SelectiveScratch<Cell> scratch(sizes, call.steps, call.batch, base);
    std::memset(base, 0, scratch.bytes);
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      ReadState(call.state_in[s], call.batch, sizes.hidden, scratch.state[s]);
    }
    for (std::int64_t from = 0; from < call.steps; from += scratch.chunk) {
      const std::int64_t left = call.steps - from;
      RunChunk(sizes, weights, scratch, call, from, left < scratch.chunk ? left : scratch.chunk);
    }
    for (int s = 0; s < kStateCount<Cell>; ++s) {
      WriteState(scratch.state[s], call.batch, sizes.hidden, call.state_out[s]);
    }
    for (std::int64_t b = 0; call.macs != nullptr && b < call.batch; ++b) {
      call.macs[b] = scratch.macs[b];
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_SELECTIVE_H_
