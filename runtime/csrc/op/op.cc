// SPDX-License-Identifier: Apache-2.0
// Checks and packs the weights of an op, and runs its kernel.

#include "op/op.h"

#include <atomic>
#include <utility>

#include "common/flush_subnormals.h"
#include "imputers/imputer.h"

namespace edgernn {

namespace {

template <class... AllCells>
std::vector<CellSpec> DescribeCells(TypeList<AllCells...>) {
  return {DescribeCell<AllCells>()...};
}

template <class... AllRules>
std::vector<RuleSpec> DescribeRules(TypeList<AllRules...>) {
  return {DescribeRule<AllRules>()...};
}

template <class... AllImputers>
std::vector<ImputerSpec> DescribeImputers(TypeList<AllImputers...>) {
  return {AllImputers::kSpec...};
}

// The indices of an op's parts in the lists; imputer is -1 for an op without one.
struct OpIndex {
  std::size_t cell;
  std::size_t rule;
  int imputer;
  bool low_rank;
};

struct Lists {
  std::vector<CellSpec> cells = DescribeCells(Cells{});
  std::vector<RuleSpec> rules = DescribeRules(Rules{});
  std::vector<ImputerSpec> imputers = DescribeImputers(Imputers{});

  const ImputerSpec* ImputerAt(const OpIndex& index) const {
    return index.imputer < 0 ? nullptr : &imputers[index.imputer];
  }
  std::string NameOf(const OpIndex& index, const CellSpec& cell) const {
    const ImputerSpec* const imputer = ImputerAt(index);
    return LayerName(imputer == nullptr ? "" : imputer->name, cell.name, rules[index.rule].name,
                     index.low_rank);
  }
  std::string NameOf(const OpIndex& index) const { return NameOf(index, cells[index.cell]); }
};

const Lists& AllLists() {
  static const Lists lists;
  return lists;
}

// Calls visit(index) for every op of cell number c, whether it is listed or defined in a file.
template <class Visit>
void ForOpsOf(std::size_t c, const CellSpec& cell, const Visit& visit) {
  const Lists& lists = AllLists();
  for (std::size_t r = 0; r < lists.rules.size(); ++r) {
    if (!Fits(cell, lists.rules[r])) continue;
    visit(OpIndex{c, r, -1, false});
    if (HasLowRank(cell, lists.rules[r])) visit(OpIndex{c, r, -1, true});
    for (std::size_t i = 0; i < lists.imputers.size(); ++i) {
      visit(OpIndex{c, r, static_cast<int>(i), false});
    }
  }
}

// Calls visit(index) for every op of the listed cells.
template <class Visit>
void ForOps(const Visit& visit) {
  const Lists& lists = AllLists();
  for (std::size_t c = 0; c < lists.cells.size(); ++c) ForOpsOf(c, lists.cells[c], visit);
}

Op MakeOp(const KernelTable& table, const OpIndex& index, const CellSpec& cell,
          const CellKernel* kernel) {
  const Lists& lists = AllLists();
  const RuleSpec& rule = lists.rules[index.rule];
  Op op{};
  op.imputer = index.imputer < 0 ? nullptr : table.imputers[index.imputer];
  if (rule.kind == RuleKind::kGate) kernel = table.gated_cells[index.cell];
  op.kernel = {&table.drivers[index.rule],  kernel,     &rule,
               table.selectors[index.rule], table.dots, op.imputer != nullptr};
  op.spec = DescribeOp(cell, rule, lists.ImputerAt(index), index.low_rank);
  op.cell = index.cell;
  op.rule = index.rule;
  return op;
}

// Names, for messages, of the parameters and states of a cell that is defined in a file.
constexpr CellNames kFileNames = {{"vector 0", "vector 1", "vector 2", "vector 3"},
                                  {"state 0", "state 1", "state 2", "state 3"}};
static_assert(kMaxParams == 4 && kMaxStates == 4);

// A cell that is defined in a file, and the checked programs that its view points into.
struct OwnedCell {
  CheckedCell code;
  ProgramCell view;

