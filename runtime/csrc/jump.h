// SPDX-License-Identifier: Apache-2.0
// Runs a cell under the rule `skip`: all neurons of a sample or none. How long a sample waits is
// known when it starts to, so the steps between are jumped over.

#ifndef EDGERNN_JUMP_H_
#define EDGERNN_JUMP_H_

#include "dense.h"

namespace edgernn::EDGERNN_ISA {

struct JumpWeights {
  float* w;  // (H,), and a vector of 0
  float* b;  // (1,)
  void* base;
  std::size_t bytes;

  JumpWeights(const CellTable& cell, const Sizes& sizes, void* packed) {
    Carver carver(packed);
    w = carver.Take<float>(Padded(sizes.hidden) + kLanes);
    b = carver.Take<float>(1);
    const std::size_t dense = DenseWeights(cell, sizes, nullptr).bytes;
    base = carver.Take<char>(static_cast<std::int64_t>(dense));
    bytes = carver.used();
  }
};

struct JumpScratch {
  float* inputs;             // (B, columns of W): those of the samples in `active`
  float* state[kMaxStates];  // (B, padded H) each
  float* pressure;           // (B,)
  std::int64_t* due;         // (B,): the step at which a sample changes next
  std::int64_t* active;      // (B,): samples that change at the step at hand
  std::int64_t* macs;        // (B,)
  void* base;                // DenseScratch of one step
  std::size_t bytes;

  JumpScratch(const CellTable& cell, const Sizes& sizes, std::int64_t batch, void* scratch) {
    Carver carver(scratch);
    inputs = carver.Take<float>(batch * InputColumns(cell, sizes));
    for (int s = 0; s < cell.states; ++s) {
      state[s] = carver.Take<float>(batch * Padded(sizes.hidden));
    }
    pressure = carver.Take<float>(batch);
    due = carver.Take<std::int64_t>(batch);
    active = carver.Take<std::int64_t>(batch);
    macs = carver.Take<std::int64_t>(batch);
    const std::size_t dense = DenseScratch(cell, sizes, 1, batch, nullptr).bytes;
    base = carver.Take<char>(static_cast<std::int64_t>(dense));
    bytes = carver.used();
  }
};

// Where one sample of a call stands.
struct Waiting {
  const Sizes& sizes;
  const Call& call;
  const float* w;
  const float* b;
  std::int64_t sample;
  float* pressure;
  std::int64_t* due;

  // Δ, from a state (padded H,), whose padding may be anything.
  [[gnu::noinline]] float Grow(const float* state) const {
    Vec sum = Zero();
    std::int64_t j = 0;
    for (; j + kLanes <= sizes.hidden; j += kLanes) sum = sum + Load(w + j) * Load(state + j);
    Vec rest = Zero();
    std::memcpy(&rest, state + j, Bytes(sizes.hidden - j));
    sum = sum + Load(w + j) * rest;
    return Sigmoid(Fill(Sum4(sum, sum, sum, sum)[0] + *b)).raw[0];
  }

  // From step `t` on: finds when the sample changes next, writes its output h until then.
  [[gnu::noinline]] void Wait(std::int64_t t, float growth, const float* h) const {
    for (; t < call.steps && !(*pressure >= 0.5f); ++t) {
      const float room = 1.0f - *pressure;
      *pressure += room < growth ? room : growth;
      Write(t, 0, h);
    }
    *due = t;
  }

  void Write(std::int64_t t, std::int64_t updates, const float* h) const {
    const std::int64_t row = t * call.batch + sample;
    if (call.updates != nullptr) call.updates[row] = updates;
    if (call.y == nullptr) return;
    std::memcpy(call.y + row * sizes.hidden, h, Bytes(sizes.hidden));
  }
};

struct Jump {
  static std::size_t PackedBytes(const Kernel& kernel, const Sizes& sizes) {
    return JumpWeights(*kernel.cell, sizes, nullptr).bytes;
  }

  static std::size_t ScratchBytes(const Kernel& kernel, const Sizes& sizes, std::int64_t,
                                  std::int64_t batch) {
    return JumpScratch(*kernel.cell, sizes, batch, nullptr).bytes;
  }

