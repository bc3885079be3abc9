// SPDX-License-Identifier: Apache-2.0
// The training functions of one instruction set. Compiled once for each; EDGERNN_ISA is its name.

#include "cells/list.h"
#include "train/program_maps.h"
#include "train/sequence.h"

namespace edgernn::EDGERNN_ISA {

template <class List>
struct TrainCells;

template <class... Types>
struct TrainCells<TypeList<Types...>> {
  static constexpr TrainCell kList[] = {MakeTrainCell<Types>()...};
};

template <class List>
struct TrainRules;

template <class... Types>
struct TrainRules<TypeList<Types...>> {
  static constexpr TrainRule kList[] = {MakeTrainRule<Types>()...};
};

constexpr const TrainRule* kRules = TrainRules<Rules>::kList;

constexpr const TrainCell* kCells = TrainCells<Cells>::kList;

const TrainCell& CellOf(const EdgernnTrainCall& call) {
  if (call.program != nullptr) return *static_cast<const TrainCell*>(call.program);
  return kCells[call.cell % Cells::kCount];
}

const TrainRule& RuleOf(const EdgernnTrainCall& call) { return kRules[call.rule]; }

std::size_t PreparedBytes(const EdgernnTrainCall& call) {
  const Prepared forward(CellOf(call), RuleOf(call), call, false, nullptr);
  const Prepared back(CellOf(call), RuleOf(call), call, true, nullptr);
  return forward.bytes > back.bytes ? forward.bytes : back.bytes;
}

std::size_t ScratchBytes(const EdgernnTrainCall& call, std::int64_t rows) {
  return ThreadScratch(GateLayout(CellOf(call), RuleOf(call), call), call, rows, nullptr).bytes;
}

void Prepare(const EdgernnTrainCall& call, bool back, void* base) {
  Prepared(CellOf(call), RuleOf(call), call, back, base).Fill(call, back);
}

void RunForward(const EdgernnTrainCall& call, void* base, std::int64_t first, std::int64_t end,
                void* scratch) {
  const Prepared prepared(CellOf(call), RuleOf(call), call, false, base);
  Sequence(prepared, call, first, end).Forward(scratch);
}

void RunBackward(const EdgernnTrainCall& call, void* base, std::int64_t first, std::int64_t end,
                 void* scratch) {
  const Prepared prepared(CellOf(call), RuleOf(call), call, true, base);
  Sequence(prepared, call, first, end).Backward(scratch);
}

std::int64_t CountGates(const EdgernnTrainCall& call) {
  return GateLayout(CellOf(call), RuleOf(call), call).gates;
}

void AddUp(const EdgernnTrainCall& call, void* const* scratch, int count) {
  const GateLayout layout(CellOf(call), RuleOf(call), call);
  const auto sums = [&](int i) {
    return SharedGrads(layout, call, static_cast<float*>(scratch[i]));
  };
  for (int i = 1; i < count; ++i) sums(0).arena.Add(sums(i).arena);
  sums(0).Write(layout, call);
}

constexpr TrainTable MakeTable(const char* isa) {
  TrainTable table{};
  table.isa = isa;
  table.cells = kCells;
  table.cell_count = Cells::kCount;
  table.program = &kProgramFunctions;
  table.rules = kRules;
  table.rule_count = Rules::kCount;
  table.gates = &CountGates;
  table.prepared_bytes = &PreparedBytes;
  table.scratch_bytes = &ScratchBytes;
  table.prepare = &Prepare;
  table.forward = &RunForward;
  table.backward = &RunBackward;
  table.add_up = &AddUp;
  return table;
}

extern const TrainTable kTable;
constexpr TrainTable kTable = MakeTable(EDGERNN_ISA_NAME);

// training has no whole numbers: the same under the other name
extern const TrainTable kDotsTable;
constexpr TrainTable kDotsTable = MakeTable(kDotsName);

}  // namespace edgernn::EDGERNN_ISA
