// SPDX-License-Identifier: Apache-2.0
// Training for one instruction set. Compiled once for each, with EDGERNN_ISA its name.

#include "cells.h"
#include "train/sequence.h"

namespace edgernn::EDGERNN_ISA {

template <class List>
struct TrainCells;

template <class... Types>
struct TrainCells<TypeList<Types...>> {
  static constexpr TrainCell kList[] = {MakeTrainCell<Types>()...};
};

constexpr const TrainCell* kCells = TrainCells<Cells>::kList;

std::size_t PreparedBytes(const EdgernnTrainCall& call) {
  const Prepared forward(kCells[call.cell], call, false, nullptr);
  const Prepared back(kCells[call.cell], call, true, nullptr);
  return forward.bytes > back.bytes ? forward.bytes : back.bytes;
}

std::size_t ScratchBytes(const EdgernnTrainCall& call, std::int64_t rows) {
  return RowScratch(Layout(kCells[call.cell], call), call, rows, nullptr).bytes;
}

void Prepare(const EdgernnTrainCall& call, bool back, void* base) {
  Prepared(kCells[call.cell], call, back, base).Fill(call, back);
}

void RunForward(const EdgernnTrainCall& call, void* base, std::int64_t first, std::int64_t end,
                void*) {
  const Prepared prepared(kCells[call.cell], call, false, base);
  Sequence(prepared, call, first, end).Forward();
}

void RunBackward(const EdgernnTrainCall& call, void* base, std::int64_t first, std::int64_t end,
                 void* scratch) {
  const Prepared prepared(kCells[call.cell], call, true, base);
  Sequence(prepared, call, first, end).Backward(scratch);
}

std::int64_t CountGates(const EdgernnTrainCall& call) {
  return Layout(kCells[call.cell], call).gates;
}

void AddUp(const EdgernnTrainCall& call, void* const* scratch, int count) {
  const Layout layout(kCells[call.cell], call);
  const auto sums = [&](int i) {
    return SharedSums(layout, call, static_cast<float*>(scratch[i]));
  };
  for (int i = 1; i < count; ++i) sums(0).parts.Add(sums(i).parts);
  sums(0).Write(layout, call);
}

constexpr TrainTable MakeTable(const char* isa) {
  return {isa,           kCells,   Cells::kCount, &CountGates,  &PreparedBytes,
          &ScratchBytes, &Prepare, &RunForward,   &RunBackward, &AddUp};
}

extern const TrainTable kTable;
constexpr TrainTable kTable = MakeTable(EDGERNN_ISA_NAME);

// training has no whole numbers: the same under the other name
extern const TrainTable kDotsTable;
constexpr TrainTable kDotsTable = MakeTable(kDotsName);

}  // namespace edgernn::EDGERNN_ISA
