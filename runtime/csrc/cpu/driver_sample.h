// SPDX-License-Identifier: Apache-2.0
// The driver of rules of the kind kSample, which update all neurons of a sample or none.
//
// The drive of a sample is constant as long as its state does not change. Each update therefore
// computes the step of the next update, and the steps in between only repeat the output.

#pragma once

#include "cpu/driver_dense.h"

namespace edgernn::EDGERNN_ISA {

struct SampleWeights {
  float* params[kMaxRuleParams];  // (H,) and a vector of zeros, or a number in all lanes
  void* dense;                    // DenseWeights
  std::uint64_t bytes;

  SampleWeights(const RuleSpec& rule, const CellTable& cell, const LayerSizes& sizes,
                void* packed) {
    Arena arena(packed);
    for (int i = 0; i < kMaxRuleParams; ++i) {
      const std::int64_t vector = PadToLanes(sizes.hidden) + kLanes;
      const bool number = rule.params[i].rows.one > 0;
      params[i] = arena.Allocate<float>(!IsRead(rule, i) ? 0 : number ? kLanes : vector);
    }
    const std::uint64_t dense_bytes = DenseWeights(cell, sizes, nullptr).bytes;
    dense = arena.Allocate<char>(static_cast<std::int64_t>(dense_bytes));
    bytes = arena.used();
  }
};

struct SampleScratch {
  float* inputs;                // (B, columns of W): inputs of the samples in `active`
  float* state[kMaxStates];     // (B, padded H) each
  float* memory[kMaxMemories];  // (B,) each
  float* unread;                // (B, I): sums of inputs that no update has read yet, if pooled
  std::int64_t* next_update;    // (B,): the step of a sample's next update
  std::int64_t* next_input;     // (B,): the first step whose input is not in `unread`
  std::int64_t* active;         // (B,): samples that are updated at the current step
  std::int64_t* macs;           // (B,)
  void* dense;                  // DenseScratch of one step
  std::uint64_t bytes;

  SampleScratch(const RuleSpec& rule, const CellTable& cell, const LayerSizes& sizes,
                std::int64_t batch, void* scratch) {
    Arena arena(scratch);
    inputs = arena.Allocate<float>(batch * InputColumns(cell, sizes));
    for (int s = 0; s < cell.states; ++s) {
      state[s] = arena.Allocate<float>(batch * PadToLanes(sizes.hidden));
    }
    for (int i = 0; i < rule.equation_memories; ++i) memory[i] = arena.Allocate<float>(batch);
    unread = arena.Allocate<float>(rule.pool < 0 ? 0 : batch * sizes.input);
    next_update = arena.Allocate<std::int64_t>(batch);
    next_input = arena.Allocate<std::int64_t>(batch);
    active = arena.Allocate<std::int64_t>(batch);
    macs = arena.Allocate<std::int64_t>(batch);
    const std::uint64_t dense_bytes = DenseScratch(cell, sizes, 1, batch, nullptr).bytes;
    dense = arena.Allocate<char>(static_cast<std::int64_t>(dense_bytes));
    bytes = arena.used();
  }
};

// The rule's equations and memories for one sample of a call.
template <class Rule>
struct SampleRule {
  static constexpr RuleSpec kSpec = DescribeRule<Rule>();
  static_assert(kSpec.equation_memories > 0 && FitDecisions(kSpec),
                "a rule of the kind kSample needs memories of one number each");

  const LayerSizes& sizes;
  const Call& call;
  float* const* params;
  std::int64_t sample;
  float* const* memory;  // (B,) each
  std::int64_t* next_update;

  // Reads the rule's vectors from neuron j on, and its numbers.
  [[gnu::always_inline]] void Read(std::int64_t j, Vec* q) const {
#pragma GCC unroll 8
    for (int i = 0; i < kMaxRuleParams; ++i) {
      const bool number = kSpec.params[i].rows.one > 0;
      q[i] = IsRead(kSpec, i) ? Load(params[i] + (number ? 0 : j)) : Zero();
    }
  }

  [[gnu::always_inline]] void ReadMemories(Vec* m) const {
#pragma GCC unroll 8
    for (int i = 0; i < kSpec.equation_memories; ++i) m[i] = Fill(memory[i][sample]);
  }

  [[gnu::always_inline]] bool IsUpdated(const Vec* q) const {
    Vec m[kMaxMemories];
    ReadMemories(m);
    const float score = Rule::Score(m, q).raw[0];
    return Rule::kInclusive ? score >= 0.0f : score > 0.0f;
  }

