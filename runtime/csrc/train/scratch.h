// SPDX-License-Identifier: Apache-2.0
// The buffers of a training call: those that all threads read, and those of one thread.

#ifndef EDGERNN_TRAIN_SCRATCH_H_
#define EDGERNN_TRAIN_SCRATCH_H_

#include "train/gate_layout.h"

namespace edgernn::EDGERNN_ISA {

inline void Copy(const float* from, std::int64_t count, float* to) {
  std::memcpy(to, from, Bytes(count));
}

// The weights packed for one direction, and the vectors padded.
struct Prepared {
  GateLayout layout;
  float* bias;                  // (padded P,), 0 where a gate has none
  float* params[kMaxParams];    // (padded size,), scalars as a vector of equal lanes
  float* rule[kMaxRuleParams];  // likewise, those that its equations read
  std::size_t bytes;

  Prepared(const TrainCell& cell, const TrainRule& under, const EdgernnTrainCall& call, bool back,
           void* base)
      : layout(cell, under, call) {
    Arena arena(base);
    layout.Allocate(back, &arena);
    bias = arena.Allocate<float>(PadToLanes(layout.gates));
    for (int i = 0; i < cell.params; ++i) {
      params[i] = arena.Allocate<float>(PadToLanes(layout.ParamSize(i, call.input)));
    }
    for (int i = 0; i < kMaxRuleParams; ++i) {
      rule[i] = arena.Allocate<float>(PadToLanes(layout.RuleParamSize(i)));
    }
    bytes = arena.used();
  }

  void Fill(const EdgernnTrainCall& call, bool back) const {
    layout.PackWeights(back);
    std::memset(bias, 0, Bytes(layout.gates));
    for (int g = 0; g < layout.cell.gates; ++g) {
      if (layout.bias_row[g] < 0) continue;
      Copy(call.b + layout.bias_row[g], layout.size[g], bias + layout.at[g]);
    }
    if (layout.rule.bias >= 0) {
      Copy(call.rule_params[layout.rule.bias], layout.hidden, bias + layout.rule_at);
    }
    for (int i = 0; i < layout.cell.params; ++i) {
      const float* from = call.params[i];
      if (layout.cell.extents[i] != Extent::kOne) {
        PadVector(from, layout.ParamSize(i, call.input), params[i]);
        continue;
      }
      const bool whole = layout.cell.maps[i] == Map::kLength && *from == 0.0f;
      Store(params[i], EDGERNN_ISA::Fill(whole ? static_cast<float>(call.steps) : *from));
    }
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (layout.RuleParamSize(i) == 0) continue;
      if (layout.IsRuleNumber(i)) {
        Store(rule[i], EDGERNN_ISA::Fill(*call.rule_params[i]));
      } else {
        PadVector(call.rule_params[i], call.hidden, rule[i]);
      }
    }
  }

  static void PadVector(const float* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; i += kLanes) Store(to + i, Lanes(count - i).Load(from + i));
  }
};

// Hands out parts of a buffer in whole vectors, so that all of it can be added to another.
struct FloatArena {
  float* base;
  std::int64_t count = 0;

  explicit FloatArena(float* buffer) : base(buffer) {}

  float* Allocate(std::int64_t size) {
    float* at = base == nullptr ? nullptr : base + count;
    count += PadToLanes(size);
    return at;
  }

  void Clear() const { std::memset(base, 0, Bytes(count)); }

  void Add(const FloatArena& more) const {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      Store(base + i, Load(base + i) + Load(more.base + i));
    }
  }
};

// The gradients of vectors that the point-wise maps read.
struct VectorGrads {
  float* params[kMaxParams];  // as Prepared has them
  float* rule[kMaxRuleParams];

  VectorGrads(const GateLayout& layout, const EdgernnTrainCall& call, FloatArena* arena) {
    for (int i = 0; i < layout.cell.params; ++i) {
      params[i] = arena->Allocate(layout.ParamSize(i, call.input));
    }
    for (int i = 0; i < kMaxRuleParams; ++i) rule[i] = arena->Allocate(layout.RuleParamSize(i));
  }
};

// The gradients that all rows of a batch share, summed over those of one thread.
struct SharedGrads {
  FloatArena arena;
  VectorGrads points;
  FloatArena vector_arena;   // those of `points`, which come first
  float* weights[kSources];  // as the call has them
  float* gates;              // (P,), and from that the biases

  SharedGrads(const GateLayout& layout, const EdgernnTrainCall& call, float* base)
      : arena(base), points(layout, call, &arena), vector_arena(arena) {
    for (int i = 0; i < kSources; ++i) {
      weights[i] = arena.Allocate(layout.terms[i].rows * layout.terms[i].depth);
    }
    gates = arena.Allocate(layout.gates);
  }

