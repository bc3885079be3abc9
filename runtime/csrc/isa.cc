// SPDX-License-Identifier: Apache-2.0
// The kernels for one instruction set. Compiled once for each, with EDGERNN_ISA its name.

#include "dense.h"
#include "selective.h"

namespace edgernn::EDGERNN_ISA {

template <class Cell, class Rule>
struct DriverOf;

template <class Cell>
struct DriverOf<Cell, Always> {
  using Type = Dense<Cell>;
};

template <class Cell>
struct DriverOf<Cell, Selective> {
  using Type = SelectiveDriver<Cell>;
};

template <class Cell, class Rule>
constexpr Kernel MakeKernel() {
  using Driver = typename DriverOf<Cell, Rule>::Type;
  return {&Driver::PackedBytes, &Driver::Pack, &Driver::ScratchBytes, &Driver::Run};
}

template <class Cell, class... AllRules>
constexpr void FillRow(Kernel* row, TypeList<AllRules...>) {
  int rule = 0;
  ((row[rule++] = MakeKernel<Cell, AllRules>()), ...);
}

template <class... AllCells>
constexpr KernelTable MakeTable(const char* isa, TypeList<AllCells...>) {
  KernelTable table{};
  table.isa = isa;
  int cell = 0;
  (FillRow<AllCells>(table.kernels[cell++], Rules{}), ...);
  return table;
}

extern const KernelTable kTable;
constexpr KernelTable kTable = MakeTable(EDGERNN_ISA_NAME, Cells{});

}  // namespace edgernn::EDGERNN_ISA