  // The drive of a state (padded H,). The padding may have any values.
  [[gnu::noinline]] Vec Drive(const float* state) const {
    if constexpr (!Rule::kHasDrive) return Zero();
    Vec sum = Zero(), q[kMaxRuleParams];
    std::int64_t j = 0;
    for (; j + kLanes <= sizes.hidden; j += kLanes) {
      Read(j, q);
      sum = sum + Rule::Evidence(Load(state + j), q);
    }
    const std::int64_t left = sizes.hidden - j;
    if (left > 0) {
      Read(j, q);
      Vec tail = Rule::Evidence(Load(state + j), q);
      for (std::int64_t lane = left; lane < kLanes; ++lane) tail.raw[lane] = 0.0f;
      sum = sum + tail;
    }
    Read(0, q);
    return Rule::Drive(Fill(Sum4(sum, sum, sum, sum)[0]), q);
  }

  // Advances the memories by one step.
  [[gnu::always_inline]] void Advance(Vec u, Vec drive, const Vec* q) const {
    Vec m[kMaxMemories];
    ReadMemories(m);
    Rule::Advance(u, Rule::Score(m, q), drive, q, m);
#pragma GCC unroll 8
    for (int i = 0; i < kSpec.equation_memories; ++i) memory[i][sample] = m[i].raw[0];
  }

  // Finds the sample's next update from step `t` on, and writes its output h until then.
  [[gnu::noinline]] void SkipSteps(std::int64_t t, Vec drive, const float* h) const {
    Vec q[kMaxRuleParams];
    Read(0, q);
    for (; t < call.steps && !IsUpdated(q); ++t) {
      Advance(Zero(), drive, q);
      Write(t, 0, h);
    }
    *next_update = t;
  }

  void Write(std::int64_t t, std::int64_t updates, const float* h) const {
    const std::int64_t row = t * call.batch + sample;
    if (call.updates != nullptr) call.updates[row] = updates;
    if (call.y == nullptr) return;
    std::memcpy(call.y + row * sizes.hidden, h, Bytes(sizes.hidden));
  }
};

template <class Rule>
struct SampleDriver {
  using Sample = SampleRule<Rule>;
  static constexpr RuleSpec kSpec = Sample::kSpec;

  static std::uint64_t PackedBytes(const Kernel& kernel, const LayerSizes& sizes) {
    return SampleWeights(kSpec, *kernel.cell, sizes, nullptr).bytes;
  }

  static std::uint64_t ScratchBytes(const Kernel& kernel, const LayerSizes& sizes, std::int64_t,
                                    std::int64_t batch) {
    return SampleScratch(kSpec, *kernel.cell, sizes, batch, nullptr).bytes;
  }

  static std::uint64_t KeptBytes(const Kernel&, const LayerSizes&, std::int64_t) { return 0; }

  static void Pack(const Kernel& kernel, const LayerSizes& sizes, const Weights& from,
                   void* packed) {
    const SampleWeights to(kSpec, *kernel.cell, sizes, packed);
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (!IsRead(kSpec, i)) continue;
      const bool number = kSpec.params[i].rows.one > 0;
      for (std::int64_t j = 0; j < (number ? kLanes : PadToLanes(sizes.hidden) + kLanes); ++j) {
        to.params[i][j] = number ? from.rule[i][0] : j < sizes.hidden ? from.rule[i][j] : 0.0f;
      }
    }
    DenseDriver::Pack(kernel, sizes, from, to.dense);
  }

  // The number by which the sum of the inputs since the last update is divided; 0: the cell reads
  // x.
  static float PooledInputs(const SampleWeights& rule) {
    return kSpec.pool < 0 ? 0.0f : rule.params[kSpec.pool][0];
  }

  // Adds the inputs of sample b before step `end` to its sum of inputs that no update has read.
  static void AddInputs(const Call& call, std::int64_t input, std::int64_t b, std::int64_t end,
                        const SampleScratch& scratch) {
    float* const sum = scratch.unread + b * input;
    for (std::int64_t t = scratch.next_input[b]; t < end; ++t) {
      const float* const x = call.x + (t * call.batch + b) * input;
      for (std::int64_t k = 0; k < input; ++k) sum[k] += x[k];
    }
    scratch.next_input[b] = end;
  }

