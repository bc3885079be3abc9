// SPDX-License-Identifier: Apache-2.0
// Checks a cell that is defined in a file, which may be damaged or malicious.

#include "program/check_cell.h"

#include <algorithm>

namespace edgernn {

namespace {

constexpr unsigned kFileTerms = kX | kH | kM | kBias | kMid | kC;
constexpr ProgramLimits kUpdateLimits = {kMaxProgramValues, 0};
constexpr std::size_t kLayoutNumbers = 5;

// Orders the gates of a cell as in a listed cell that has the same. Returns false if it has others.
bool OrderGates(const CellTable& listed, CellTable* cell) {
  const GateList& gates = cell->second_stage.all;
  const GateList& model = listed.second_stage.all;
  if (gates.count != model.count || cell->reads_last != listed.reads_last) return false;
  constexpr unsigned kProducts = kX | kH | kC | kM;
  GateList ordered{};
  unsigned used = 0;
  for (int place = 0; place < model.count; ++place) {
    const unsigned products = listed.terms[model.at[place]] & kProducts;
    int g = 0;
    while (g < gates.count &&
           ((used >> g & 1) != 0 || (cell->terms[gates.at[g]] & kProducts) != products)) {
      ++g;
    }
    if (g == gates.count) return false;
    used |= 1u << g;
    ordered.at[ordered.count++] = gates.at[g];
  }
  cell->second_stage = MakeGroup(*cell, ordered);
  return true;
}

// Lets a cell share the gathered products of a listed one.
template <class... AllCells>
void OrderGates(TypeList<AllCells...>, CellTable* cell) {
  (OrderGates(MakeCellTable<AllCells>(), cell) || ...);
}

// Reads the table of a cell's gates and sizes.
class TableReader {
 public:
  explicit TableReader(std::string* error) : error_(*error) {}

  bool Read(const CellSource& source, CellTable* table) {
    if (!CheckLength("gates", source.gates, 1, kMaxGates) ||
        !CheckLength("vectors", source.vectors, 0, kMaxParams) ||
        !CheckLength("layout", source.layout, kLayoutNumbers, kLayoutNumbers) ||
        !CheckNumbers("gates", source.gates, kFileTerms) ||
        !CheckNumbers("vectors", source.vectors, 2)) {
      return false;
    }
    table->gates = static_cast<int>(source.gates.size());
    for (int g = 0; g < table->gates; ++g) {
      table->terms[g] = static_cast<unsigned>(source.gates[static_cast<std::size_t>(g)]);
    }
    table->params = static_cast<int>(source.vectors.size());
    for (int i = 0; i < table->params; ++i) {
      constexpr Extent kExtents[] = {Extent::kHidden, Extent::kInput, Extent::kOne};
      table->extents[i] = kExtents[source.vectors[static_cast<std::size_t>(i)]];
    }
    return ReadLayout(source.layout, table);
  }

 private:
  bool ReadLayout(const std::vector<std::int64_t>& layout, CellTable* table) {
    if (!CheckNumber("layout", layout[0], kMaxStates)) return false;
    if (layout[0] == 0)
      return Refuse("layout", "1 to " + std::to_string(kMaxStates) + " states", 0);
    table->states = static_cast<int>(layout[0]);
    bool* const flags[] = {&table->mid_is_input, &table->reads_last, &table->square,
                           &table->mid_vanishes};
    for (std::size_t i = 1; i < kLayoutNumbers; ++i) {
      if (!CheckNumber("layout", layout[i], 1)) return false;
      *flags[i - 1] = layout[i] == 1;
    }
    CompleteTable(table);
    OrderGates(Cells{}, table);
    return true;
  }

  bool CheckLength(const char* list, const std::vector<std::int64_t>& numbers, std::size_t least,
                   std::size_t most) {
    const std::size_t size = numbers.size();
    if (size >= least && size <= most) return true;
    const std::string from = least == most ? "" : std::to_string(least) + " to ";
    return Refuse(list, from + std::to_string(most) + " numbers", static_cast<std::int64_t>(size));
  }

  bool CheckNumbers(const char* list, const std::vector<std::int64_t>& numbers, std::int64_t most) {
    for (const std::int64_t number : numbers) {
      if (!CheckNumber(list, number, most)) return false;
    }
    return true;
  }

  bool CheckNumber(const char* list, std::int64_t number, std::int64_t most) {
    if (number >= 0 && number <= most) return true;
    return Refuse(list, "numbers from 0 to " + std::to_string(most), number);
  }

  // Sets the error and returns false.
  bool Refuse(const std::string& what, const std::string& expected, std::int64_t got) {
    error_ = what + ": expected " + expected + ", got " + std::to_string(got);
    return false;
  }

  std::string& error_;
};

// Returns false, and sets *error, if a vector depends on anything but vectors of its size and
// numbers.
bool CheckMap(const CellTable& table, const ProgramCode& map, std::string* error) {
  for (int i = 0; i < table.params; ++i) {
    for (std::size_t a = 0; a < map.arguments.size(); ++a) {
      if ((map.depends[static_cast<std::size_t>(i)] >> a & 1) == 0) continue;
      const Extent extent = table.extents[map.arguments[a].index];
      if (extent == Extent::kOne || extent == table.extents[i]) continue;
      *error = "map: vector " + std::to_string(i) +
               ": expected a map of vectors of its size and numbers, got one of another size";
      return false;
    }
  }
  return true;
}

}  // namespace

FindArgument ArgumentsOf(const CellTable& cell, bool for_mid) {
  return [&cell, for_mid](ArgumentKind kind, int index) {
    const Extent mid_extent = cell.mid_is_input ? Extent::kInput : Extent::kHidden;
    const Extent extent = for_mid ? mid_extent : Extent::kHidden;
    switch (kind) {
      case ArgumentKind::kGate: {
        const GateList& gates = (for_mid ? cell.first_stage : cell.second_stage).all;
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

bool CheckCell(const CellSource& source, CheckedCell* cell, std::string* error, int most_term) {
  *cell = CheckedCell{source.name, {}, {}, {}, {}};
  if (!TableReader(error).Read(source, &cell->table)) return false;
  const CellTable& table = cell->table;
  if (const char* const fault = FindFault(table, most_term)) {
    *error = std::string("gates: ") + fault;
    return false;
  }
  ProgramLimits limits = kUpdateLimits;
  limits.results = table.states;
  if (!CheckProgram("update", source.update, limits, ArgumentsOf(table, false), &cell->update,
                    error)) {
    return false;
  }
  limits.results = 1;
  if (table.has_mid) {
    if (!CheckProgram("mid", source.mid, limits, ArgumentsOf(table, true), &cell->mid, error)) {
      return false;
    }
  } else if (!source.mid.IsAbsent()) {
    *error = "mid: no gate reads m";
    return false;
  }
  if (source.map.IsAbsent()) return true;
  limits.results = table.params;
  const auto find = [&table](ArgumentKind kind, int index) {
    return kind == ArgumentKind::kVector && index < table.params ? index : -1;
  };
  return CheckProgram("map", source.map, limits, find, &cell->map, error) &&
         CheckMap(table, cell->map, error);
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
