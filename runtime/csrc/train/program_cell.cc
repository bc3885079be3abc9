// SPDX-License-Identifier: Apache-2.0
// Checks a user-defined cell for training.

#include "train/program_cell.h"

#include "common/invalid_argument.h"

namespace edgernn {

namespace {

template <class Number>
std::vector<Number> CopyList(const char* name, const Number* from, std::int64_t count) {
  if (count < 0 || (count > 0 && from == nullptr)) {
    throw InvalidArgument(std::string(name) + ": expected a list, got " + std::to_string(count) +
                          (count < 0 ? " numbers" : " numbers at a null pointer"));
  }
  return std::vector<Number>(from, from + count);
}

ProgramSource CopySource(const char* name, const EdgernnTrainProgram& from) {
  return {CopyList(name, from.ints, from.int_count),
          CopyList(name, from.numbers, from.number_count)};
}

CheckedCell CheckForward(const EdgernnTrainCellSource& source) {
  CellSource cell;
  cell.gates = CopyList("gates", source.gates, source.gate_count);
  cell.vectors = CopyList("vectors", source.vectors, source.vector_count);
  cell.layout = CopyList("layout", source.layout, source.layout_count);
  cell.update = CopySource("update", source.update);
  cell.mid = CopySource("mid", source.mid);
  CheckedCell checked;
  std::string error;
  if (!CheckCell(cell, &checked, &error, kMaxGates)) throw InvalidArgument(error);
  return checked;
}

// Checks the derivative of a program, which reads its arguments and the gradients of its results.
// It returns the gradient of each argument, then `values` further results.
ProgramCode CheckBack(const char* name, const EdgernnTrainProgram& source, const CheckedCell& cell,
                      bool for_mid, int values) {
  const ProgramCode& forward = for_mid ? cell.mid : cell.update;
  const int results = forward.results;
  const ProgramLimits limits = {kMaxGradientValues,
                                static_cast<int>(forward.arguments.size()) + values};
  const FindArgument find = ArgumentsOf(cell.table, for_mid);
  const FindArgument find_back = [&](ArgumentKind kind, int index) {
    if (kind != ArgumentKind::kResultGrad) return find(kind, index);
    return index < results ? index : -1;
  };
  ProgramCode code;
  std::string error;
  if (!CheckProgram(name, CopySource(name, source), limits, find_back, &code, &error)) {
    throw InvalidArgument(error);
  }
  return code;
}

}  // namespace

OwnedTrainCell::OwnedTrainCell(const EdgernnTrainCellSource& source,
                               const TrainCellFunctions& functions)
    : ProgramTrainCell{},
      forward_(CheckForward(source)),
      update_back_(
          CheckBack("update_back", source.update_back, forward_, false, forward_.table.states)) {
  if (forward_.table.has_mid) {
    mid_back_ = CheckBack("mid_back", source.mid_back, forward_, true, 0);
  } else if (!CopySource("mid_back", source.mid_back).IsAbsent()) {
    throw InvalidArgument("mid_back: no gate reads m");
  }
  static_cast<CellTable&>(*this) = forward_.table;
  static_cast<TrainCellFunctions&>(*this) = functions;
  name = "";
  update_program = forward_.update.View();
  update_back_program = update_back_.View();
  mid_program = forward_.mid.View();
  mid_back_program = mid_back_.View();
}

}  // namespace edgernn
