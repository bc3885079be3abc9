// SPDX-License-Identifier: Apache-2.0
// The kernels for one instruction set. Compiled once for each, with EDGERNN_ISA its name.

#include "dense.h"
#include "imputers/grud.h"
#include "imputers/rits.h"
#include "jump.h"
#include "linear.h"
#include "points.h"
#include "rows.h"
#include "rules/clockwork.h"
#include "rules/phased.h"
#include "rules/random.h"
#include "rules/selective.h"
#include "rules/variable.h"

namespace edgernn::EDGERNN_ISA {

// What a rule's kernels have of their own, if anything.
template <class Rule>
constexpr const Lister* kListerOf = nullptr;

constexpr Lister kRandom = MakeLister<RandomLister>();
template <>
constexpr const Lister* kListerOf<Random> = &kRandom;

constexpr Lister kClockwork = MakeLister<ClockworkLister>();
template <>
constexpr const Lister* kListerOf<Clockwork> = &kClockwork;

constexpr Lister kSelective = MakeLister<SelectiveLister>();
template <>
constexpr const Lister* kListerOf<Selective> = &kSelective;

constexpr Lister kPhased = MakeLister<PhasedLister>();
template <>
constexpr const Lister* kListerOf<Phased> = &kPhased;

constexpr Lister kVariable = MakeLister<VariableLister>();
template <>
constexpr const Lister* kListerOf<Variable> = &kVariable;

template <class Type>
constexpr Driver MakeDriver() {
  return {&Type::PackedBytes, &Type::Pack, &Type::ScratchBytes, &Type::Run};
}

template <class Cell>
constexpr CellKernel MakeCell() {
  CellKernel made{MakeCellTable<Cell>(), &RunUpdate<Cell>, nullptr, &RunNeurons<Cell>};
  if constexpr (kHasMid<Cell>) made.mid = &RunMid<Cell>;
  return made;
}

template <class Cell>
constexpr CellKernel kCellOf = MakeCell<Cell>();

template <class Imputer>
constexpr const edgernn::Imputer* kImputerOf = nullptr;

constexpr Imputer kGrud = MakeImputer<GrudImputer>();
template <>
constexpr const Imputer* kImputerOf<Grud> = &kGrud;

constexpr Imputer kRits = MakeImputer<RitsImputer>();
template <>
constexpr const Imputer* kImputerOf<Rits> = &kRits;

template <class... AllCells, class... AllRules, class... AllImputers>
constexpr KernelTable MakeTable(const char* isa, bool dots, TypeList<AllCells...>,
                                TypeList<AllRules...>, TypeList<AllImputers...>) {
  KernelTable table{};
  table.isa = isa;
  table.dots = dots;
  int cell = 0, rule = 0, imputer = 0;
  ((table.cells[cell++] = &kCellOf<AllCells>), ...);
  table.drivers[static_cast<int>(DriverKind::kDense)] = MakeDriver<Dense>();
  table.drivers[static_cast<int>(DriverKind::kJump)] = MakeDriver<Jump>();
  table.drivers[static_cast<int>(DriverKind::kRows)] = MakeDriver<RowDriver>();
  ((table.listers[rule++] = kListerOf<AllRules>), ...);
  ((table.imputers[imputer++] = kImputerOf<AllImputers>), ...);
  table.linear = {&LinearMap::PackedBytes, &LinearMap::Pack, &LinearMap::ScratchBytes,
                  &LinearMap::Run};
  return table;
}

extern const KernelTable kTable;
constexpr KernelTable kTable = MakeTable(EDGERNN_ISA_NAME, false, Cells{}, Rules{}, Imputers{});

extern const KernelTable kDotsTable;
constexpr KernelTable kDotsTable = MakeTable(kDotsName, true, Cells{}, Rules{}, Imputers{});

}  // namespace edgernn::EDGERNN_ISA
