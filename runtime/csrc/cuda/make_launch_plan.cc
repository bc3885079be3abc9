// SPDX-License-Identifier: Apache-2.0
// Implements make_launch_plan.h: lays out packed weights and a block's shared memory.

#include "cuda/make_launch_plan.h"

#include <algorithm>

#include "common/invalid_argument.h"
#include "cuda/gate_sizes.h"
#include "kernel/cell_kernel.h"

namespace edgernn::cuda {

namespace {

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

PackedColumns MakeColumns(std::int64_t columns, const GateList& gates, std::int64_t rows,
                          std::int64_t* floats) {
  const std::int64_t stride = rows * gates.count;
  const PackedColumns packed{*floats, ToInt(columns), gates.count, stride};
  *floats += PadToFour(columns * stride);
  return packed;
}

PackedRows MakeRows(const CellTable& cell, const GateGroup& group, const LaunchPlan& plan,
                    std::int64_t count, const RuleRow& rule, std::int64_t* floats) {
  RowBuilder builder;
  PackedRows rows{};
  rows.rule = builder.Allocate(rule.columns);
  if (plan.kind == RuleKind::kColumn) {
    rows.x_by_column = MakeColumns(plan.sent_x.count, group.x, count, floats);
    rows.h_by_column = MakeColumns(plan.sent_h.count, group.h, count, floats);
  } else {
    rows.x = builder.Allocate(group.x.count * plan.x_columns);
    rows.h = builder.Allocate(group.h.count * plan.h_columns);
  }
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

// Sets the sizes of the values and the sums that a kColumn rule keeps.
void LayOutSums(const CellTable& cell, const Depths& depths, LaunchPlan* plan) {
  const auto column_macs = [&](const GateList& mid, const GateList& update) {
    return std::int64_t{mid.count} * plan->middle + std::int64_t{update.count} * plan->hidden;
  };
  plan->sent_x.count = ToInt(depths.x * depths.parts);
  plan->sent_h.count = plan->hidden;
  plan->x_column_macs = column_macs(cell.first_stage.x, cell.second_stage.x);
  plan->h_column_macs = column_macs(cell.first_stage.h, cell.second_stage.h);
  for (int g = 0; g < cell.gates; ++g) {
    plan->sum_rows[g] = ToInt(FirstRow(cell, *plan, kX | kH, g));
  }
  plan->sums = ToInt(FirstRow(cell, *plan, kX | kH, cell.gates));
}

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
      rule.Remembers() ? rule.equation_memories : 0;
  // a kColumn rule counts its products with x and h by columns
  Depths row_depths = depths;
  if (rule.kind == RuleKind::kColumn) {
    row_depths.x = row_depths.h = 0;
    LayOutSums(cell, depths, &plan);
  }
  const bool grouped = plan.group_size > 1;
  const RuleRow rule_row = MakeRuleRow(rule, plan);
  plan.update = MakeRows(cell, cell.second_stage, plan, plan.hidden, grouped ? RuleRow{} : rule_row,
                         &plan.floats);
  plan.mid = MakeRows(cell, cell.first_stage, plan, plan.middle, {}, &plan.floats);
  plan.low.at = plan.floats;
  plan.low.count = plan.rank;
  plan.low.stride = ToInt(PadToFour(plan.hidden));
  plan.floats += std::int64_t{plan.low.count} * plan.low.stride;
  plan.decide = grouped ? MakeDecisionRows(rule_row, plan.groups, &plan.floats) : plan.update;
  plan.shared_params = plan.floats;
  if (rule.kind != RuleKind::kNeuron)
    plan.shared_params_floats = ToInt(SharedParamFloats(rule, plan.hidden));
  plan.floats += plan.shared_params_floats;
  plan.scalars = plan.floats;
  plan.floats += PadToFour(cell.params);
  plan.neuron_macs = Macs(cell.second_stage, row_depths);
  plan.step_macs = plan.middle * Macs(cell.first_stage, row_depths) + sizes.rank * sizes.hidden;
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
  plan->shared_params_at = allocate(plan->shared_params_floats);
  plan->counts_at = allocate(2 * blocks);
  const bool ranks = plan->kind == RuleKind::kGate;
  const int neurons = ranks || plan->kind == RuleKind::kNeuron
                          ? RowsPerBlock(plan->hidden, blocks, plan->group_size)
                          : 0;
  if (plan->kind == RuleKind::kColumn) {
    for (SentValues* const values : {&plan->sent_x, &plan->sent_h}) {
      values->sent_at = allocate(values->count);
      values->moved_at = allocate(DivideUp(values->count, kRowThreads));
      values->list_at = allocate(values->count);
      values->factor_at = allocate(values->count);
    }
    plan->update.kept_at =
        allocate(RowsPerBlock(plan->hidden, blocks, 1) * cell.second_stage.all.count);
    plan->mid.kept_at =
        allocate(RowsPerBlock(plan->middle, blocks, 1) * cell.first_stage.all.count);
  }
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

  // A block keeps its part of a column. The size of these parts is odd, so that adjacent columns
  // lie in different banks of shared memory.
  void AllocateColumns(int rows, PackedColumns* columns) {
    const std::int64_t floats_of_part = std::int64_t{rows} * columns->gates;
    columns->resident_stride = ToInt(floats_of_part == 0 ? 0 : floats_of_part | 1);
    columns->resident = Allocate(columns->count, columns->resident_stride, &columns->resident_at);
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
    const std::int64_t weights = plan->shared_params;
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
  // every step reads all rows, but some columns only
  for (PackedRows* const rows : {&plan->update, &plan->mid}) {
    const int count = RowsPerBlock(rows->count, geometry.blocks, 1);
    weights.AllocateColumns(count, &rows->x_by_column);
    weights.AllocateColumns(count, &rows->h_by_column);
  }
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

}  // namespace edgernn::cuda
