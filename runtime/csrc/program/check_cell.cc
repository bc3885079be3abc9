// SPDX-License-Identifier: Apache-2.0
// Checks a cell that is defined in a file, which may be damaged or malicious.

#include "program/check_cell.h"

#include <algorithm>

#include "common/tensor.h"

namespace edgernn {

namespace {

constexpr unsigned kFileTerms = kX | kH | kM | kBias | kMid | kC;
constexpr ProgramLimits kUpdateLimits = {kMaxProgramValues, 0};
constexpr std::size_t kLayoutNumbers = 5;

[[noreturn]] void Refuse(const std::string& what, const std::string& expected, std::int64_t got) {
  throw InvalidArgument(what + ": expected " + expected + ", got " + std::to_string(got));
}

// Returns an element of a list. Throws InvalidArgument if it is not from 0 to `most`.
int Number(const char* list, std::int64_t number, std::int64_t most) {
  if (number < 0 || number > most)
    Refuse(list, "numbers from 0 to " + std::to_string(most), number);
  return static_cast<int>(number);
}

CellTable MakeTable(const CellSource& source) {
  const auto length = [](const char* list, std::size_t size, std::size_t least, std::size_t most) {
    if (size >= least && size <= most) return static_cast<int>(size);
    const std::string from = least == most ? "" : std::to_string(least) + " to ";
    Refuse(list, from + std::to_string(most) + " numbers", static_cast<std::int64_t>(size));
  };
  CellTable table{};
  table.gates = length("gates", source.gates.size(), 1, kMaxGates);
  for (int g = 0; g < table.gates; ++g) {
    const int terms = Number("gates", source.gates[static_cast<std::size_t>(g)], kFileTerms);
    table.terms[g] = static_cast<unsigned>(terms);
  }
  table.params = length("vectors", source.vectors.size(), 0, kMaxParams);
  for (int i = 0; i < table.params; ++i) {
    constexpr Extent kExtents[] = {Extent::kHidden, Extent::kInput, Extent::kOne};
    table.extents[i] = kExtents[Number("vectors", source.vectors[static_cast<std::size_t>(i)], 2)];
  }
  length("layout", source.layout.size(), kLayoutNumbers, kLayoutNumbers);
  table.states = Number("layout", source.layout[0], kMaxStates);
  if (table.states == 0) Refuse("layout", "1 to " + std::to_string(kMaxStates) + " states", 0);
  bool* const flags[] = {&table.mid_is_input, &table.reads_last, &table.square,
                         &table.mid_vanishes};
  for (std::size_t i = 1; i < kLayoutNumbers; ++i) {
    *flags[i - 1] = Number("layout", source.layout[i], 1) == 1;
  }
  CompleteTable(&table);
  return table;
}

// Throws InvalidArgument if a vector depends on anything but vectors of its size and numbers.
void CheckMap(const CellTable& table, const ProgramCode& map) {
  for (int i = 0; i < table.params; ++i) {
    for (std::size_t a = 0; a < map.arguments.size(); ++a) {
      if ((map.depends[static_cast<std::size_t>(i)] >> a & 1) == 0) continue;
      const Extent extent = table.extents[map.arguments[a].index];
      if (extent == Extent::kOne || extent == table.extents[i]) continue;
      throw InvalidArgument("map: vector " + std::to_string(i) +
                            ": expected a map of vectors of its size and numbers, got one of "
                            "another size");
    }
  }
}

}  // namespace

FindArgument ArgumentsOf(const CellTable& cell, bool for_mid) {
  return [&cell, for_mid](ArgumentKind kind, int index) {
    const Extent mid_extent = cell.mid_is_input ? Extent::kInput : Extent::kHidden;
    const Extent extent = for_mid ? mid_extent : Extent::kHidden;
    switch (kind) {
      case ArgumentKind::kGate: {
        const GateList& gates = (for_mid ? cell.mid_gates : cell.update_gates).all;
        const int* const end = gates.at + gates.count;
        const int* const place = std::find(gates.at, end, index);
        return place == end ? -1 : static_cast<int>(place - gates.at);
      }
      case ArgumentKind::kX:
        return index == 0 && (for_mid ? cell.reads_input : cell.square) ? 0 : -1;
      case ArgumentKind::kVector: {
        if (index >= cell.params) return -1;
        const Extent vector = cell.extents[index];
        return vector == extent || vector == Extent::kOne || cell.square ? index : -1;
      }
      case ArgumentKind::kState: {
        const bool read = extent == Extent::kHidden || cell.square;
        return read && index < cell.states ? index : -1;
      }
      default:
        return -1;
    }
  };
}

CheckedCell CheckCell(const CellSource& source, int most_term) {
  CheckedCell cell{source.name, MakeTable(source), {}, {}, {}};
  if (const char* const fault = FindFault(cell.table, most_term)) {
    throw InvalidArgument(std::string("gates: ") + fault);
  }
  ProgramLimits limits = kUpdateLimits;
  limits.results = cell.table.states;
  cell.update = CheckProgram("update", source.update, limits, ArgumentsOf(cell.table, false));
  if (cell.table.has_mid) {
    limits.results = 1;
    cell.mid = CheckProgram("mid", source.mid, limits, ArgumentsOf(cell.table, true));
  } else if (!source.mid.IsAbsent()) {
    throw InvalidArgument("mid: no gate reads m");
  }
  if (source.map.IsAbsent()) return cell;
  limits.results = cell.table.params;
  const int params = cell.table.params;
  cell.map = CheckProgram("map", source.map, limits, [params](ArgumentKind kind, int index) {
    return kind == ArgumentKind::kVector && index < params ? index : -1;
  });
  CheckMap(cell.table, cell.map);
  return cell;
}

ProgramCell CheckedCell::View(const CellFunctions& functions) const {
  ProgramCell cell{};
  static_cast<CellTable&>(cell) = table;
  cell.name = name.c_str();
  static_cast<CellFunctions&>(cell) = functions;
  cell.update_program = update.View();
  cell.mid_program = mid.View();
  cell.map_program = map.View();
  return cell;
}

namespace {

template <class Number>
const Number* CopyArray(const Number* from, int count, Arena* arena) {
  Number* const to = arena->Allocate<Number>(count);
  if (to != nullptr) std::copy(from, from + count, to);
  return to;
}

Program CopyProgram(Program program, Arena* arena) {
  program.argument = CopyArray(program.argument, program.arguments, arena);
  program.constant = CopyArray(program.constant, program.constants, arena);
  program.instruction = CopyArray(program.instruction, program.instructions, arena);
  program.result = CopyArray(program.result, program.results, arena);
  return program;
}

}  // namespace

const ProgramCell* CopyCell(const ProgramCell& cell, Arena* arena) {
  ProgramCell* const to = arena->Allocate<ProgramCell>(1);
  ProgramCell copy = cell;
  // the name is used in messages only, which an open model does not print
  copy.name = "";
  copy.update_program = CopyProgram(cell.update_program, arena);
  copy.mid_program = CopyProgram(cell.mid_program, arena);
  copy.map_program = CopyProgram(cell.map_program, arena);
  if (to != nullptr) *to = copy;
  return to;
}

}  // namespace edgernn
