// SPDX-License-Identifier: Apache-2.0
// Checks the weights of an op, packs them and runs its kernel.

#include "op.h"

#include <iterator>
#include <utility>

#include "imputer.h"

namespace edgernn {

namespace {

template <class... AllCells>
std::vector<CellSpec> DescribeCells(TypeList<AllCells...>) {
  static constexpr CellSpec kSpecs[] = {DescribeCell<AllCells>()...};
  return {std::begin(kSpecs), std::end(kSpecs)};
}

template <class... AllRules>
std::vector<RuleSpec> DescribeRules(TypeList<AllRules...>) {
  return {AllRules::kSpec...};
}

template <class... AllImputers>
std::vector<ImputerSpec> DescribeImputers(TypeList<AllImputers...>) {
  return {AllImputers::kSpec...};
}

// Where an op is in the lists; imputer: -1 if it has none.
struct Place {
  std::size_t cell;
  std::size_t rule;
  int imputer;
  DriverKind driver;
};

// Calls visit(place, spec) for every op.
template <class Visit>
void ForOps(const Visit& visit) {
  const std::vector<CellSpec> cells = DescribeCells(Cells{});
  const std::vector<RuleSpec> rules = DescribeRules(Rules{});
  const std::vector<ImputerSpec> imputers = DescribeImputers(Imputers{});
  for (std::size_t c = 0; c < cells.size(); ++c) {
    for (std::size_t r = 0; r < rules.size(); ++r) {
      Place place{c, r, -1, rules[r].driver};
      visit(place, DescribeOp(cells[c], rules[r], nullptr, false));
      if (HasLowRank(cells[c], rules[r])) {
        visit(place, DescribeOp(cells[c], rules[r], nullptr, true));
      }
      for (const ImputerSpec& imputer : imputers) {
        ++place.imputer;
        visit(place, DescribeOp(cells[c], rules[r], &imputer, false));
      }
    }
  }
}

[[noreturn]] void Refuse(const std::string& op, const std::string& input,
                         const std::string& expected, const Shape& got) {
  throw InvalidArgument("ai.edgernn." + op + ": " + input + ": expected " + expected + ", got " +
                        Print(got));
}

Shape ExpectedShape(const WeightSpec& spec, const Sizes& sizes) {
  const Rows& rows = spec.rows;
  Shape shape = {rows.hidden * sizes.hidden + rows.input * sizes.input + rows.one +
                 rows.rank * sizes.rank + rows.features * Features(sizes)};
  if (spec.columns == Columns::kInput) shape.push_back(sizes.input);
  if (spec.columns == Columns::kInputTwice) shape.push_back(2 * sizes.input);
  if (spec.columns == Columns::kHidden) shape.push_back(sizes.hidden);
  if (spec.columns == Columns::kRank) shape.push_back(sizes.rank);
  if (spec.columns == Columns::kFeatures) shape.push_back(Features(sizes));
  return shape;
}

// The shape in letters, as (H + 2 * I, H).
std::string PrintLetters(const WeightSpec& spec) {
  std::string text;
  const auto add = [&text](int count, const std::string& letter) {
    if (count == 0) return;
    if (!text.empty()) text += " + ";
    text += count == 1 ? letter : std::to_string(count) + " * " + letter;
  };
  add(spec.rows.hidden, "H");
  add(spec.rows.input, "I");
  add(spec.rows.one, "1");
  add(spec.rows.rank, "rank");
  add(spec.rows.features, "F");
  const char* columns[] = {",)", ", I)", ", 2 * I)", ", H)", ", rank)", ", F)"};
  return "(" + text + columns[static_cast<int>(spec.columns)];
}

bool TellsHidden(const WeightSpec& spec) {
  return spec.rows.hidden > 0 || spec.columns == Columns::kHidden;
}

Values* Field(Weights* weights, int slot) {
  Values* const first[kOwnSlot] = {&weights->w, &weights->r, &weights->c, &weights->v, &weights->b};
  if (slot < kOwnSlot) return first[slot];
  if (slot == kFactorSlot) return &weights->q;
  if (slot < kRuleSlot) return &weights->own[slot - kOwnSlot];
  return slot < kImputerSlot ? &weights->rule[slot - kRuleSlot]
                             : &weights->impute[slot - kImputerSlot];
}

// I, given the shape of W; 0 if it fits none.
std::int64_t FindInput(const WeightSpec& spec, const Shape& shape) {
  const std::int64_t parts = spec.columns == Columns::kInputTwice ? 2 : 1;
  return shape.size() == 2 && shape[1] % parts == 0 ? shape[1] / parts : 0;
}

// H, given I and the shape of a weight that tells it; 0 if the shape fits no H.
std::int64_t FindHidden(const WeightSpec& spec, std::int64_t input, const Shape& shape) {
  if (shape.size() != (spec.columns == Columns::kNone ? 1 : 2)) return 0;
  if (spec.rows.hidden == 0) return shape[1];
  const std::int64_t rows = shape[0] - spec.rows.input * input - spec.rows.one;
  return rows > 0 && rows % spec.rows.hidden == 0 ? rows / spec.rows.hidden : 0;
}

}  // namespace

std::string Print(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.kept(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  if (shape.size() > shape.kept()) text += ", ...";
  return text + (shape.size() == 1 ? ",)" : ")");
}

Sizes Op::CheckWeights(const std::vector<Tensor>& weights) const {
  const auto refuse = [&](std::size_t i, const std::string& expected) {
    Refuse(spec.name, spec.weights[i].spec.name, expected, weights[i].shape);
  };
  const WeightSpec& first = spec.weights[0].spec;
  const Shape& w = weights[0].shape;
  const std::int64_t input = FindInput(first, w);
  if (input < 1) refuse(0, PrintLetters(first));
  // H is in the first weight that has rows or columns of that size, mostly W itself
  std::size_t source = 0;
  while (!TellsHidden(spec.weights[source].spec)) ++source;
  const Shape& told = weights[source].shape;
  Sizes sizes{input, FindHidden(spec.weights[source].spec, input, told)};
  if (source > 0 && w != ExpectedShape(first, sizes)) refuse(0, PrintLetters(first));
  if (sizes.hidden < 1) refuse(source, PrintLetters(spec.weights[source].spec));
  std::string reason = " as W is " + Print(w);
  if (source > 0)
    reason += std::string(" and ") + spec.weights[source].spec.name + " is " + Print(told);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (spec.weights[i].spec.columns == Columns::kRank) {
      const Shape& r = weights[i].shape;
      sizes.rank = r.size() == 2 ? r[1] : 0;
      if (sizes.rank < 1) refuse(i, PrintLetters(spec.weights[i].spec));
      reason += " and R is " + Print(r);
    }
    const Shape expected = ExpectedShape(spec.weights[i].spec, sizes);
    if (weights[i].shape != expected) refuse(i, Print(expected) + reason);
  }
  if (spec.imputes && sizes.input % 2 != 0) {
    refuse(0, "an even number of inputs, values and masks");
  }
  if (spec.square && sizes.input != sizes.hidden) {
    refuse(0, "as many inputs as neurons, here I = H = " + std::to_string(sizes.hidden));
  }
  sizes.weights = weights[0].values.type;
  sizes.dots = kernel.dots;
  return sizes;
}

std::size_t Op::PackedBytes(const Sizes& sizes) const {
  return imputer != nullptr ? ImputedPackedBytes(*imputer, kernel, sizes)
                            : kernel.PackedBytes(sizes);
}

void Op::Pack(const Sizes& sizes, const std::vector<Tensor>& weights, void* packed) const {
  Weights from{};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    *Field(&from, spec.weights[i].slot) = weights[i].values;
  }
  if (imputer != nullptr) {
    PackImputed(*imputer, kernel, sizes, from, packed);
  } else {
    kernel.Pack(sizes, from, packed);
  }
}

