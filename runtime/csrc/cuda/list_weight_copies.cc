// SPDX-License-Identifier: Apache-2.0
// Lists the copies that pack an op's weights, see make_launch_plan.h.

#include "cuda/gate_sizes.h"
#include "cuda/make_launch_plan.h"
#include "kernel/cell_kernel.h"

namespace edgernn::cuda {

namespace {

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
    if (plan_.kind == RuleKind::kColumn) {
      AddColumns(group, {group.x, 0, kX, depths_.x * depths_.parts}, rows.x_by_column);
      AddColumns(group, {group.h, 1, kH, depths_.h}, rows.h_by_column);
    } else {
      for (int part = 0; part < depths_.parts; ++part) {
        AddTerm(group, rows,
                {group.x, 0, kX, depths_.x, depths_.x * depths_.parts, plan_.x_columns},
                rows.x + ToInt(PadToFour(depths_.x)) * part, part * depths_.x);
      }
      AddTerm(group, rows, {group.h, 1, kH, depths_.h, depths_.h, plan_.h_columns}, rows.h, 0);
    }
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
    copies.push_back({from, rows, columns, from_stride, to, to_stride, 1, map});
  }

  std::vector<WeightCopy> copies;

 private:
  struct TermColumns {
    const GateList& gates;
    int slot;
    unsigned term;
    std::int64_t columns;
    std::int64_t from_stride = 0;
    int to_columns = 0;
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

  void AddColumns(const GateGroup& group, const TermColumns& term, const PackedColumns& columns) {
    for (int k = 0; k < term.gates.count; ++k) {
      const int gate = group.all.at[term.gates.at[k]];
      const std::int64_t row = FirstRow(cell_, plan_, term.term, gate);
      const std::int64_t rows = columns.stride / columns.gates;
      copies.push_back({weights_.at[term.slot] + row * term.columns, rows, term.columns,
                        term.columns, columns.at + k, columns.gates, columns.stride,
                        Map::kIdentity});
    }
  }

  const CellTable& cell_;
  const LaunchPlan& plan_;
  const Depths& depths_;
  const unsigned bias_terms_;
  const WeightsBySlot& weights_;
};

}  // namespace

std::vector<WeightCopy> ListWeightCopies(const Op& op, const LayerSizes& sizes,
                                         const LaunchPlan& plan, const float* const* weights) {
  const CellTable& cell = *op.kernel.cell;
  const Depths depths = MakeDepths(cell, sizes, plan);
  WeightsBySlot slots;
  for (std::size_t i = 0; i < op.spec.weights.size(); ++i) {
    slots.at[op.spec.weights[i].slot] = weights[i];
  }
  WeightCopyBuilder builder(cell, plan, depths, sizes.bias_terms, slots);
  builder.AddGroup(cell.second_stage, plan.update);
  if (cell.has_mid) builder.AddGroup(cell.first_stage, plan.mid);
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
      const std::int64_t at = plan.shared_params + SharedParamAt(rule, i, plan.hidden);
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
