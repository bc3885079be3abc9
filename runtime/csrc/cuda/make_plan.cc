// SPDX-License-Identifier: Apache-2.0
// Lays out packed weights and a block's memory.

#include "cuda/make_plan.h"

#include <algorithm>

#include "cell_kernel.h"

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

Depths MakeDepths(const CellTable& cell, const Sizes& sizes, const Plan& plan) {
  return {sizes.input, cell.reads_last ? 2 : 1, sizes.rank > 0 ? sizes.rank : sizes.hidden,
          sizes.hidden, plan.middle};
}

// The multiply-adds of a neuron of a group.
std::int64_t Macs(const GateGroup& group, const Depths& depths) {
  return group.x.count * depths.x * depths.parts + group.h.count * depths.h +
         group.c.count * depths.c + group.m.count * depths.m;
}

// Places the parts of a row one after the other, each at a multiple of four.
class RowMaker {
 public:
  int Take(std::int64_t floats) {
    const int at = used_;
    used_ += Int(Padded(floats));
    return at;
  }
  int used() const { return used_; }

 private:
  int used_ = 0;
};

Rows MakeRows(const CellTable& cell, const GateGroup& group, const Plan& plan, std::int64_t count,
              bool selective, std::int64_t* floats) {
  RowMaker maker;
  Rows rows{};
  rows.rule = maker.Take(selective ? plan.input : 0);
  rows.x = maker.Take(group.x.count * plan.x_columns);
  rows.h = maker.Take(group.h.count * plan.h_columns);
  rows.c = maker.Take(group.c.count * plan.c_columns);
  rows.m = maker.Take(group.m.count * plan.m_columns);
  rows.bias = maker.Take(group.all.count);
  rows.params = maker.Take(cell.params);
  rows.own = maker.Take(selective ? 2 : 0);
  rows.count = Int(count);
  rows.stride = maker.used();
  rows.at = *floats;
  *floats += count * rows.stride;
  return rows;
}

// The first row of a gate in W (R, C, V, b).
std::int64_t FirstRow(const CellTable& cell, const Plan& plan, unsigned term, int gate) {
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

class PieceLister {
 public:
  PieceLister(const CellTable& cell, const Plan& plan, const Depths& depths, const BySlot& weights)
      : cell_(cell), plan_(plan), depths_(depths), weights_(weights) {}

  void AddGroup(const GateGroup& group, const Rows& rows) {
    for (int part = 0; part < depths_.parts; ++part) {
      AddTerm(group, rows, {group.x, 0, kX, depths_.x, depths_.x * depths_.parts, plan_.x_columns},
              rows.x + Int(Padded(depths_.x)) * part, part * depths_.x);
    }
    AddTerm(group, rows, {group.h, 1, kH, depths_.h, depths_.h, plan_.h_columns}, rows.h, 0);
    AddTerm(group, rows, {group.c, 2, kC, depths_.c, depths_.c, plan_.c_columns}, rows.c, 0);
    AddTerm(group, rows, {group.m, 3, kM, depths_.m, depths_.m, plan_.m_columns}, rows.m, 0);
    for (int i = 0; i < group.all.count; ++i) {
      const int gate = group.all.at[i];
      if ((cell_.terms[gate] & kBias) == 0) continue;
      Add(weights_.at[4] + FirstRow(cell_, plan_, kBias, gate), rows.count, 1, 1,
          rows.at + rows.bias + i, rows.stride);
    }
    for (int i = 0; i < cell_.params; ++i) {
      const bool mid = &rows == &plan_.mid;
      const Extent read = mid && cell_.mid_is_input ? Extent::kInput : Extent::kHidden;
      if (cell_.extents[i] != read && !(cell_.square && cell_.extents[i] != Extent::kOne)) continue;
      Add(weights_.at[kOwnSlot + i], rows.count, 1, 1, rows.at + rows.params + i, rows.stride,
          cell_.maps[i]);
    }
  }

  void Add(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t from_stride,
           std::int64_t to, std::int64_t to_stride, Map map = Map::kIdentity) {
    made.push_back({from, rows, columns, from_stride, to, to_stride, map});
  }

  std::vector<Piece> made;

 private:
  struct Term {
    const GateList& gates;
    int slot;
    unsigned term;
    std::int64_t columns;
    std::int64_t from_stride;
    int to_columns;
  };

  void AddTerm(const GateGroup& group, const Rows& rows, const Term& term, int to,
               std::int64_t first_column) {
    for (int k = 0; k < term.gates.count; ++k) {
      const int gate = group.all.at[term.gates.at[k]];
      const std::int64_t row = FirstRow(cell_, plan_, term.term, gate);
      Add(weights_.at[term.slot] + row * term.from_stride + first_column, rows.count, term.columns,
          term.from_stride, rows.at + to + k * term.to_columns, rows.stride);
    }
  }

  const CellTable& cell_;
  const Plan& plan_;
  const Depths& depths_;
  const BySlot& weights_;
};

template <class Rule, class... Rest>
constexpr std::size_t IndexOf(TypeList<Rule, Rest...>, Rule*) {
  return 0;
}

template <class Rule, class First, class... Rest>
constexpr std::size_t IndexOf(TypeList<First, Rest...>, Rule* rule) {
  return 1 + IndexOf(TypeList<Rest...>{}, rule);
}

}  // namespace

