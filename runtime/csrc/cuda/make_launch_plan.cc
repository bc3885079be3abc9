// SPDX-License-Identifier: Apache-2.0
// Implements make_launch_plan.h: lays out packed weights and a block's shared memory.

#include "cuda/make_launch_plan.h"

#include <algorithm>

#include "common/cell_kernel.h"
#include "common/invalid_argument.h"

namespace edgernn::cuda {

namespace {

int ToInt(std::int64_t value) { return static_cast<int>(value); }

std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The depth (number of columns) of each term of a gate.
struct Depths {
  std::int64_t x;  // for each part: x_t, and x_{t-1} if the cell reads it
  int parts;
  std::int64_t h;
  std::int64_t c;
  std::int64_t m;
};

Depths MakeDepths(const CellTable& cell, const LayerSizes& sizes, const LaunchPlan& plan) {
  return {sizes.input, cell.reads_last ? 2 : 1, sizes.rank > 0 ? sizes.rank : sizes.hidden,
          sizes.hidden, plan.middle};
}

// The multiply-adds of one neuron of a gate group.
std::int64_t Macs(const GateGroup& group, const Depths& depths) {
  return group.x.count * depths.x * depths.parts + group.h.count * depths.h +
         group.c.count * depths.c + group.m.count * depths.m;
}

// The multiply-adds of one neuron of a gate that reads x and h.
std::int64_t GateMacs(unsigned terms, const Depths& depths) {
  return ((terms & kX) != 0 ? depths.x * depths.parts : 0) + ((terms & kH) != 0 ? depths.h : 0);
}

// Allocates the parts of a row, each at a multiple of four floats.
class RowBuilder {
 public:
  int Allocate(std::int64_t floats) {
    const int at = used_;
    used_ += ToInt(PadToFour(floats));
    return at;
  }

  // Places `count` of these rows after `floats`, which then includes them.
  PackedRows Place(PackedRows rows, std::int64_t count, std::int64_t* floats) const {
    rows.count = ToInt(count);
    rows.stride = used_;
    rows.at = *floats;
    *floats += count * rows.stride;
    return rows;
  }

 private:
  int used_ = 0;
};

// The part of a rule in the row of a neuron.
struct RuleRow {
  int columns = 0;  // columns of its matrix
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
  return builder.Place(rows, count, floats);
}

// The rows of the weights of groups' decisions.
PackedRows MakeDecisionRows(const RuleRow& rule, std::int64_t count, std::int64_t* floats) {
  RowBuilder builder;
  PackedRows rows{};
  rows.rule = builder.Allocate(rule.columns);
  rows.rule_params = builder.Allocate(rule.params);
  return builder.Place(rows, count, floats);
}

// The first row of a gate in W, R, C, V or b, which stack the gates with any bit of `term`.
std::int64_t FirstRow(const CellTable& cell, const LaunchPlan& plan, unsigned term, int gate) {
  std::int64_t row = 0;
  for (int g = 0; g < gate; ++g) {
    if ((cell.terms[g] & term) == 0) continue;
    row += (cell.terms[g] & kMid) != 0 ? plan.middle : plan.hidden;
  }
  return row;
}

// Pointers to weights, indexed by slot.
struct WeightsBySlot {
  const float* at[kImputerSlot] = {};
};

class WeightCopyBuilder {
 public:
  WeightCopyBuilder(const CellTable& cell, const LaunchPlan& plan, const Depths& depths,
                    unsigned bias_terms, const WeightsBySlot& weights)
      : cell_(cell), plan_(plan), depths_(depths), bias_terms_(bias_terms), weights_(weights) {}

