// SPDX-License-Identifier: Apache-2.0
// The interface of a cell: its gates and parameters, and the constexpr tables made from them.
//
// Source files that are compiled once per instruction set must evaluate these functions at compile
// time only. Tables of user-defined cells are made at run time, in files compiled once.

#pragma once

#include <type_traits>

namespace edgernn {

constexpr int kMaxGates = 8;
constexpr int kMaxParams = 4;
constexpr int kMaxStates = 4;

// The maximum number of gates in a group with the same term.
constexpr int kMaxTerm = 4;

// The terms of p_g = W_g x + R_g h + C_g c + V_g m + b_g, where h is the first state and c the
// second; kMid marks a gate that `Mid` reads. Only gates without it have kC or kM. A bias starts a
// sum, so a gate with kOptionalBias has one kernel whether a model gives it a bias or not.
constexpr unsigned kX = 1;
constexpr unsigned kH = 2;
constexpr unsigned kM = 4;
constexpr unsigned kBias = 8;
constexpr unsigned kMid = 16;
constexpr unsigned kC = 32;
constexpr unsigned kOptionalBias = 64;

struct Gate {
  const char* name;
  unsigned terms;
};

// kColumns: the columns of W. kSums: the rows of all gates that read x or h.
enum class Extent { kHidden, kInput, kOne, kFeatures, kColumns, kSums };

// The map applied to a parameter before the cell reads it. kLength, only for kOne: the parameter is
// a constant of the model, and 0 stands for the length of the sequence (Call::length).
enum class Map { kIdentity, kSigmoid, kTanh, kLength };

// A weight input besides W, R, C, V and b.
struct Param {
  const char* name;
  Extent extent;
  Map map;
};

// Rows of a weight input: hidden * H + input * I + one + rank * (rank of R) + features * F +
// groups * (number of groups of neurons that share a decision). F = I / 2 is the number of features
// of an imputer.
struct RowCount {
  int hidden = 0;
  int input = 0;
  int one = 0;
  int rank = 0;
  int features = 0;
  int groups = 0;
};

constexpr RowCount HiddenRows() {
  RowCount rows{};
  rows.hidden = 1;
  return rows;
}

constexpr RowCount InputRows() {
  RowCount rows{};
  rows.input = 1;
  return rows;
}

constexpr RowCount OneRow() {
  RowCount rows{};
  rows.one = 1;
  return rows;
}

constexpr RowCount RankRows() {
  RowCount rows{};
  rows.rank = 1;
  return rows;
}

constexpr RowCount FeatureRows() {
  RowCount rows{};
  rows.features = 1;
  return rows;
}

constexpr RowCount GroupRows() {
  RowCount rows{};
  rows.groups = 1;
  return rows;
}

struct GateList {
  int count;
  int at[kMaxGates];
};

// A cell is a struct with
//   kName                its name; every variant with other gates has a name of its own
//   kGates               its gates; W, R, C, V and b stack their rows in this order
//   kStates              names of its states, all (B, H); the first is h, the output, and the
//                        second the c of gates that have it
//   Update(p, q, state)  new states, in-place, from the pre-activations p of its gates, its mapped
//                        parameters q and the old states; p of gates marked kMid and, if M is I, q
//                        of size I are undefined
// and may have
//   kParams              further weight inputs, after b in this order
//   kMidExtent           kInput if M, the size of m and of the gates marked kMid, is I, not H
//   Mid(p, q, x, state)  m, required if a gate has the term kM: from the gates marked kMid, the
//                        parameters of size M or 1, and x if M is I, otherwise the states
//   kMidVanishes         true: m is zero where the states are zero
//   kReadsLast           true: W has 2I columns, for x_t and then x_{t-1}; there is no m
//   kUpdateGate          {index, sign} of the gate that decides how much of its new value a neuron
//                        takes: more where sign times its pre-activation is larger; it has no terms
//                        but kX, kH and kBias
//   kSquare              true: I must be H. p has the neuron's x after its gates; Mid reads x, the
//                        states, all parameters and the gates marked kMid
template <class Cell>
constexpr int kGateCount = sizeof(Cell::kGates) / sizeof(Gate);

template <class Cell>
constexpr int kStateCount = sizeof(Cell::kStates) / sizeof(Cell::kStates[0]);

template <class Cell, class = void>
struct ParamsOf {
  static constexpr int kCount = 0;
  static constexpr const Param* kList = nullptr;
};

template <class Cell>
struct ParamsOf<Cell, std::void_t<decltype(Cell::kParams)>> {
  static constexpr int kCount = sizeof(Cell::kParams) / sizeof(Param);
  static constexpr const Param* kList = Cell::kParams;
};

template <class Cell, class = void>
struct MidExtentOf {
  static constexpr Extent kExtent = Extent::kHidden;
};

template <class Cell>
struct MidExtentOf<Cell, std::void_t<decltype(Cell::kMidExtent)>> {
  static constexpr Extent kExtent = Cell::kMidExtent;
};

// True if m and the gates marked kMid have the size of the input.
template <class Cell>
constexpr bool kMidIsInput = MidExtentOf<Cell>::kExtent == Extent::kInput;

template <class Cell, class = void>
struct ReadsLastOf : std::false_type {};

template <class Cell>
struct ReadsLastOf<Cell, std::void_t<decltype(Cell::kReadsLast)>>
    : std::bool_constant<Cell::kReadsLast> {};

// True if W has 2I columns, for x_t and then for x_{t-1}.
template <class Cell>
constexpr bool kReadsLast = ReadsLastOf<Cell>::value;

template <class Cell, class = void>
struct SquareOf : std::false_type {};

template <class Cell>
struct SquareOf<Cell, std::void_t<decltype(Cell::kSquare)>> : std::bool_constant<Cell::kSquare> {};

// True if I must equal H, because Update reads each neuron's x.
template <class Cell>
constexpr bool kSquare = SquareOf<Cell>::value;

// The index of a gate, or -1 for none; and 1 or -1.
struct UpdateGate {
  int gate = -1;
  float sign = 1.0f;
};

template <class Cell, class = void>
constexpr UpdateGate kUpdateGateOf = {};

template <class Cell>
constexpr UpdateGate kUpdateGateOf<Cell, std::void_t<decltype(Cell::kUpdateGate)>> =
    Cell::kUpdateGate;

template <class Cell, class = void>
struct MidVanishesOf : std::false_type {};

template <class Cell>
struct MidVanishesOf<Cell, std::void_t<decltype(Cell::kMidVanishes)>>
    : std::bool_constant<Cell::kMidVanishes> {};

// True if m is zero where the states are zero.
template <class Cell>
constexpr bool kMidVanishes = MidVanishesOf<Cell>::value;

// True if Mid or Update reads x element by element, not only its products.
template <class Cell>
constexpr bool kReadsInput = kMidIsInput<Cell> || kSquare<Cell>;

// Selects the gates that have all bits of `with` and none of `without`, in gate order.
template <class Cell>
constexpr GateList SelectGates(unsigned with, unsigned without = 0) {
  GateList list{};
  for (int g = 0; g < kGateCount<Cell>; ++g) {
    const unsigned terms = Cell::kGates[g].terms;
    if ((terms & with) == with && (terms & without) == 0) list.at[list.count++] = g;
  }
  return list;
}

template <class Cell>
constexpr int CountGates(unsigned with, unsigned without = 0) {
  return SelectGates<Cell>(with, without).count;
}

// True if the cell has m, which does not require a gate marked kMid.
template <class Cell>
constexpr bool kHasMid = CountGates<Cell>(kM) > 0;

// Number of states, from the first, that are operands of products.
template <class Cell>
constexpr int kFactorStates = CountGates<Cell>(kC) > 0 ? 2 : 1;

// The length of Update's p: the gates, then x if the cell is square.
template <class Cell>
constexpr int kUpdateInputs = kGateCount<Cell> + (kSquare<Cell> ? 1 : 0);

// A list of gates as a type, for loops at compile time.
template <class Cell, unsigned kWith, unsigned kWithout = 0>
struct GateSet {
  static constexpr GateList kList = SelectGates<Cell>(kWith, kWithout);
  static constexpr int kCount = kList.count;
};

// The gates of a stage, which are summed together: those marked kMid in the first, the others in
// the second. The lists of each term hold indices into `all`.
struct GateGroup {
  GateList all;
  GateList x;
  GateList h;
  GateList c;
  GateList m;
};

// A cell as data, in the form that the drivers read.
struct CellTable {
  const char* name;
  int gates;
  unsigned terms[kMaxGates];
  GateGroup first_stage;
  GateGroup second_stage;
  int states;
  int factor_states;
  int params;
  Extent extents[kMaxParams];
  Map maps[kMaxParams];
  bool has_mid;
  bool mid_is_input;
  bool mid_vanishes;
  bool reads_last;
  bool reads_input;
  bool square;
  UpdateGate update_gate;
  // the place of the update gate in first_stage.all if it is summed with them, else -1
  int score_place = -1;
};

// Groups these gates of a table.
constexpr GateGroup MakeGroup(const CellTable& cell, const GateList& gates) {
  GateGroup group{};
  group.all = gates;
  for (int place = 0; place < gates.count; ++place) {
    const unsigned terms = cell.terms[gates.at[place]];
    if ((terms & kX) != 0) group.x.at[group.x.count++] = place;
    if ((terms & kH) != 0) group.h.at[group.h.count++] = place;
    if ((terms & kC) != 0) group.c.at[group.c.count++] = place;
    if ((terms & kM) != 0) group.m.at[group.m.count++] = place;
  }
  return group;
}

// Groups the gates of a table that have all bits of `with` and none of `without`.
constexpr GateGroup MakeGroup(const CellTable& cell, unsigned with, unsigned without) {
  GateList gates{};
  for (int g = 0; g < cell.gates; ++g) {
    const unsigned terms = cell.terms[g];
    if ((terms & with) == with && (terms & without) == 0) gates.at[gates.count++] = g;
  }
  return MakeGroup(cell, gates);
}

// Fills in the fields that follow from the other fields of a table.
constexpr void CompleteTable(CellTable* cell) {
  cell->first_stage = MakeGroup(*cell, kMid, 0);
  cell->second_stage = MakeGroup(*cell, 0, kMid);
  cell->factor_states = cell->first_stage.c.count + cell->second_stage.c.count > 0 ? 2 : 1;
  cell->has_mid = cell->first_stage.m.count + cell->second_stage.m.count > 0;
  cell->reads_input = cell->mid_is_input || cell->square;
}

// Moves the products of the update gate to the gates marked kMid, which are computed for all
// neurons. Its place among the other gates stays, and its sums are copied there.
constexpr CellTable SumUpdateGateFirst(CellTable cell) {
  const int gate = cell.update_gate.gate;
  const auto drop = [&cell, gate](GateList* places) {
    int kept = 0;
    for (int i = 0; i < places->count; ++i) {
      if (cell.second_stage.all.at[places->at[i]] != gate) places->at[kept++] = places->at[i];
    }
    places->count = kept;
  };
  drop(&cell.second_stage.x);
  drop(&cell.second_stage.h);
  GateGroup& mid = cell.first_stage;
  cell.score_place = mid.all.count;
  mid.all.at[mid.all.count++] = gate;
  if ((cell.terms[gate] & kX) != 0) mid.x.at[mid.x.count++] = cell.score_place;
  if ((cell.terms[gate] & kH) != 0) mid.h.at[mid.h.count++] = cell.score_place;
  return cell;
}

constexpr bool HasTermTooOften(const GateGroup& group, int most) {
  return group.x.count > most || group.h.count > most || group.c.count > most ||
         group.m.count > most;
}

// Returns why the drivers cannot run a cell with this table, as a clause, or null if they can.
// most_term: the maximum number of gates in a group with the same term; training has no limit.
constexpr const char* FindFault(const CellTable& cell, int most_term = kMaxTerm) {
  constexpr unsigned kProducts = kX | kH | kC | kM;
  for (int g = 0; g < cell.gates; ++g) {
    const unsigned terms = cell.terms[g];
    if ((terms & kProducts) == 0) return "a gate has no term besides its bias";
    if ((terms & kMid) != 0 && (terms & (kM | kC)) != 0) {
      return "a gate that m is made from reads m or c";
    }
  }
  if (cell.first_stage.x.count + cell.second_stage.x.count == 0) {
    return "no gate reads x, whose weights set I";
  }
  if (HasTermTooOften(cell.first_stage, most_term) ||
      HasTermTooOften(cell.second_stage, most_term)) {
    return "more than 4 gates of a stage have the same term";
  }
  if (cell.update_gate.gate >= 0) {
    const unsigned terms = cell.terms[cell.update_gate.gate];
    if ((terms & (kX | kH)) == 0 || (terms & (kM | kC | kMid)) != 0) {
      return "the update gate has terms other than x and h";
    }
    if (cell.mid_is_input || cell.reads_last || cell.first_stage.x.count == most_term ||
        cell.first_stage.h.count == most_term) {
      return "the update gate cannot be summed with the gates that m is made from";
    }
  }
  if (cell.factor_states > cell.states) return "a gate reads c, which needs two states";
  if (!cell.has_mid && cell.first_stage.all.count > 0)
    return "gates are marked mid and none reads m";
  if (!cell.has_mid && cell.mid_is_input) return "m has the size of the input and no gate reads it";
  if (cell.has_mid && cell.reads_last) return "m has no part of the last input";
  if (cell.square && cell.reads_last) return "an equation reads x beside the last input";
  if (cell.mid_vanishes && (!cell.has_mid || cell.mid_is_input)) {
    return "only an m of the size of the states vanishes with them";
  }
  for (int i = 0; i < cell.params; ++i) {
    if (cell.extents[i] == Extent::kInput && !cell.reads_input) {
      return "a vector has the size of the input, which no stage has";
    }
  }
  return nullptr;
}

template <class Cell>
constexpr CellTable MakeCellTable() {
  static_assert(kGateCount<Cell> <= kMaxGates && kStateCount<Cell> <= kMaxStates);
  static_assert(ParamsOf<Cell>::kCount <= kMaxParams);
  CellTable table{};
  table.name = Cell::kName;
  table.gates = kGateCount<Cell>;
  for (int g = 0; g < table.gates; ++g) table.terms[g] = Cell::kGates[g].terms;
  table.states = kStateCount<Cell>;
  table.params = ParamsOf<Cell>::kCount;
  for (int i = 0; i < table.params; ++i) {
    table.extents[i] = ParamsOf<Cell>::kList[i].extent;
    table.maps[i] = ParamsOf<Cell>::kList[i].map;
  }
  table.mid_is_input = kMidIsInput<Cell>;
  table.mid_vanishes = kMidVanishes<Cell>;
  table.reads_last = kReadsLast<Cell>;
  table.square = kSquare<Cell>;
  table.update_gate = kUpdateGateOf<Cell>;
  CompleteTable(&table);
  return table;
}

}  // namespace edgernn
