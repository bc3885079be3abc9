// SPDX-License-Identifier: Apache-2.0
// Lays out packed weights and a block's shared memory.

#include "cuda/make_launch_plan.h"

#include <algorithm>

#include "common/cell_kernel.h"

namespace edgernn::cuda {

namespace {

int Int(std::int64_t value) { return static_cast<int>(value); }

std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// What the terms of gates are multiplied with.
struct Depths {
  std::int64_t x;  // of one part
  int parts;
  std::int64_t h;
  std::int64_t c;
  std::int64_t m;
};

Depths MakeDepths(const CellTable& cell, const LayerSizes& sizes, const LaunchPlan& plan) {
  return {sizes.input, cell.reads_last ? 2 : 1, sizes.rank > 0 ? sizes.rank : sizes.hidden,
          sizes.hidden, plan.middle};
}

// The multiply-adds of a neuron of a group.
std::int64_t Macs(const GateGroup& group, const Depths& depths) {
  return group.x.count * depths.x * depths.parts + group.h.count * depths.h +
         group.c.count * depths.c + group.m.count * depths.m;
}

// Places the parts of a row one after the other, each at a multiple of four.
class RowBuilder {
 public:
  int Allocate(std::int64_t floats) {
    const int at = used_;
    used_ += Int(PadToFour(floats));
    return at;
  }
  int used() const { return used_; }

 private:
  int used_ = 0;
};

// What a rule has in the row of a neuron.
struct RuleRow {
  int columns = 0;  // of its matrix
  int params = 0;
};

RuleRow MakeRuleRow(const RuleSpec& rule, const LaunchPlan& plan) {
  RuleRow row;
  if (rule.kind != RuleKind::kNeuron) return row;
  row.columns = rule.matrix >= 0 ? plan.input : 0;
  for (int i = 0; i < kMaxRuleParams; ++i) {
    if (rule.params[i].name != nullptr) row.params = i + 1;
  }
  return row;
}

PackedRows MakeRows(const CellTable& cell, const GateGroup& group, const LaunchPlan& plan,
                    std::int64_t count, const RuleRow& rule, std::int64_t* floats) {
  RowBuilder builder;
  PackedRows rows{};
  rows.rule = builder.Allocate(rule.columns);
  rows.x = builder.Allocate(group.x.count * plan.x_columns);
  rows.h = builder.Allocate(group.h.count * plan.h_columns);
  rows.c = builder.Allocate(group.c.count * plan.c_columns);
  rows.m = builder.Allocate(group.m.count * plan.m_columns);
  rows.bias = builder.Allocate(group.all.count);
  rows.params = builder.Allocate(cell.params);
  rows.rule_params = builder.Allocate(rule.params);
  rows.count = Int(count);
  rows.stride = builder.used();
  rows.at = *floats;
  *floats += count * rows.stride;
  return rows;
}

// The first row of a gate in W (R, C, V, b); any bit of `term` counts.
std::int64_t FirstRow(const CellTable& cell, const LaunchPlan& plan, unsigned term, int gate) {
  std::int64_t row = 0;
  for (int g = 0; g < gate; ++g) {
    if ((cell.terms[g] & term) == 0) continue;
    row += (cell.terms[g] & kMid) != 0 ? plan.middle : plan.hidden;
  }
  return row;
}

// Weights by slot.
struct BySlot {
  const float* at[kImputerSlot] = {};
};

class PieceBuilder {
 public:
  PieceBuilder(const CellTable& cell, const LaunchPlan& plan, const Depths& depths,
               unsigned bias_terms, const BySlot& weights)
      : cell_(cell), plan_(plan), depths_(depths), bias_terms_(bias_terms), weights_(weights) {}

  void AddGroup(const GateGroup& group, const PackedRows& rows) {
    for (int part = 0; part < depths_.parts; ++part) {
      AddTerm(group, rows, {group.x, 0, kX, depths_.x, depths_.x * depths_.parts, plan_.x_columns},
              rows.x + Int(PadToFour(depths_.x)) * part, part * depths_.x);
    }
    AddTerm(group, rows, {group.h, 1, kH, depths_.h, depths_.h, plan_.h_columns}, rows.h, 0);
    AddTerm(group, rows, {group.c, 2, kC, depths_.c, depths_.c, plan_.c_columns}, rows.c, 0);
    AddTerm(group, rows, {group.m, 3, kM, depths_.m, depths_.m, plan_.m_columns}, rows.m, 0);
    for (int i = 0; i < group.all.count; ++i) {
      const int gate = group.all.at[i];
      if ((cell_.terms[gate] & bias_terms_) == 0) continue;
      Add(weights_.at[kBiasSlot] + FirstRow(cell_, plan_, bias_terms_, gate), rows.count, 1, 1,
          rows.at + rows.bias + i, rows.stride);
    }
    for (int i = 0; i < cell_.params; ++i) {
      const bool mid = &rows == &plan_.mid;
      const Extent read = mid && cell_.mid_is_input ? Extent::kInput : Extent::kHidden;
      if (cell_.extents[i] != read && !(cell_.square && cell_.extents[i] != Extent::kOne)) continue;
      Add(weights_.at[kParamSlot + i], rows.count, 1, 1, rows.at + rows.params + i, rows.stride,
          cell_.maps[i]);
    }
  }