  static void Pack(const Kernel& kernel, const Sizes& sizes, const Weights& from, void* packed) {
    const JumpWeights to(*kernel.cell, sizes, packed);
    for (std::int64_t j = 0; j < Padded(sizes.hidden) + kLanes; ++j) {
      to.w[j] = j < sizes.hidden ? from.rule[0][j] : 0.0f;
    }
    *to.b = from.rule[1][0];
    Dense::Pack(kernel, sizes, from, to.base);
  }

  // Step t of the first `count` samples in `active`; `step` has the buffers of some of them.
  static void Step(DenseStep step, const Call& call, std::int64_t t, std::int64_t count,
                   JumpScratch* scratch, const DenseScratch& dense) {
    const CellKernel& cell = step.cell;
    const Sizes& sizes = step.sizes;
    const std::int64_t input = sizes.input, columns = InputColumns(cell, sizes);
    const std::int64_t padded = Padded(sizes.hidden);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = t * call.batch + scratch->active[i];
      float* to = scratch->inputs + i * columns;
      std::memcpy(to, call.x + row * input, Bytes(input));
      if (cell.reads_last) std::memcpy(to + input, LastInput(call, row, input), Bytes(input));
    }
    if (cell.reads_input) ReadState(scratch->inputs, count, input, dense.x);
    step.weights.mid.Project(scratch->inputs, count, columns, dense.shorts, step.mid_sums);
    step.weights.update.Project(scratch->inputs, count, columns, dense.shorts, step.sums);
    // where all samples change their states are in place
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

  static void Run(const Kernel& kernel, const Sizes& sizes, const void* packed, const Call& call,
                  void* base) {
    const CellKernel& cell = *kernel.cell;
    const std::int64_t hidden = sizes.hidden, padded = Padded(hidden), batch = call.batch;
    const JumpWeights rule(cell, sizes, const_cast<void*>(packed));
    const DenseWeights weights(cell, sizes, rule.base);
    const CallParams params(cell, weights.params, call.length);
    JumpScratch scratch(cell, sizes, batch, base);
    DenseScratch dense(cell, sizes, 1, batch, scratch.base);
    const DenseStep step{cell,         sizes,          weights,    params.at(),
                         dense.x,      dense.mid_sums, dense.sums, dense.mid,
                         dense.factor, dense.shorts,   dense.state, dense.next,
                         nullptr};
    // the state that the rule reads: c where there is one
    const int read = cell.states > 1 ? 1 : 0;
    const std::int64_t step_macs = weights.Macs(cell, sizes);
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, hidden, scratch.state[s]);
    }
    const auto wait = [&](std::int64_t b, std::int64_t t, bool updated) {
      const Waiting sample{sizes, call, rule.w, rule.b, b, scratch.pressure + b, scratch.due + b};
      const float* h = scratch.state[0] + b * padded;
      const float growth = sample.Grow(scratch.state[read] + b * padded);
      scratch.macs[b] += hidden;
      if (updated) {
        scratch.macs[b] += step_macs;
        scratch.pressure[b] = growth;
        sample.Write(t++, hidden, h);
      }
      sample.Wait(t, growth, h);
    };
    for (std::int64_t b = 0; b < batch; ++b) {
      scratch.pressure[b] = call.memory_in[b];
      scratch.macs[b] = scratch.due[b] = 0;
      if (!(scratch.pressure[b] >= 0.5f)) wait(b, 0, false);
    }
    for (;;) {
      std::int64_t t = call.steps, count = 0;
      for (std::int64_t b = 0; b < batch; ++b) t = scratch.due[b] < t ? scratch.due[b] : t;
      if (t == call.steps) break;
      for (std::int64_t b = 0; b < batch; ++b) {
        if (scratch.due[b] == t) scratch.active[count++] = b;
      }
      Step(step, call, t, count, &scratch, dense);
      for (std::int64_t i = 0; i < count; ++i) wait(scratch.active[i], t, true);
    }
    for (int s = 0; s < cell.states; ++s) {
      WriteState(scratch.state[s], batch, hidden, call.state_out[s]);
    }
    if (cell.reads_last) WriteLast(call, sizes.input);
    for (std::int64_t b = 0; b < batch; ++b) {
      if (call.memory_out != nullptr) call.memory_out[b] = scratch.pressure[b];
      if (call.macs != nullptr) call.macs[b] = scratch.macs[b];
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_JUMP_H_