  // Writes what the call asks for.
  void Write(const GateLayout& layout, const EdgernnTrainCall& call) const {
    for (int i = 0; i < kSources; ++i) {
      const Term& term = layout.terms[i];
      Give(weights[i], term.rows * term.depth, term.grad);
    }
    for (int g = 0; g < layout.cell.gates && call.b_grad != nullptr; ++g) {
      if (layout.bias_row[g] < 0) continue;
      Give(gates + layout.at[g], layout.size[g], call.b_grad + layout.bias_row[g]);
    }
    if (layout.rule.bias >= 0) {
      Give(gates + layout.rule_at, layout.hidden, call.rule_params_grad[layout.rule.bias]);
    }
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (layout.RuleParamSize(i) == 0) continue;
      if (layout.IsRuleNumber(i)) AddLanes(points.rule[i]);
      Give(points.rule[i], layout.RuleParamSize(i), call.rule_params_grad[i]);
    }
    for (int i = 0; i < layout.cell.params; ++i) {
      if (layout.cell.extents[i] == Extent::kOne) AddLanes(points.params[i]);
      Give(points.params[i], layout.ParamSize(i, call.input), call.params_grad[i]);
    }
  }

  // A number has been read by all lanes.
  static void AddLanes(float* at) {
    for (int lane = 1; lane < kLanes; ++lane) at[0] += at[lane];
  }

  // Unless nobody asks for it.
  static void Give(const float* from, std::int64_t count, float* to) {
    if (to != nullptr) Copy(from, count, to);
  }
};

// What one thread has for so many rows.
struct ThreadScratch {
  SharedGrads total;
  FloatArena step_arena;
  VectorGrads step;    // of one step: sums of sums round less
  std::int64_t chunk;  // so many steps are gathered in `gates`
  std::int64_t gate_stride;
  float* gates;               // (chunk * rows, gate_stride): the gradients of the gates
  float* panel;               // (chunk * rows, kPanel)
  float* grad[kMaxStates];    // (rows, H) each: of the states after a step
  float* before[kMaxStates];  // (rows, H) each: of those before it
  float* mid;                 // (rows, M)
  float* u;                   // (rows, H): the gradient of the decisions
  // (rows, size) each: the gradients of the memories before a step
  float* memory[kMaxMemories];
  // of rules that remember, padded: a number a neuron, (rows, H), or a sample, (rows,)
  float* decision;  // the gradient of a decision, through the memories
  float* score;     // the gradient of a score, likewise
  float* evidence;  // of samples: the evidence of a step, and its gradient
  std::size_t bytes;

  ThreadScratch(const GateLayout& layout, const EdgernnTrainCall& call, std::int64_t rows,
                void* base)
      : total(layout, call, static_cast<float*>(base)),
        step_arena(base == nullptr ? nullptr : total.arena.base + total.arena.count),
        step(layout, call, &step_arena) {
    // enough rows to make a product of, few enough to stay in the cache
    constexpr std::int64_t kSparse = 192;
    chunk = rows < kSparse ? kSparse / rows : 1;
    // as much for fewer rows, so that the largest part of a batch needs the most
    const std::int64_t gathered = rows < kSparse ? kSparse : rows;
    // a power of two between rows would bring all of them to a few lines of the cache
    gate_stride = PadToLanes(layout.gates) + kLanes;
    Arena arena(base);
    arena.Allocate<float>(total.arena.count + step_arena.count);
    gates = arena.Allocate<float>(gathered * gate_stride);
    panel = arena.Allocate<float>(gathered * kPanel);
    for (int s = 0; s < layout.cell.states; ++s) {
      grad[s] = arena.Allocate<float>(rows * layout.hidden);
      before[s] = arena.Allocate<float>(rows * layout.hidden);
    }
    mid = arena.Allocate<float>(layout.cell.has_mid ? rows * layout.middle : 0);
    u = arena.Allocate<float>(layout.rule.HasEquations() ? rows * layout.hidden : 0);
    const bool sample = layout.rule.kind == RuleKind::kSample;
    const std::int64_t decisions =
        layout.rule.Remembers() ? PadToLanes(rows * layout.DecisionSize()) : 0;
    for (int i = 0; i < layout.rule.memory_count; ++i) {
      memory[i] = arena.Allocate<float>(decisions);
    }
    decision = arena.Allocate<float>(decisions);
    score = arena.Allocate<float>(sample ? 0 : decisions);
    evidence = arena.Allocate<float>(sample ? decisions : 0);
    bytes = arena.used();
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_SCRATCH_H_
