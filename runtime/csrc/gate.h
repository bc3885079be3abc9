// SPDX-License-Identifier: Apache-2.0
// The words in which a cell describes itself: gates, and the constexpr lists drawn from them.
//
// Everything here is evaluated by the compiler. Nothing may be called at run time: this header is
// included by files built for different instruction sets.

#ifndef EDGERNN_GATE_H_
#define EDGERNN_GATE_H_

namespace edgernn {

constexpr int kMaxGates = 8;
constexpr int kMaxStates = 4;

// The terms of p_g = W_g x + R_g h + V_g m + b_g; kMid marks a gate that `Mid` reads.
constexpr unsigned kX = 1;
constexpr unsigned kH = 2;
constexpr unsigned kM = 4;
constexpr unsigned kBias = 8;
constexpr unsigned kMid = 16;

struct Gate {
  const char* name;
  unsigned terms;
};

struct GateList {
  int count;
  int at[kMaxGates];
};

template <class Cell>
constexpr int kGateCount = sizeof(Cell::kGates) / sizeof(Gate);

template <class Cell>
constexpr int kStateCount = sizeof(Cell::kStates) / sizeof(Cell::kStates[0]);

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

// A list of gates as a type, so that drivers can loop over it at compile time.
template <class Cell, unsigned kWith, unsigned kWithout = 0>
struct GateSet {
  static constexpr GateList kList = SelectGates<Cell>(kWith, kWithout);
  static constexpr int kCount = kList.count;
};

// Where in the stacked rows of W (R, V, b) each gate's block of H rows lies; -1: it has none.
struct GateRanks {
  int of[kMaxGates];
};

template <class Cell>
constexpr GateRanks RankGates(unsigned term) {
  GateRanks ranks{};
  int next = 0;
  for (int g = 0; g < kGateCount<Cell>; ++g) {
    ranks.of[g] = (Cell::kGates[g].terms & term) ? next++ : -1;
  }
  return ranks;
}

template <class Cell, unsigned kTerm>
constexpr GateRanks kRanks = RankGates<Cell>(kTerm);

}  // namespace edgernn

#endif  // EDGERNN_GATE_H_