  OwnedCell(CheckedCell checked, const KernelTable& table)
      : code(std::move(checked)), view(code.View(*table.program)) {
    const RowShape shape = RowShapeOf(view);
    for (int i = 0; i < Cells::kCount; ++i) {
      const RowProducts& products = table.row_products[i];
      if (products.shape != shape) continue;
      view.multiply = products.multiply;
      view.multiply_shared = products.multiply_shared;
    }
  }
};

Shape ExpectedShape(const WeightSpec& spec, const LayerSizes& sizes) {
  const RowCount& rows = spec.rows;
  Shape shape = {rows.hidden * sizes.hidden + rows.input * sizes.input + rows.one +
                 rows.rank * sizes.rank + rows.features * Features(sizes) +
                 rows.groups * Groups(sizes)};
  if (spec.columns == Columns::kInput) shape.push_back(sizes.input);
  if (spec.columns == Columns::kInputTwice) shape.push_back(2 * sizes.input);
  if (spec.columns == Columns::kHidden) shape.push_back(sizes.hidden);
  if (spec.columns == Columns::kRank) shape.push_back(sizes.rank);
  if (spec.columns == Columns::kFeatures) shape.push_back(Features(sizes));
  return shape;
}

// Returns the spec of a weight whose optional rows are present.
WeightSpec WithOptionalRows(const WeightInput& weight) {
  WeightSpec spec = weight.spec;
  spec.rows.hidden += weight.optional_rows.hidden;
  spec.rows.input += weight.optional_rows.input;
  return spec;
}

// The shape in letters, such as (H + 2 * I, H).
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
  add(spec.rows.groups, "groups");
  const char* columns[] = {",)", ", I)", ", 2 * I)", ", H)", ", rank)", ", F)"};
  return "(" + text + columns[static_cast<int>(spec.columns)];
}

bool DependsOnHidden(const WeightSpec& spec) {
  return spec.rows.hidden > 0 || spec.columns == Columns::kHidden;
}

Values* FieldOf(Weights* weights, int slot) {
  Values* const first[kParamSlot] = {&weights->w, &weights->r, &weights->c, &weights->v,
                                     &weights->b};
  if (slot < kParamSlot) return first[slot];
  if (slot == kFactorSlot) return &weights->q;
  if (slot < kRuleSlot) return &weights->params[slot - kParamSlot];
  return slot < kImputerSlot ? &weights->rule[slot - kRuleSlot]
                             : &weights->impute[slot - kImputerSlot];
}

// Derives I from the shape of W; returns 0 if no I gives that shape.
std::int64_t FindInput(const WeightSpec& spec, const Shape& shape) {
  const std::int64_t parts = spec.columns == Columns::kInputTwice ? 2 : 1;
  return shape.size() == 2 && shape[1] % parts == 0 ? shape[1] / parts : 0;
}

// Derives H from I and the shape of a weight that depends on H; returns 0 if no H gives that shape.
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

bool Op::CheckWeights(const std::vector<Tensor>& weights, std::int64_t group_size,
                      LayerSizes* checked, std::string* error) const {
  const auto refuse = [&](std::size_t i, const std::string& expected) {
    *error = "edgernn: " + spec.name + ": " + spec.weights[i].spec.name + ": expected " + expected +
             ", got " + Print(weights[i].shape);
    return false;
  };
  const WeightSpec& first = spec.weights[0].spec;
  const Shape& w = weights[0].shape;
  const std::int64_t input = FindInput(first, w);
  if (input < 1) return refuse(0, PrintLetters(first));
  // H follows from the first weight whose shape depends on it, in most cells W
  std::size_t source = 0;
  while (!DependsOnHidden(spec.weights[source].spec)) ++source;
  const Shape& hidden_shape = weights[source].shape;
  LayerSizes sizes{input, FindHidden(spec.weights[source].spec, input, hidden_shape)};
  if (source > 0 && w != ExpectedShape(first, sizes)) return refuse(0, PrintLetters(first));
  if (sizes.hidden < 1) return refuse(source, PrintLetters(spec.weights[source].spec));
  const std::int64_t largest = kernel.rule->HasGroups() ? sizes.hidden : 1;
  if (group_size < 1 || group_size > largest) {
    *error = "edgernn: " + spec.name + ": group_size: expected " + (largest > 1 ? "1 to " : "") +
             std::to_string(largest) + ", got " + std::to_string(group_size);
    return false;
  }
  sizes.SetGroups(group_size);
  std::string reason = " as W is " + Print(w);
  if (source > 0)
    reason += std::string(" and ") + spec.weights[source].spec.name + " is " + Print(hidden_shape);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].IsAbsent()) continue;
    if (spec.weights[i].spec.columns == Columns::kRank) {
      const Shape& r = weights[i].shape;
      sizes.rank = r.size() == 2 ? r[1] : 0;
      if (sizes.rank < 1) return refuse(i, PrintLetters(spec.weights[i].spec));
      reason += " and R is " + Print(r);
    }
    const Shape complete = ExpectedShape(WithOptionalRows(spec.weights[i]), sizes);
    const Shape required = ExpectedShape(spec.weights[i].spec, sizes);
    if (weights[i].shape == complete && complete != required) {
      sizes.bias_terms = kBias | kOptionalBias;
    } else if (weights[i].shape != required || spec.weights[i].MayBeAbsent()) {
      const std::string either =
          complete == required || spec.weights[i].MayBeAbsent() ? "" : Print(required) + " or ";
      return refuse(i, either + Print(complete) + reason);
    }
  }
  if (spec.imputes && sizes.input % 2 != 0) {
    return refuse(0, "an even number of columns, F values and F masks");
  }
  if (spec.square && sizes.input != sizes.hidden) {
    return refuse(0, "I = H = " + std::to_string(sizes.hidden) + " columns");
  }
  sizes.weights = weights[0].values.type;
  sizes.dots = kernel.dots;
  sizes.SetExtents(*kernel.cell);
  *checked = sizes;
  return true;
}

Weights Op::Arrange(const std::vector<Tensor>& weights) const {
  Weights arranged{};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    *FieldOf(&arranged, spec.weights[i].slot) = weights[i].values;
  }
  return arranged;
}