std::size_t Op::ScratchBytes(const Sizes& sizes, std::int64_t steps, std::int64_t batch) const {
  return imputer != nullptr ? ImputedScratchBytes(*imputer, kernel, sizes, batch)
                            : kernel.ScratchBytes(sizes, steps, batch);
}

void Op::Run(const Sizes& sizes, const void* packed, const Call& call, void* scratch) const {
  if (imputer != nullptr) {
    RunImputed(*imputer, kernel, sizes, packed, call, scratch);
  } else {
    kernel.Run(sizes, packed, call, scratch);
  }
}

std::int64_t Op::InputWidth(const Sizes& sizes) const {
  return spec.imputes ? 3 * Features(sizes) : sizes.input;
}

std::int64_t Op::Width(Extent extent, const Sizes& sizes) {
  switch (extent) {
    case Extent::kHidden:
      return sizes.hidden;
    case Extent::kInput:
      return sizes.input;
    case Extent::kFeatures:
      return Features(sizes);
    default:
      return 1;
  }
}

StatePlace Op::PlaceOf(Call* call, Extent extent, std::size_t index) {
  switch (extent) {
    case Extent::kHidden:
      return {&call->state_in[index], &call->state_out[index]};
    case Extent::kInput:
      return {&call->last_in, &call->last_out};
    case Extent::kFeatures:
      return {&call->seen_in, &call->seen_out};
    default:
      return {&call->memory_in, &call->memory_out};
  }
}

const std::deque<Op>& ListOps(const KernelTable& table) {
  static const std::deque<Op> ops = [&table] {
    std::deque<Op> made;
    ForOps([&](const Place& place, OpSpec spec) {
      const Kernel kernel{&table.drivers[static_cast<int>(place.driver)], table.cells[place.cell],
                          table.listers[place.rule], table.dots};
      const Imputer* const imputer = place.imputer < 0 ? nullptr : table.imputers[place.imputer];
      made.push_back({std::move(spec), place.cell, place.rule, kernel, imputer});
    });
    return made;
  }();
  return ops;
}

std::string OpNames() {
  std::string names;
  ForOps([&](const Place&, const OpSpec& spec) { names += spec.name + " "; });
  return names;
}

}  // namespace edgernn
