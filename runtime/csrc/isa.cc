// SPDX-License-Identifier: Apache-2.0
// The kernels for one instruction set. Compiled once for each, with EDGERNN_ISA its name.

#include "dense.h"
#include "imputers/grud.h"
#include "imputers/rits.h"
#include "jump.h"
#include "rows.h"
#include "rules/clockwork.h"
#include "rules/phased.h"
#include "rules/random.h"
#include "rules/selective.h"
#include "rules/variable.h"

namespace edgernn::EDGERNN_ISA {

// Dense takes no lister.
template <class Cell>
struct DenseDriver {
  static std::size_t PackedBytes(const Lister*, const Sizes& sizes) {
    return Dense<Cell>::PackedBytes(sizes);
  }

  static void Pack(const Lister*, const Sizes& sizes, const Weights& from, void* packed) {
    Dense<Cell>::Pack(sizes, from, packed);
  }

  static std::size_t ScratchBytes(const Lister*, const Sizes& sizes, std::int64_t steps,
                                  std::int64_t batch) {
    return Dense<Cell>::ScratchBytes(sizes, steps, batch);
  }

  static void Run(const Lister*, const Sizes& sizes, const void* packed, const Call& call,
                  void* scratch) {
    Dense<Cell>::Run(sizes, packed, call, scratch);
  }
};

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
constexpr void FillRow(Driver* row) {
  row[static_cast<int>(DriverKind::kDense)] = MakeDriver<DenseDriver<Cell>>();
  row[static_cast<int>(DriverKind::kJump)] = MakeDriver<JumpDriver<Cell>>();
  row[static_cast<int>(DriverKind::kRows)] = MakeDriver<RowDriver<Cell>>();
}

template <class Imputer>
constexpr const edgernn::Imputer* kImputerOf = nullptr;

constexpr Imputer kGrud = MakeImputer<GrudImputer>();
template <>
constexpr const Imputer* kImputerOf<Grud> = &kGrud;

constexpr Imputer kRits = MakeImputer<RitsImputer>();
template <>
constexpr const Imputer* kImputerOf<Rits> = &kRits;

template <class... AllCells, class... AllRules, class... AllImputers>
constexpr KernelTable MakeTable(const char* isa, TypeList<AllCells...>, TypeList<AllRules...>,
                                TypeList<AllImputers...>) {
  KernelTable table{};
  table.isa = isa;
  int cell = 0, rule = 0, imputer = 0;
  (FillRow<AllCells>(table.drivers[cell++]), ...);
  ((table.listers[rule++] = kListerOf<AllRules>), ...);
  ((table.imputers[imputer++] = kImputerOf<AllImputers>), ...);
  return table;
}

extern const KernelTable kTable;
constexpr KernelTable kTable = MakeTable(EDGERNN_ISA_NAME, Cells{}, Rules{}, Imputers{});

}  // namespace edgernn::EDGERNN_ISA