bool Supports(const Op& op, Mode* mode) {
  constexpr Rules rules;
  if (op.spec.imputes) return false;
  *mode = Mode::kAlways;
  if (op.rule == IndexOf(rules, static_cast<Selective*>(nullptr))) *mode = Mode::kSelective;
  if (op.rule == IndexOf(rules, static_cast<Skip*>(nullptr))) *mode = Mode::kSkip;
  return *mode != Mode::kAlways || op.rule == IndexOf(rules, static_cast<Always*>(nullptr));
}

Plan MakePlan(const Op& op, const Sizes& sizes) {
  const CellTable& cell = *op.kernel.cell;
  Plan plan{};
  Supports(op, &plan.mode);
  plan.input = Int(sizes.input);
  plan.hidden = Int(sizes.hidden);
  plan.middle = Int(cell.has_mid ? (cell.mid_is_input ? sizes.input : sizes.hidden) : 0);
  plan.rank = Int(sizes.rank);
  const Depths depths = MakeDepths(cell, sizes, plan);
  plan.x_columns = Int(Padded(depths.x)) * depths.parts;
  plan.h_columns = Int(Padded(depths.h));
  plan.c_columns = Int(Padded(depths.c));
  plan.m_columns = Int(Padded(depths.m));
  const bool selective = plan.mode == Mode::kSelective;
  plan.update = MakeRows(cell, cell.update_gates, plan, plan.hidden, selective, &plan.floats);
  plan.mid = MakeRows(cell, cell.mid_gates, plan, plan.middle, false, &plan.floats);
  plan.low.at = plan.floats;
  plan.low.count = plan.rank;
  plan.low.stride = Int(Padded(plan.hidden));
  plan.floats += std::int64_t{plan.low.count} * plan.low.stride;
  plan.skip = plan.floats;
  if (plan.mode == Mode::kSkip) plan.floats += Padded(plan.hidden) + 4;
  plan.single = plan.floats;
  plan.floats += Padded(cell.params);
  plan.neuron_macs = Macs(cell.update_gates, depths);
  plan.step_macs = plan.middle * Macs(cell.mid_gates, depths) + sizes.rank * sizes.hidden;
  if (plan.mode == Mode::kSkip) plan.rule_macs = sizes.hidden;
  if (selective) plan.rule_macs = sizes.hidden * sizes.input + sizes.hidden;
  return plan;
}

namespace {

// Places what a block has on the chip; returns the floats before the rows that are kept there.
int Place(const CellTable& cell, int blocks, int tile, Plan* plan) {
  int used = 0;
  const auto take = [&used](std::int64_t floats) {
    const int at = used;
    used += Int(Padded(floats));
    return at;
  };
  plan->x_at = take(2LL * tile * plan->x_columns);
  for (int s = 0; s < cell.states; ++s) {
    plan->state_at[s] = take(2LL * tile * Padded(plan->hidden));
  }
  plan->low_at = take(plan->rank > 0 ? tile * plan->h_columns : 0);
  plan->m_at = take(tile * plan->m_columns);
  plan->skip_at = take(plan->mode == Mode::kSkip ? Padded(plan->hidden) : 0);
  plan->counts_at = take(2 * blocks);
  plan->list_at = take(plan->mode == Mode::kSelective ? DivideUp(plan->hidden, blocks) : 0);
  return used;
}

int Keep(const Rows& rows, int blocks, std::int64_t* room) {
  if (rows.stride == 0 || rows.count == 0) return 0;
  const std::int64_t own = DivideUp(rows.count, blocks);
  const std::int64_t held = std::min(own, *room / rows.stride);
  *room -= held * rows.stride;
  return Int(held);
}

}  // namespace

