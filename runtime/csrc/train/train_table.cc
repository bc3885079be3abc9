// SPDX-License-Identifier: Apache-2.0
// The table of training kernels of one instruction set. Compiled once for each; EDGERNN_ISA is its
// name.

#include "cells/list.h"
#include "train/norm_driver.h"
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

std::size_t PackedBytes(const EdgernnTrainCall& call) {
  const PackedWeights forward(CellOf(call), RuleOf(call), call, false, nullptr);
  const PackedWeights back(CellOf(call), RuleOf(call), call, true, nullptr);
  return forward.bytes > back.bytes ? forward.bytes : back.bytes;
}

std::size_t ScratchBytes(const EdgernnTrainCall& call, std::int64_t rows) {
  const GateLayout layout(CellOf(call), RuleOf(call), call);
  if (call.norms != nullptr) return NormScratchBytes(layout, call);
  return ThreadScratch(layout, call, rows, nullptr).bytes;
}

void PackParams(const EdgernnTrainCall& call, bool back, void* base) {
  PackedWeights(CellOf(call), RuleOf(call), call, back, base).Fill(call, back);
}

void RunForward(const EdgernnTrainCall& call, void* base, std::int64_t first, std::int64_t end,
                void* scratch) {
  const PackedWeights packed(CellOf(call), RuleOf(call), call, false, base);
  if (call.norms != nullptr) return NormForward(packed, call, scratch);
  Sequence(packed, call, first, end).Forward(scratch);
}

void RunBackward(const EdgernnTrainCall& call, void* base, std::int64_t first, std::int64_t end,
                 void* scratch) {
  const PackedWeights packed(CellOf(call), RuleOf(call), call, true, base);
  if (call.norms != nullptr) return NormBackward(packed, call, scratch);
  Sequence(packed, call, first, end).Backward(scratch);
}

std::int64_t CountGates(const EdgernnTrainCall& call) {
  return GateLayout(CellOf(call), RuleOf(call), call).gates;
}

void SumGrads(const EdgernnTrainCall& call, void* const* scratch, int count) {
  const GateLayout layout(CellOf(call), RuleOf(call), call);
  const auto sums = [&](int i) {
    return ParameterGrads(layout, call, static_cast<float*>(scratch[i]));
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
  table.packed_bytes = &PackedBytes;
  table.scratch_bytes = &ScratchBytes;
  table.pack = &PackParams;
  table.forward = &RunForward;
  table.backward = &RunBackward;
  table.sum_grads = &SumGrads;
  return table;
}

extern const TrainTable kTable;
constexpr TrainTable kTable = MakeTable(EDGERNN_ISA_NAME);

// training has no int8 products, so this variant has the same kernels
extern const TrainTable kDotsTable;
constexpr TrainTable kDotsTable = MakeTable(kDotsName);

}  // namespace edgernn::EDGERNN_ISA
