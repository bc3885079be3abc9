// SPDX-License-Identifier: Apache-2.0
// The workspace of a training call: packed parameters shared by all threads, and buffers per
// thread.

#pragma once

#include "train/gate_layout.h"

namespace edgernn::EDGERNN_ISA {

inline void Copy(const float* from, std::int64_t count, float* to) {
  std::memcpy(to, from, Bytes(count));
}

// Copies `from`, or zeroes `to` if `from` is null.
inline void CopyOrClear(const float* from, std::int64_t count, float* to) {
  if (from == nullptr) {
    std::memset(to, 0, Bytes(count));
  } else {
    Copy(from, count, to);
  }
}

inline void Add(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Lanes lanes(count - i);
    lanes.Store(to + i, lanes.Load(to + i) + lanes.Load(from + i));
  }
}

// The parameters of a layer for one direction: packed matrices and padded vectors.
struct PackedWeights {
  GateLayout layout;
  float* bias;                  // (padded P,), 0 where a gate has none
  float* params[kMaxParams];    // (padded size,); scalars broadcast to all lanes
  float* rule[kMaxRuleParams];  // the same for the parameters that the rule's equations read
  std::size_t bytes;

  PackedWeights(const TrainCell& cell, const TrainRule& rule_table, const EdgernnTrainCall& call,
                bool back, void* base)
      : layout(cell, rule_table, call) {
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
      Copy(call.rule_params[layout.rule.bias], layout.groups, bias + layout.rule_at);
    }
    for (int i = 0; i < layout.cell.params; ++i) {
      const float* from = call.params[i];
      if (layout.cell.extents[i] != Extent::kOne) {
        PadVector(from, layout.ParamSize(i, call.input), params[i]);
        continue;
      }
      const bool is_length = layout.cell.maps[i] == Map::kLength && *from == 0.0f;
      Store(params[i], EDGERNN_ISA::Fill(is_length ? static_cast<float>(call.steps) : *from));
    }
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (layout.RuleParamSize(i) == 0) continue;
      if (layout.IsRuleScalar(i)) {
        Store(rule[i], EDGERNN_ISA::Fill(*call.rule_params[i]));
      } else {
        PadVector(call.rule_params[i], layout.groups, rule[i]);
      }
    }
  }

  static void PadVector(const float* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; i += kLanes) Store(to + i, Lanes(count - i).Load(from + i));
  }
};

// Allocates whole vectors from a buffer, so that two arenas of one layout can be added.
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

  void Add(const FloatArena& other) const {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      Store(base + i, Load(base + i) + Load(other.base + i));
    }
  }
};

// The gradients of the parameter vectors that point-wise maps read.
struct VectorGrads {
  float* params[kMaxParams];  // laid out as in PackedWeights
  float* rule[kMaxRuleParams];

  VectorGrads(const GateLayout& layout, const EdgernnTrainCall& call, FloatArena* arena) {
    for (int i = 0; i < layout.cell.params; ++i) {
      params[i] = arena->Allocate(layout.ParamSize(i, call.input));
    }
    for (int i = 0; i < kMaxRuleParams; ++i) rule[i] = arena->Allocate(layout.RuleParamSize(i));
  }
};

// The gradients of all parameters, summed over the rows of one thread.
struct ParameterGrads {
  FloatArena arena;
  VectorGrads vectors;
  FloatArena vector_arena;    // the part of `arena` that holds `vectors`
  float* weights[kOperands];  // shaped as in the call
  float* gates;               // (P,): gradients of the pre-activations, which give those of biases

  ParameterGrads(const GateLayout& layout, const EdgernnTrainCall& call, float* base)
      : arena(base), vectors(layout, call, &arena), vector_arena(arena) {
    for (int i = 0; i < kOperands; ++i) {
      weights[i] = arena.Allocate(layout.terms[i].rows * layout.terms[i].depth);
    }
    gates = arena.Allocate(layout.gates);
  }

  // Copies the gradients to the buffers that the call provides.
  void Write(const GateLayout& layout, const EdgernnTrainCall& call) const {
    for (int i = 0; i < kOperands; ++i) {
      const Term& term = layout.terms[i];
      CopyIfRequested(weights[i], term.rows * term.depth, term.grad);
    }
    for (int g = 0; g < layout.cell.gates && call.b_grad != nullptr; ++g) {
      if (layout.bias_row[g] < 0) continue;
      CopyIfRequested(gates + layout.at[g], layout.size[g], call.b_grad + layout.bias_row[g]);
    }
    if (layout.rule.bias >= 0) {
      CopyIfRequested(gates + layout.rule_at, layout.groups,
                      call.rule_params_grad[layout.rule.bias]);
    }
    for (int i = 0; i < kMaxRuleParams; ++i) {
      if (layout.RuleParamSize(i) == 0) continue;
      if (layout.IsRuleScalar(i)) SumLanes(vectors.rule[i]);
      CopyIfRequested(vectors.rule[i], layout.RuleParamSize(i), call.rule_params_grad[i]);
    }
    for (int i = 0; i < layout.cell.params; ++i) {
      if (layout.cell.extents[i] == Extent::kOne) SumLanes(vectors.params[i]);
      CopyIfRequested(vectors.params[i], layout.ParamSize(i, call.input), call.params_grad[i]);
    }
  }