std::uint64_t OpKernel::PackedBytes(const LayerSizes& sizes) const {
  return imputer != nullptr ? ImputedPackedBytes(*imputer, kernel, sizes)
                            : kernel.PackedBytes(sizes);
}

void OpKernel::Pack(const LayerSizes& sizes, const Weights& weights, void* packed) const {
  if (imputer != nullptr) {
    PackImputed(*imputer, kernel, sizes, weights, packed);
  } else {
    kernel.Pack(sizes, weights, packed);
  }
}

std::uint64_t OpKernel::ScratchBytes(const LayerSizes& sizes, std::int64_t steps,
                                     std::int64_t batch) const {
  return imputer != nullptr ? ImputedScratchBytes(*imputer, kernel, sizes, batch)
                            : kernel.ScratchBytes(sizes, steps, batch);
}

std::uint64_t OpKernel::KeptBytes(const LayerSizes& sizes, std::int64_t batch) const {
  return kernel.KeptBytes(sizes, batch);
}

void OpKernel::Run(const LayerSizes& sizes, const void* packed, const Call& call,
                   void* scratch) const {
  const FlushSubnormals flush;
  if (imputer != nullptr) {
    RunImputed(*imputer, kernel, sizes, packed, call, scratch);
  } else {
    kernel.Run(sizes, packed, call, scratch);
  }
}

std::int64_t Op::InputWidth(const LayerSizes& sizes) const {
  return spec.imputes ? 3 * Features(sizes) : sizes.input;
}

StatePlace Op::PlaceOf(Call* call, const StateInput& state) {
  switch (state.owner) {
    case StateOwner::kCell:
      return {&call->state_in[state.index], &call->state_out[state.index]};
    case StateOwner::kRule:
      return {&call->memory_in[state.index], &call->memory_out[state.index]};
    case StateOwner::kImputer:
      return {&call->seen_in, &call->seen_out};
    default:
      return {&call->last_in, &call->last_out};
  }
}

bool Op::CheckCount(std::size_t count, bool* all, std::string* error) const {
  const std::size_t most = spec.weights.size() + spec.states.size();
  bool optional = false;
  for (const WeightInput& weight : spec.weights) optional |= weight.MayBeAbsent();
  *all = count == most;
  if (*all || (optional && count + 1 == most)) return true;
  std::string names = "X";
  for (const WeightInput& weight : spec.weights) {
    names += std::string(", ") + weight.spec.name + (weight.MayBeAbsent() ? " (optional)" : "");
  }
  for (const StateInput& state : spec.states) names += std::string(", ") + state.name;
  *error = "edgernn: " + spec.name + ": expected the inputs " + names + ", got " +
           std::to_string(1 + count) + " inputs";
  return false;
}

const Op* FindOp(const KernelTable& table, const std::string& name) {
  struct KnownOp {
    std::string name;
    Op op;
    const KnownOp* next;
  };
  // no lock: a process that is forked while another thread holds it would wait for it for ever
  static std::atomic<const KnownOp*> known{nullptr};
  for (const KnownOp* each = known; each != nullptr; each = each->next) {
    if (each->name == name) return &each->op;
  }
  const Op* op = nullptr;
  ForOps([&](const OpIndex& index) {
    if (AllLists().NameOf(index) != name) return;
    const CellSpec& cell = AllLists().cells[index.cell];
    // two threads may both add an op, which does no harm
    auto* const added =
        new KnownOp{name, MakeOp(table, index, cell, table.cells[index.cell]), known.load()};
    while (!known.compare_exchange_weak(added->next, added)) {
    }
    op = &added->op;
  });
  return op;
}

std::shared_ptr<const Op> MakeProgramOp(const KernelTable& table, const std::string& name,
                                        const CellSource& source, std::string* error) {
  if (table.program == nullptr) return nullptr;
  CheckedCell checked;
  if (!CheckCell(source, &checked, error)) {
    *error = "edgernn: " + name + ": " + *error;
    return nullptr;
  }
  const auto cell = std::make_shared<OwnedCell>(std::move(checked), table);
  const CellSpec spec = DescribeCell(cell->view, kFileNames);
  std::shared_ptr<Op> op;
  ForOpsOf(Cells::kCount, spec, [&](const OpIndex& index) {
    if (AllLists().NameOf(index, spec) != name) return;
    op = std::make_shared<Op>(MakeOp(table, index, spec, &cell->view));
    op->program = std::shared_ptr<const ProgramCell>(cell, &cell->view);
  });
  return op;
}

std::vector<std::string> OpNames(const KernelTable& table) {
  std::vector<std::string> names;
  ForOps([&](const OpIndex& index) { names.push_back(AllLists().NameOf(index)); });
  if (table.program == nullptr) return names;
  // a cell with an R, so that the names of low-rank layers are listed too
  CellSpec any{};
  any.name = "*";
  any.weights[kRecurrentSlot].rows = HiddenRows();
  ForOpsOf(Cells::kCount, any,
           [&](const OpIndex& index) { names.push_back(AllLists().NameOf(index, any)); });
  return names;
}

}  // namespace edgernn
