// SPDX-License-Identifier: Apache-2.0
// The table of kernels of one instruction set. Compiled once per instruction set, whose name is
// EDGERNN_ISA.

#include "cpu/driver_column.h"
#include "cpu/driver_dense.h"
#include "cpu/driver_sample.h"
#include "cpu/driver_sparse.h"
#include "cpu/pointwise.h"
#include "imputers/grud.h"
#include "imputers/rits.h"
#include "program/cell_functions.h"
#include "selectors/selectors.h"

namespace edgernn::EDGERNN_ISA {

template <class Type>
constexpr Driver MakeDriver() {
  return {&Type::PackedBytes, &Type::Pack, &Type::ScratchBytes, &Type::KeptBytes, &Type::Run};
}

template <class Rule>
constexpr Driver DriverOf() {
  if constexpr (DescribeRule<Rule>().IsDense()) {
    return MakeDriver<DenseDriver>();
  } else if constexpr (Rule::kKind == RuleKind::kSample) {
    return MakeDriver<SampleDriver<Rule>>();
  } else if constexpr (Rule::kKind == RuleKind::kColumn) {
    return MakeDriver<ColumnDriver<Rule>>();
  } else {
    return MakeDriver<SparseDriver>();
  }
}

template <class Cell>
constexpr CellKernel MakeCell() {
  constexpr CellTable kTable = MakeCellTable<Cell>();
  constexpr RowShape kShape = RowShapeOf(kTable);
  CellKernel kernel{kTable,
                    {&RunUpdate<Cell>, nullptr, &MultiplyNeurons<kShape>, nullptr, nullptr, false}};
  // fewer or shorter registers hold too few sums for samples to share rows
  if constexpr (kLanes > 4 || kRegisters == 32) {
    kernel.multiply_shared = &MultiplySharedNeurons<kShape>;
  }
  if constexpr (kHasMid<Cell>) kernel.mid = &RunMid<Cell>;
  return kernel;
}

template <class Cell>
constexpr CellKernel kCellOf = MakeCell<Cell>();

// The cell with its update gate summed first. Samples do not share rows, which saves code.
template <class Cell>
constexpr CellKernel MakeGatedCell() {
  constexpr CellTable kTable = SumUpdateGateFirst(MakeCellTable<Cell>());
  constexpr RowShape kShape = RowShapeOf(kTable);
  static_assert((CountShapeGates(kShape) + 3) / 4 == (kTable.second_stage.all.count + 3) / 4);
  CellKernel kernel = MakeCell<Cell>();
  static_cast<CellTable&>(kernel) = kTable;
  kernel.multiply = &MultiplyNeurons<kShape>;
  kernel.multiply_shared = nullptr;
  return kernel;
}

template <class Cell, bool kHasGate = (kUpdateGateOf<Cell>.gate >= 0)>
constexpr const CellKernel* kGatedCellOf = nullptr;

template <class Cell>
constexpr CellKernel kGatedCell = MakeGatedCell<Cell>();
template <class Cell>
constexpr const CellKernel* kGatedCellOf<Cell, true> = &kGatedCell<Cell>;

template <class... AllCells>
constexpr RowProducts kRowProducts[] = {{RowShapeOf(kCellOf<AllCells>), kCellOf<AllCells>.multiply,
                                         kCellOf<AllCells>.multiply_shared}...};

template <class Imputer>
constexpr const edgernn::Imputer* kImputerOf = nullptr;

constexpr Imputer kGrud = MakeImputer<GrudImputer>();
template <>
constexpr const Imputer* kImputerOf<Grud> = &kGrud;

constexpr Imputer kRits = MakeImputer<RitsImputer>();
template <>
constexpr const Imputer* kImputerOf<Rits> = &kRits;

// in op/step_kernels.cc
extern const StepKernels kStepKernels;

template <class... AllCells, class... AllRules, class... AllImputers>
constexpr KernelTable MakeTable(const char* isa, bool dots, TypeList<AllCells...>,
                                TypeList<AllRules...>, TypeList<AllImputers...>) {
  KernelTable table{};
  table.isa = isa;
  table.dots = dots;
  table.program = &kProgramFunctions;
  table.row_products = kRowProducts<AllCells...>;
  int cell = 0, rule = 0, imputer = 0;
  ((table.gated_cells[cell] = kGatedCellOf<AllCells>, table.cells[cell++] = &kCellOf<AllCells>),
   ...);
  ((table.drivers[rule] = DriverOf<AllRules>(), table.selectors[rule++] = FindSelector<AllRules>()),
   ...);
  ((table.imputers[imputer++] = kImputerOf<AllImputers>), ...);
  table.steps = &kStepKernels;
  return table;
}

extern const KernelTable kTable;
constexpr KernelTable kTable = MakeTable(EDGERNN_ISA_NAME, false, Cells{}, Rules{}, Imputers{});

extern const KernelTable kDotsTable;
constexpr KernelTable kDotsTable = MakeTable(kDotsName, true, Cells{}, Rules{}, Imputers{});

}  // namespace edgernn::EDGERNN_ISA