  // Runs step t of the first `count` samples in `active`. `step` has the buffers of a subset.
  static void Step(DenseStep step, const Call& call, std::int64_t t, std::int64_t count, float pool,
                   SampleScratch* scratch, const DenseScratch& dense) {
    const CellKernel& cell = step.cell;
    const LayerSizes& sizes = step.sizes;
    const std::int64_t input = sizes.input, columns = InputColumns(cell, sizes);
    const std::int64_t padded = PadToLanes(sizes.hidden);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = t * call.batch + scratch->active[i];
      float* to = scratch->inputs + i * columns;
      if (pool > 0.0f) {
        const std::int64_t b = scratch->active[i];
        AddInputs(call, input, b, t + 1, *scratch);
        float* const sum = scratch->unread + b * input;
        for (std::int64_t k = 0; k < input; ++k) {
          to[k] = sum[k] / pool;
          sum[k] = 0.0f;
        }
      } else {
        std::memcpy(to, call.x + row * input, Bytes(input));
      }
      if (cell.reads_last) std::memcpy(to + input, LastInput(call, row, input), Bytes(input));
    }
    if (cell.reads_input) ReadState(scratch->inputs, count, input, dense.x);
    step.weights.mid.Project(scratch->inputs, count, columns, dense.quantized, step.mid_sums);
    step.weights.update.Project(scratch->inputs, count, columns, dense.quantized, step.sums);
    // if all samples are updated, their states need no gather and scatter
    const bool all = count == call.batch;
    if (all) step.state = scratch->state;
    for (std::int64_t i = 0; !all && i < count; ++i) {
      for (int s = 0; s < cell.states; ++s) {
        std::memcpy(dense.state[s] + i * padded, scratch->state[s] + scratch->active[i] * padded,
                    Bytes(padded));
      }
    }
    step.Run(count);
    for (std::int64_t i = 0; !all && i < count; ++i) {
      for (int s = 0; s < cell.states; ++s) {
        std::memcpy(scratch->state[s] + scratch->active[i] * padded, dense.state[s] + i * padded,
                    Bytes(padded));
      }
    }
  }

  static void Run(const Kernel& kernel, const LayerSizes& sizes, const void* packed,
                  const Call& call, void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden, padded = PadToLanes(hidden), batch = call.batch;
    const SampleWeights rule(kSpec, cell, sizes, const_cast<void*>(packed));
    const DenseWeights& weights = DenseWeights::In(rule.dense);
    const CallParams params(cell, weights.params, call.length);
    SampleScratch scratch(kSpec, cell, sizes, batch, base);
    DenseScratch dense(cell, sizes, 1, batch, scratch.dense);
    DenseProducts products(weights);
    const DenseStep step(cell, sizes, weights, params.at(), &products, &dense);
    const int evidence_state = EvidenceState(cell.states);
    const std::int64_t step_macs = weights.Macs(cell, sizes);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, hidden, scratch.state[s]);
    }
    const auto sample_of = [&](std::int64_t b) {
      return Sample{sizes, call, rule.params, b, scratch.memory, scratch.next_update + b};
    };
    Vec q[kMaxRuleParams];
    sample_of(0).Read(0, q);
    const std::int64_t decision_macs = DecisionMacs(kSpec, sizes.input, hidden, hidden);
    // finds the next update of sample b, after the update of step t if there was one
    const auto schedule = [&](std::int64_t b, std::int64_t t, bool updated) {
      const Sample sample = sample_of(b);
      const float* h = scratch.state[0] + b * padded;
      const Vec drive = sample.Drive(scratch.state[evidence_state] + b * padded);
      scratch.macs[b] += decision_macs;
      if (updated) {
        scratch.macs[b] += step_macs;
        sample.Advance(Fill(1.0f), drive, q);
        sample.Write(t++, hidden, h);
      }
      sample.SkipSteps(t, drive, h);
    };
    for (int i = 0; i < kSpec.equation_memories; ++i) {
      std::memcpy(scratch.memory[i], call.memory_in[i], Bytes(batch));
    }
    const float pool = PooledInputs(rule);
    if constexpr (kSpec.pool >= 0) {
      std::memcpy(scratch.unread, call.memory_in[kSpec.equation_memories],
                  Bytes(batch * sizes.input));
    }
    for (std::int64_t b = 0; b < batch; ++b) {
      scratch.next_input[b] = scratch.next_update[b] = 0;
      scratch.macs[b] = pool > 0.0f ? call.steps * sizes.input : 0;
      if (!sample_of(b).IsUpdated(q)) schedule(b, 0, false);
    }
    for (;;) {
      std::int64_t t = call.steps, count = 0;
      for (std::int64_t b = 0; b < batch; ++b) {
        t = scratch.next_update[b] < t ? scratch.next_update[b] : t;
      }
      if (t == call.steps) break;
      for (std::int64_t b = 0; b < batch; ++b) {
        if (scratch.next_update[b] == t) scratch.active[count++] = b;
      }
      Step(step, call, t, count, pool, &scratch, dense);
      for (std::int64_t i = 0; i < count; ++i) schedule(scratch.active[i], t, true);
    }
    for (int s = 0; s < cell.states; ++s) {
      WriteState(scratch.state[s], batch, hidden, call.state_out[s]);
    }
    if (cell.reads_last) WriteLast(call, sizes.input);
    for (int i = 0; i < kSpec.equation_memories; ++i) {
      if (call.memory_out[i] == nullptr) continue;
      std::memcpy(call.memory_out[i], scratch.memory[i], Bytes(batch));
    }
    if constexpr (kSpec.pool >= 0) {
      for (std::int64_t b = 0; pool > 0.0f && b < batch; ++b) {
        AddInputs(call, sizes.input, b, call.steps, scratch);
      }
      float* const unread = call.memory_out[kSpec.equation_memories];
      if (unread != nullptr) std::memcpy(unread, scratch.unread, Bytes(batch * sizes.input));
    }
    for (std::int64_t b = 0; b < batch; ++b) {
      if (call.macs != nullptr) call.macs[b] = scratch.macs[b];
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