  // Reduces the gradient of a scalar, which all lanes read.
  static void SumLanes(float* at) {
    for (int lane = 1; lane < kLanes; ++lane) at[0] += at[lane];
  }

  static void CopyIfRequested(const float* from, std::int64_t count, float* to) {
    if (to != nullptr) Copy(from, count, to);
  }
};

// The workspace of one thread for its rows.
struct ThreadScratch {
  ParameterGrads total;
  FloatArena step_arena;
  VectorGrads step;    // gradients of one step: partial sums reduce rounding errors
  std::int64_t chunk;  // number of steps collected in `gates`
  std::int64_t gate_stride;
  float* gates;               // (chunk * rows, gate_stride): gradients of the pre-activations
  float* panel;               // (chunk * rows, kPanel): a packed panel
  float* grad[kMaxStates];    // (rows, H) each: gradients of the states after a step
  float* before[kMaxStates];  // (rows, H) each: gradients of the states before it
  float* mid;                 // (rows, M): gradient of m
  float* u;                   // (rows, H): gradient of the decisions
  float* scores;              // (padded H,), kGate only: scores of a sample
  // (rows, groups) each, only if groups decide
  float* means;       // means of the groups' states
  float* means_grad;  // their gradients
  float* group_u;     // decisions of the groups, or their gradients
  // (rows, size) each: gradients of the memories before a step
  float* memory[kMaxMemories];
  // for rules with memories, padded: (rows, H) under kNeuron, (rows,) under kSample
  float* decision;  // gradient of a decision through the memories
  float* score;     // gradient of a score through the memories
  float* evidence;  // kSample only: evidence of a step, then its gradient
  std::size_t bytes;

  ThreadScratch(const GateLayout& layout, const EdgernnTrainCall& call, std::int64_t rows,
                void* base)
      : total(layout, call, static_cast<float*>(base)),
        step_arena(base == nullptr ? nullptr : total.arena.base + total.arena.count),
        step(layout, call, &step_arena) {
    // enough rows for an efficient product, few enough to stay in the cache
    constexpr std::int64_t kChunkRows = 192;
    chunk = rows < kChunkRows ? kChunkRows / rows : 1;
    // the same for fewer rows, so that no part of a batch needs more than the largest part
    const std::int64_t chunk_rows = rows < kChunkRows ? kChunkRows : rows;
    // one more vector: a power-of-two stride would map all rows to a few cache sets
    gate_stride = PadToLanes(layout.gates) + kLanes;
    Arena arena(base);
    arena.Allocate<float>(total.arena.count + step_arena.count);
    gates = arena.Allocate<float>(chunk_rows * gate_stride);
    panel = arena.Allocate<float>(chunk_rows * kPanel);
    for (int s = 0; s < layout.cell.states; ++s) {
      grad[s] = arena.Allocate<float>(rows * layout.hidden);
      before[s] = arena.Allocate<float>(rows * layout.hidden);
    }
    mid = arena.Allocate<float>(layout.cell.has_mid ? rows * layout.middle : 0);
    u = arena.Allocate<float>(layout.rule.has_equations ? rows * layout.hidden : 0);
    scores =
        arena.Allocate<float>(layout.rule.kind == RuleKind::kGate ? PadToLanes(layout.hidden) : 0);
    for (float** at : {&means, &means_grad, &group_u}) {
      *at = arena.Allocate<float>(layout.HasGroups() ? rows * layout.groups : 0);
    }
    const bool sample = layout.rule.kind == RuleKind::kSample;
    const std::int64_t decisions =
        layout.rule.Remembers() ? PadToLanes(rows * layout.DecisionSize()) : 0;
    for (int i = 0; i < layout.rule.equation_memories; ++i) {
      memory[i] = arena.Allocate<float>(decisions);
    }
    decision = arena.Allocate<float>(decisions);
    score = arena.Allocate<float>(sample ? 0 : decisions);
    evidence = arena.Allocate<float>(sample ? decisions : 0);
    bytes = arena.used();
  }
};

}  // namespace edgernn::EDGERNN_ISA