  void Add(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t from_stride,
           std::int64_t to, std::int64_t to_stride, Map map = Map::kIdentity) {
    pieces.push_back({from, rows, columns, from_stride, to, to_stride, map});
  }

  std::vector<Piece> pieces;

 private:
  struct Term {
    const GateList& gates;
    int slot;
    unsigned term;
    std::int64_t columns;
    std::int64_t from_stride;
    int to_columns;
  };

  void AddTerm(const GateGroup& group, const PackedRows& rows, const Term& term, int to,
               std::int64_t first_column) {
    for (int k = 0; k < term.gates.count; ++k) {
      const int gate = group.all.at[term.gates.at[k]];
      const std::int64_t row = FirstRow(cell_, plan_, term.term, gate);
      Add(weights_.at[term.slot] + row * term.from_stride + first_column, rows.count, term.columns,
          term.from_stride, rows.at + to + k * term.to_columns, rows.stride);
    }
  }

  const CellTable& cell_;
  const LaunchPlan& plan_;
  const Depths& depths_;
  const unsigned bias_terms_;
  const BySlot& weights_;
};

}  // namespace

bool Supports(const Op& op) {
  const RuleSpec& rule = *op.kernel.rule;
  return !op.spec.imputes && (rule.IsDense() || rule.HasEquations());
}

LaunchPlan MakeLaunchPlan(const Op& op, const LayerSizes& sizes) {
  const CellTable& cell = *op.kernel.cell;
  LaunchPlan plan{};
  const RuleSpec& rule = *op.kernel.rule;
  plan.rule = Int(static_cast<std::int64_t>(op.rule));
  plan.kind = rule.kind;
  plan.input = Int(sizes.input);
  plan.hidden = Int(sizes.hidden);
  plan.middle = Int(cell.has_mid ? (cell.mid_is_input ? sizes.input : sizes.hidden) : 0);
  plan.rank = Int(sizes.rank);
  const Depths depths = MakeDepths(cell, sizes, plan);
  plan.x_columns = Int(PadToFour(depths.x)) * depths.parts;
  plan.h_columns = Int(PadToFour(depths.h));
  plan.c_columns = Int(PadToFour(depths.c));
  plan.m_columns = Int(PadToFour(depths.m));
  (rule.kind == RuleKind::kSample ? plan.sample_memories : plan.neuron_memories) =
      rule.Remembers() ? rule.memory_count : 0;
  plan.update =
      MakeRows(cell, cell.update_gates, plan, plan.hidden, MakeRuleRow(rule, plan), &plan.floats);
  plan.mid = MakeRows(cell, cell.mid_gates, plan, plan.middle, {}, &plan.floats);
  plan.low.at = plan.floats;
  plan.low.count = plan.rank;
  plan.low.stride = Int(PadToFour(plan.hidden));
  plan.floats += std::int64_t{plan.low.count} * plan.low.stride;
  plan.sample = plan.floats;
  if (rule.kind == RuleKind::kSample)
    plan.sample_floats = Int(SampleParamFloats(rule, plan.hidden));
  plan.floats += plan.sample_floats;
  plan.single = plan.floats;
  plan.floats += PadToFour(cell.params);
  plan.neuron_macs = Macs(cell.update_gates, depths);
  plan.step_macs = plan.middle * Macs(cell.mid_gates, depths) + sizes.rank * sizes.hidden;
  plan.rule_macs = DecisionMacs(rule, sizes.input, sizes.hidden);
  return plan;
}

namespace {

// Places what a block has on the chip; returns the floats before the rows that are kept there.
int Place(const CellTable& cell, int blocks, int tile, LaunchPlan* plan) {
  int used = 0;
  const auto allocate = [&used](std::int64_t floats) {
    const int at = used;
    used += Int(PadToFour(floats));
    return at;
  };
  plan->x_at = allocate(2LL * tile * plan->x_columns);
  for (int s = 0; s < cell.states; ++s) {
    plan->state_at[s] = allocate(2LL * tile * PadToFour(plan->hidden));
  }
  plan->low_at = allocate(plan->rank > 0 ? tile * plan->h_columns : 0);
  plan->m_at = allocate(tile * plan->m_columns);
  plan->sample_at = allocate(plan->sample_floats);
  plan->counts_at = allocate(2 * blocks);
  const std::int64_t neurons = plan->kind == RuleKind::kNeuron ? DivideUp(plan->hidden, blocks) : 0;
  plan->list_at = allocate(neurons);
  for (int i = 0; i < plan->neuron_memories; ++i) plan->memory_at[i] = allocate(neurons);
  plan->scores_at = allocate(plan->neuron_memories > 0 ? neurons : 0);
  return used;
}

int Keep(const PackedRows& rows, int blocks, std::int64_t* room) {
  if (rows.stride == 0 || rows.count == 0) return 0;
  const std::int64_t rule_params = DivideUp(rows.count, blocks);
  const std::int64_t held = std::min(rule_params, *room / rows.stride);
  *room -= held * rows.stride;
  return Int(held);
}

}  // namespace

void Fit(const Op& op, const Limits& limits, const Geometry& wanted, std::int64_t batch,
         LaunchPlan* plan) {
  const CellTable& cell = *op.kernel.cell;
  constexpr int kTile = 4;
  const std::int64_t floats = limits.memory / 4;
  Geometry geometry = wanted;
  if (plan->kind != RuleKind::kTime) geometry.tile = 1;
  // weights are read once for all sequences of a tile, which are too few where rules decide
  if (geometry.tile == 0) {
    const bool many = batch * 2 > limits.processors;
    geometry.tile = many && Place(cell, 1, kTile, plan) <= floats ? kTile : 1;
  }
  const std::int64_t tiles = DivideUp(batch, geometry.tile);
  if (geometry.blocks == 0) {
    geometry.blocks = 1;
    const std::int64_t weights = plan->sample;
    for (int more = 2; more <= limits.blocks; more *= 2) {
      if (tiles * more > limits.processors || plan->hidden < 8 * more) break;
      // more than four share what already fits only to wait for each other
      const bool fits =
          weights / geometry.blocks + Place(cell, geometry.blocks, geometry.tile, plan) <= floats;
      if (fits && more > 4) break;
      geometry.blocks = more;
    }
  }
  const std::int64_t before = Place(cell, geometry.blocks, geometry.tile, plan);
  if (before > floats) {
    throw InvalidArgument("edgernn: " + op.spec.name + ": I = " + std::to_string(plan->input) +
                          " and H = " + std::to_string(plan->hidden) + " need " +
                          std::to_string(before * 4) + " bytes on the chip, this GPU has " +
                          std::to_string(limits.memory));
  }
  plan->held_at = Int(before);
  std::int64_t room = floats - before;
  const PackedRows* const rows[] = {&plan->update, &plan->mid, &plan->low};
  for (int i = 0; i < 3; ++i) plan->held[i] = Keep(*rows[i], geometry.blocks, &room);
  if (geometry.threads == 0) {
    const std::int64_t most = std::max({plan->hidden, plan->middle, plan->rank});
    const std::int64_t threads = DivideUp(most, geometry.blocks) * kRowThreads;
    geometry.threads = Int(std::min<std::int64_t>(DivideUp(threads, 32) * 32, limits.threads));
  }
  geometry.memory = Int((floats - room) * 4);
  plan->geometry = geometry;
}

std::vector<Piece> ListPieces(const Op& op, const LayerSizes& sizes, const LaunchPlan& plan,
                              const float* const* weights) {
  const CellTable& cell = *op.kernel.cell;
  const Depths depths = MakeDepths(cell, sizes, plan);
  BySlot slots;
  for (std::size_t i = 0; i < op.spec.weights.size(); ++i) {
    slots.at[op.spec.weights[i].slot] = weights[i];
  }
  PieceBuilder builder(cell, plan, depths, sizes.bias_terms, slots);
  builder.AddGroup(cell.update_gates, plan.update);
  if (cell.has_mid) builder.AddGroup(cell.mid_gates, plan.mid);
  if (plan.rank > 0) {
    builder.Add(slots.at[kFactorSlot], plan.rank, plan.hidden, plan.hidden, plan.low.at,
                plan.low.stride);
  }
  const RuleSpec& rule = *op.kernel.rule;
  const PackedRows& rows = plan.update;
  for (int i = 0; i < kMaxRuleParams; ++i) {
    if (rule.params[i].name == nullptr) continue;
    const float* const from = slots.at[kRuleSlot + i];
    const bool number = rule.params[i].rows.one > 0;
    if (rule.kind == RuleKind::kSample) {
      const std::int64_t at = plan.sample + SampleParamAt(rule, i, plan.hidden);
      builder.Add(from, 1, number ? 1 : plan.hidden, plan.hidden, at, 0);
    } else if (i == rule.matrix) {
      builder.Add(from, rows.count, plan.input, plan.input, rows.at + rows.rule, rows.stride);
    } else {
      builder.Add(from, rows.count, 1, number ? 0 : 1, rows.at + rows.rule_params + i, rows.stride);
    }
  }
  for (int i = 0; i < cell.params; ++i) {
    if (cell.extents[i] != Extent::kOne) continue;
    builder.Add(slots.at[kParamSlot + i], 1, 1, 1, plan.single + i, 0, cell.maps[i]);
  }
  return std::move(builder.pieces);
}

}  // namespace edgernn::cuda
