// SPDX-License-Identifier: Apache-2.0
// The words in which a cell describes itself: gates and parameters, and the constexpr lists drawn
// from them.
//
// Everything here is evaluated by the compiler. Nothing may be called at run time: this header is
// included by files built for different instruction sets.

#ifndef EDGERNN_GATE_H_
#define EDGERNN_GATE_H_

#include <type_traits>

namespace edgernn {

constexpr int kMaxGates = 8;
constexpr int kMaxParams = 4;
constexpr int kMaxStates = 4;

// The terms of p_g = W_g x + R_g h + C_g c + V_g m + b_g, where h is the first state and c the
// second; kMid marks a gate that `Mid` reads. Only gates without it have kC or kM.
constexpr unsigned kX = 1;
constexpr unsigned kH = 2;
constexpr unsigned kM = 4;
constexpr unsigned kBias = 8;
constexpr unsigned kMid = 16;
constexpr unsigned kC = 32;

struct Gate {
  const char* name;
  unsigned terms;
};

enum class Extent { kHidden, kInput, kOne, kFeatures };

// What becomes of a parameter before the cell sees it. kLength, for an extent of kOne: the value,
// or the steps of the call if it is 0; it is a constant of the model.
enum class Map { kIdentity, kSigmoid, kTanh, kLength };

// A weight input of the cell's own besides W, R, C, V and b.
struct Param {
  const char* name;
  Extent extent;
  Map map;
};

// Rows of a weight input: hidden * H + input * I + one + rank * the rank of R + features * F, which
// is I / 2 behind an imputer.
struct Rows {
  int hidden = 0;
  int input = 0;
  int one = 0;
  int rank = 0;
  int features = 0;
};

struct GateList {
  int count;
  int at[kMaxGates];
};

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

template <class Cell>
constexpr bool HasParam(Extent extent) {
  for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
    if (ParamsOf<Cell>::kList[i].extent == extent) return true;
  }
  return false;
}

template <class Cell, class = void>
struct MidExtentOf {
  static constexpr Extent kExtent = Extent::kHidden;
};

template <class Cell>
struct MidExtentOf<Cell, std::void_t<decltype(Cell::kMidExtent)>> {
  static constexpr Extent kExtent = Cell::kMidExtent;
};

// Whether m and the gates marked kMid have the size of the input.
template <class Cell>
constexpr bool kMidIsInput = MidExtentOf<Cell>::kExtent == Extent::kInput;

template <class Cell, class = void>
struct ReadsLastOf : std::false_type {};

template <class Cell>
struct ReadsLastOf<Cell, std::void_t<decltype(Cell::kReadsLast)>>
    : std::bool_constant<Cell::kReadsLast> {};

// Whether W has 2I columns, for x_t and then for x_{t-1}.
template <class Cell>
constexpr bool kReadsLast = ReadsLastOf<Cell>::value;

template <class Cell, class = void>
struct SquareOf : std::false_type {};

template <class Cell>
struct SquareOf<Cell, std::void_t<decltype(Cell::kSquare)>> : std::bool_constant<Cell::kSquare> {};

// Whether I must equal H, as Update reads each neuron's x.
template <class Cell>
constexpr bool kSquare = SquareOf<Cell>::value;

template <class Cell, class = void>
struct MidVanishesOf : std::false_type {};

template <class Cell>
struct MidVanishesOf<Cell, std::void_t<decltype(Cell::kMidVanishes)>>
    : std::bool_constant<Cell::kMidVanishes> {};

// Whether m is zero where the states are.
template <class Cell>
constexpr bool kMidVanishes = MidVanishesOf<Cell>::value;

// Whether m and Update read x itself, neuron by neuron, and not only its products.
template <class Cell>
constexpr bool kReadsInput = kMidIsInput<Cell> || kSquare<Cell>;

// The gates that have all of `with` and none of `without`, in gate order.
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

// Whether the cell has an m; it may have one without any gate marked kMid.
template <class Cell>
constexpr bool kHasMid = CountGates<Cell>(kM) > 0;

// So many states, the first ones, are multiplied by weights.
template <class Cell>
constexpr int kFactorStates = CountGates<Cell>(kC) > 0 ? 2 : 1;

// So many values of each neuron are given to Update: its gates, then its x if the cell is square.
template <class Cell>
constexpr int kGivenCount = kGateCount<Cell> + (kSquare<Cell> ? 1 : 0);

// A list of gates as a type, so that what is written for a list can loop over it at compile time.
template <class Cell, unsigned kWith, unsigned kWithout = 0>
struct GateSet {
  static constexpr GateList kList = SelectGates<Cell>(kWith, kWithout);
  static constexpr int kCount = kList.count;
};

// The gates that are summed together, those marked kMid or the others, and for each term which of
// them have it, by their places in `all`.
struct GateGroup {
  GateList all;
  GateList x;
  GateList h;
  GateList c;
  GateList m;
};

// What drivers know of a cell.
struct CellTable {
  const char* name;
  int gates;
  unsigned terms[kMaxGates];
  GateGroup mid_gates;
  GateGroup update_gates;
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
};

template <class Cell>
constexpr GateGroup MakeGroup(unsigned with, unsigned without) {
  GateGroup made{};
  made.all = SelectGates<Cell>(with, without);
  for (int i = 0; i < made.all.count; ++i) {
    const unsigned terms = Cell::kGates[made.all.at[i]].terms;
    if ((terms & kX) != 0) made.x.at[made.x.count++] = i;
    if ((terms & kH) != 0) made.h.at[made.h.count++] = i;
    if ((terms & kC) != 0) made.c.at[made.c.count++] = i;
    if ((terms & kM) != 0) made.m.at[made.m.count++] = i;
  }
  return made;
}

template <class Cell>
constexpr CellTable MakeCellTable() {
  CellTable made{};
  made.name = Cell::kName;
  made.gates = kGateCount<Cell>;
  for (int g = 0; g < made.gates; ++g) made.terms[g] = Cell::kGates[g].terms;
  made.mid_gates = MakeGroup<Cell>(kMid, 0);
  made.update_gates = MakeGroup<Cell>(0, kMid);
  made.states = kStateCount<Cell>;
  made.factor_states = kFactorStates<Cell>;
  made.params = ParamsOf<Cell>::kCount;
  for (int i = 0; i < made.params; ++i) {
    made.extents[i] = ParamsOf<Cell>::kList[i].extent;
    made.maps[i] = ParamsOf<Cell>::kList[i].map;
  }
  made.has_mid = kHasMid<Cell>;
  made.mid_is_input = kMidIsInput<Cell>;
  made.mid_vanishes = kMidVanishes<Cell>;
  made.reads_last = kReadsLast<Cell>;
  made.reads_input = kReadsInput<Cell>;
  made.square = kSquare<Cell>;
  return made;
}

// The rows that W (R, C, V, b) has.
template <class Cell>
constexpr Rows CountRows(unsigned term) {
  Rows rows{};
  for (int g = 0; g < kGateCount<Cell>; ++g) {
    const unsigned terms = Cell::kGates[g].terms;
    if ((terms & term) == 0) continue;
    ((terms & kMid) != 0 && kMidIsInput<Cell> ? rows.input : rows.hidden) += 1;
  }
  return rows;
}

}  // namespace edgernn

#endif  // EDGERNN_GATE_H_