  void AddGroup(const GateGroup& group, const PackedRows& rows) {
    for (int part = 0; part < depths_.parts; ++part) {
      AddTerm(group, rows, {group.x, 0, kX, depths_.x, depths_.x * depths_.parts, plan_.x_columns},
              rows.x + ToInt(PadToFour(depths_.x)) * part, part * depths_.x);
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
    copies.push_back({from, rows, columns, from_stride, to, to_stride, map});
  }

  std::vector<WeightCopy> copies;

 private:
  struct TermColumns {
    const GateList& gates;
    int slot;
    unsigned term;
    std::int64_t columns;
    std::int64_t from_stride;
    int to_columns;
  };

  void AddTerm(const GateGroup& group, const PackedRows& rows, const TermColumns& term, int to,
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
  const WeightsBySlot& weights_;
};

}  // namespace

bool Supports(const Op& op) { return !op.spec.imputes && RunsOnGpu(*op.kernel.rule); }

LaunchPlan MakeLaunchPlan(const Op& op, const LayerSizes& sizes) {
  const CellTable& cell = *op.kernel.cell;
  LaunchPlan plan{};
  const RuleSpec& rule = *op.kernel.rule;
  plan.rule = ToInt(static_cast<std::int64_t>(op.rule));
  plan.kind = rule.kind;
  plan.input = ToInt(sizes.input);
  plan.hidden = ToInt(sizes.hidden);
  plan.middle = ToInt(cell.has_mid ? (cell.mid_is_input ? sizes.input : sizes.hidden) : 0);
  plan.rank = ToInt(sizes.rank);
  plan.group_size = ToInt(sizes.group_size);
  plan.groups = ToInt(Groups(sizes));
  const Depths depths = MakeDepths(cell, sizes, plan);
  plan.x_columns = ToInt(PadToFour(depths.x)) * depths.parts;
  plan.h_columns = ToInt(PadToFour(depths.h));
  plan.c_columns = ToInt(PadToFour(depths.c));
  plan.m_columns = ToInt(PadToFour(depths.m));
  (rule.kind == RuleKind::kSample ? plan.sample_memories : plan.neuron_memories) =
      rule.Remembers() ? rule.memory_count : 0;
  const bool grouped = plan.group_size > 1;
  const RuleRow rule_row = MakeRuleRow(rule, plan);
  plan.update = MakeRows(cell, cell.update_gates, plan, plan.hidden, grouped ? RuleRow{} : rule_row,
                         &plan.floats);
  plan.mid = MakeRows(cell, cell.mid_gates, plan, plan.middle, {}, &plan.floats);
  plan.low.at = plan.floats;
  plan.low.count = plan.rank;
  plan.low.stride = ToInt(PadToFour(plan.hidden));
  plan.floats += std::int64_t{plan.low.count} * plan.low.stride;
  plan.decide = grouped ? MakeDecisionRows(rule_row, plan.groups, &plan.floats) : plan.update;
  plan.sample = plan.floats;
  if (rule.kind != RuleKind::kNeuron)
    plan.sample_floats = ToInt(SampleParamFloats(rule, plan.hidden));
  plan.floats += plan.sample_floats;
  plan.scalars = plan.floats;
  plan.floats += PadToFour(cell.params);
  plan.neuron_macs = Macs(cell.update_gates, depths);
  plan.step_macs = plan.middle * Macs(cell.mid_gates, depths) + sizes.rank * sizes.hidden;
  plan.rule_macs = DecisionMacs(rule, sizes.input, sizes.hidden, Groups(sizes));
  if (rule.kind == RuleKind::kGate) {
    // every neuron computes its update gate, and active neurons the other gates
    const std::int64_t gate_macs = GateMacs(cell.terms[cell.update_gate.gate], depths);
    plan.rule_macs += plan.hidden * gate_macs;
    plan.neuron_macs -= gate_macs;
  }
  return plan;
}

namespace {

// Lays out a block's shared memory; returns the floats used before the resident rows.
int LayOutSharedMemory(const CellTable& cell, int blocks, int tile, LaunchPlan* plan) {
  int used = 0;
  const auto allocate = [&used](std::int64_t floats) {
    const int at = used;
    used += ToInt(PadToFour(floats));
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
  const bool ranks = plan->kind == RuleKind::kGate;
  const int neurons = ranks || plan->kind == RuleKind::kNeuron
                          ? RowsPerBlock(plan->hidden, blocks, plan->group_size)
                          : 0;
  plan->list_at = allocate(neurons);
  for (int i = 0; i < plan->neuron_memories; ++i) plan->memory_at[i] = allocate(neurons);
  plan->scores_at = allocate(ranks ? plan->hidden : plan->neuron_memories > 0 ? neurons : 0);
  return used;
}

// Allocates shared memory to weights, from offset `used` on, as long as there is room.
struct ResidentWeights {
  std::int64_t used;
  std::int64_t floats;

  // Returns how many items of `size` floats fit, of at most `count`, and allocates them.
  int Allocate(std::int64_t count, std::int64_t size, int* at) {
    const std::int64_t resident = size == 0 ? 0 : std::min(count, (floats - used) / size);
    *at = ToInt(used);
    used += resident * size;
    return ToInt(resident);
  }

  void AllocateRows(int blocks, int unit, PackedRows* rows) {
    rows->resident =
        Allocate(RowsPerBlock(rows->count, blocks, unit), rows->stride, &rows->resident_at);
  }
};

}  // namespace

void ChooseGeometry(const Op& op, const Limits& limits, const Geometry& requested,
                    std::int64_t batch, LaunchPlan* plan) {
  const CellTable& cell = *op.kernel.cell;
  constexpr int kTile = 4;
  const std::int64_t floats = limits.memory / 4;
  Geometry geometry = requested;
  if (plan->kind != RuleKind::kTime) geometry.tile = 1;
  // a tile shares its weight loads; under a rule that decides, sequences need different weights
  if (geometry.tile == 0) {
    const bool is_large = batch * 2 > limits.processors;
    geometry.tile = is_large && LayOutSharedMemory(cell, 1, kTile, plan) <= floats ? kTile : 1;
  }
  const std::int64_t tiles = DivideUp(batch, geometry.tile);
  if (geometry.blocks == 0) {
    geometry.blocks = 1;
    const std::int64_t weights = plan->sample;
    for (int blocks = 2; blocks <= limits.blocks; blocks *= 2) {
      if (tiles * blocks > limits.processors || plan->hidden < 8 * blocks) break;
      // a block decides for whole groups
      if (plan->groups < blocks) break;
      // if the weights fit already, more than four blocks only add synchronisation
      const bool fits = weights / geometry.blocks +
                            LayOutSharedMemory(cell, geometry.blocks, geometry.tile, plan) <=
                        floats;
      if (fits && blocks > 4) break;
      geometry.blocks = blocks;
    }
  }
  const std::int64_t before = LayOutSharedMemory(cell, geometry.blocks, geometry.tile, plan);
  if (before > floats) {
    throw InvalidArgument("edgernn: " + op.spec.name + ": I = " + std::to_string(plan->input) +
                          " and H = " + std::to_string(plan->hidden) + " need " +
                          std::to_string(before * 4) + " bytes of shared memory, this GPU has " +
                          std::to_string(limits.memory));
  }
  plan->resident_at = ToInt(before);
  ResidentWeights weights{before, floats};
  // every step reads the rows of all decisions, but those of active neurons only
  if (plan->group_size > 1) weights.AllocateRows(geometry.blocks, 1, &plan->decide);
  weights.AllocateRows(geometry.blocks, plan->group_size, &plan->update);
  weights.AllocateRows(geometry.blocks, 1, &plan->mid);
  weights.AllocateRows(geometry.blocks, 1, &plan->low);
  if (plan->group_size == 1) plan->decide = plan->update;
  if (geometry.threads == 0) {
    const std::int64_t largest =
        std::max(RowsPerBlock(plan->hidden, geometry.blocks, plan->group_size),
                 RowsPerBlock(std::max(plan->middle, plan->rank), geometry.blocks, 1));
    const std::int64_t threads = largest * kRowThreads;
    geometry.threads = ToInt(std::min<std::int64_t>(DivideUp(threads, 32) * 32, limits.threads));
  }
  geometry.memory = ToInt(weights.used * 4);
  plan->geometry = geometry;
}

std::vector<WeightCopy> ListWeightCopies(const Op& op, const LayerSizes& sizes,
                                         const LaunchPlan& plan, const float* const* weights) {
  const CellTable& cell = *op.kernel.cell;
  const Depths depths = MakeDepths(cell, sizes, plan);
  WeightsBySlot slots;
  for (std::size_t i = 0; i < op.spec.weights.size(); ++i) {
    slots.at[op.spec.weights[i].slot] = weights[i];
  }
  WeightCopyBuilder builder(cell, plan, depths, sizes.bias_terms, slots);
  builder.AddGroup(cell.update_gates, plan.update);
  if (cell.has_mid) builder.AddGroup(cell.mid_gates, plan.mid);
  if (plan.rank > 0) {
    builder.Add(slots.at[kFactorSlot], plan.rank, plan.hidden, plan.hidden, plan.low.at,
                plan.low.stride);
  }
  const RuleSpec& rule = *op.kernel.rule;
  const PackedRows& rows = plan.decide;
  for (int i = 0; i < kMaxRuleParams; ++i) {
    if (rule.params[i].name == nullptr) continue;
    const float* const from = slots.at[kRuleSlot + i];
    const bool is_scalar = rule.params[i].rows.one > 0;
    if (rule.kind != RuleKind::kNeuron) {
      const std::int64_t at = plan.sample + SampleParamAt(rule, i, plan.hidden);
      builder.Add(from, 1, is_scalar ? 1 : plan.hidden, plan.hidden, at, 0);
    } else if (i == rule.matrix) {
      builder.Add(from, rows.count, plan.input, plan.input, rows.at + rows.rule, rows.stride);
    } else {
      builder.Add(from, rows.count, 1, is_scalar ? 0 : 1, rows.at + rows.rule_params + i,
                  rows.stride);
    }
  }
  for (int i = 0; i < cell.params; ++i) {
    if (cell.extents[i] != Extent::kOne) continue;
    builder.Add(slots.at[kParamSlot + i], 1, 1, 1, plan.scalars + i, 0, cell.maps[i]);
  }
  return std::move(builder.copies);
}

}  // namespace edgernn::cuda