void Fit(const Op& op, const Limits& limits, const Geometry& wanted, std::int64_t batch,
         Plan* plan) {
  const CellTable& cell = *op.kernel.cell;
  constexpr int kTile = 4;
  const std::int64_t floats = limits.memory / 4;
  Geometry made = wanted;
  if (plan->mode != Mode::kAlways) made.tile = 1;
  // weights are read once for all sequences of a tile, which are too few where rules decide
  if (made.tile == 0) {
    const bool many = batch * 2 > limits.processors;
    made.tile = many && Place(cell, 1, kTile, plan) <= floats ? kTile : 1;
  }
  const std::int64_t tiles = DivideUp(batch, made.tile);
  if (made.blocks == 0) {
    made.blocks = 1;
    const std::int64_t weights = plan->skip;
    for (int more = 2; more <= limits.blocks; more *= 2) {
      if (tiles * more > limits.processors || plan->hidden < 8 * more) break;
      // more than four share what already fits only to wait for each other
      const bool fits = weights / made.blocks + Place(cell, made.blocks, made.tile, plan) <= floats;
      if (fits && more > 4) break;
      made.blocks = more;
    }
  }
  const std::int64_t before = Place(cell, made.blocks, made.tile, plan);
  if (before > floats) {
    throw InvalidArgument("ai.edgernn." + op.spec.name + ": I = " + std::to_string(plan->input) +
                          " and H = " + std::to_string(plan->hidden) + " need " +
                          std::to_string(before * 4) + " bytes on the chip, this GPU has " +
                          std::to_string(limits.memory));
  }
  plan->held_at = Int(before);
  std::int64_t room = floats - before;
  const Rows* const rows[] = {&plan->update, &plan->mid, &plan->low};
  for (int i = 0; i < 3; ++i) plan->held[i] = Keep(*rows[i], made.blocks, &room);
  if (made.threads == 0) {
    const std::int64_t most = std::max({plan->hidden, plan->middle, plan->rank});
    const std::int64_t threads = DivideUp(most, made.blocks) * kLanes;
    made.threads = Int(std::min<std::int64_t>(DivideUp(threads, 32) * 32, limits.threads));
  }
  made.memory = Int((floats - room) * 4);
  plan->geometry = made;
}

std::vector<Piece> ListPieces(const Op& op, const Sizes& sizes, const Plan& plan,
                              const float* const* weights) {
  const CellTable& cell = *op.kernel.cell;
  const Depths depths = MakeDepths(cell, sizes, plan);
  BySlot slots;
  for (std::size_t i = 0; i < op.spec.weights.size(); ++i) {
    slots.at[op.spec.weights[i].slot] = weights[i];
  }
  PieceLister lister(cell, plan, depths, slots);
  lister.AddGroup(cell.update_gates, plan.update);
  if (cell.has_mid) lister.AddGroup(cell.mid_gates, plan.mid);
  if (plan.rank > 0) {
    lister.Add(slots.at[kFactorSlot], plan.rank, plan.hidden, plan.hidden, plan.low.at,
               plan.low.stride);
  }
  const float* const* const rule = slots.at + kRuleSlot;
  if (plan.mode == Mode::kSkip) {
    lister.Add(rule[0], 1, plan.hidden, plan.hidden, plan.skip, 0);
    lister.Add(rule[1], 1, 1, 1, plan.skip + Padded(plan.hidden), 0);
  }
  if (plan.mode == Mode::kSelective) {
    const Rows& rows = plan.update;
    lister.Add(rule[0], rows.count, plan.input, plan.input, rows.at + rows.rule, rows.stride);
    lister.Add(rule[1], rows.count, 1, 1, rows.at + rows.own, rows.stride);
    lister.Add(rule[2], rows.count, 1, 1, rows.at + rows.own + 1, rows.stride);
  }
  for (int i = 0; i < cell.params; ++i) {
    if (cell.extents[i] != Extent::kOne) continue;
    lister.Add(slots.at[kOwnSlot + i], 1, 1, 1, plan.single + i, 0, cell.maps[i]);
  }
  return std::move(lister.made);
}

}  // namespace edgernn::cuda
