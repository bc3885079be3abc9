// SPDX-License-Identifier: Apache-2.0
// Implements draw_cell.h.

#include "draw_cell.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace edgernn_tests {

namespace {

using edgernn::CellSource;
using edgernn::CellTable;
using edgernn::ProgramSource;

constexpr int kArities[] = {
#define EDGERNN_ARITY(name, code, arity) arity,
    EDGERNN_PROGRAM_OPS(EDGERNN_ARITY)
#undef EDGERNN_ARITY
};
constexpr int kOperations = sizeof kArities / sizeof *kArities;

// A program under construction.
struct ProgramDraft {
  std::vector<std::int64_t> arguments;
  std::vector<float> constants;
  std::vector<std::int64_t> instructions;  // four numbers each
  std::vector<std::int64_t> results;

  int Values() const {
    return static_cast<int>(arguments.size() + constants.size() + instructions.size() / 4);
  }

  void Add(int operation, int a, int b, int c) {
    for (const int number : {operation, a, b, c}) instructions.push_back(number);
  }

  ProgramSource Source() const {
    ProgramSource source;
    for (const std::size_t count :
         {arguments.size(), constants.size(), instructions.size() / 4, results.size()}) {
      source.ints.push_back(static_cast<std::int64_t>(count));
    }
    for (const auto* const part : {&arguments, &instructions, &results}) {
      source.ints.insert(source.ints.end(), part->begin(), part->end());
    }
    source.numbers = constants;
    return source;
  }
};

void AddConstants(RandomGenerator* random, ProgramDraft* draft) {
  for (int i = random->Below(5); i > 0; --i) {
    draft->constants.push_back(random->OneIn(4) ? random->Wild() : 2 * random->Uniform());
  }
}

ProgramSource DrawProgram(RandomGenerator* random, const edgernn::FindArgument& find, int results) {
  ProgramDraft draft;
  for (int kind = 0; kind < edgernn::kArgumentKinds; ++kind) {
    for (int i = 0; i < edgernn::kArgumentIndices; ++i) {
      if (find(static_cast<edgernn::ArgumentKind>(kind), i) >= 0 && !random->OneIn(4)) {
        draft.arguments.push_back(kind * edgernn::kArgumentIndices + i);
      }
    }
  }
  // shuffle
  for (std::size_t i = draft.arguments.size(); i > 1; --i) {
    std::swap(draft.arguments[i - 1],
              draft.arguments[static_cast<std::size_t>(random->Below(static_cast<int>(i)))]);
  }
  AddConstants(random, &draft);
  if (draft.Values() == 0) draft.constants.push_back(1);
  const int room = edgernn::kMaxProgramValues - draft.Values();
  const int count = random->OneIn(16) ? room : random->Below(std::min(room, 20) + 1);
  for (int i = 0; i < count; ++i) {
    const int operation = random->Below(kOperations);
    // operands: recent values, which make long chains, or any values
    const int values = draft.Values(), reach = random->OneIn(2) ? std::min(values, 4) : values;
    int operands[3] = {};
    for (int k = 0; k < kArities[operation]; ++k) operands[k] = values - 1 - random->Below(reach);
    draft.Add(operation, operands[0], operands[1], operands[2]);
  }
  for (int i = 0; i < results; ++i) {
    const int values = draft.Values();
    draft.results.push_back(random->OneIn(3) ? random->Below(values)
                                             : values - 1 - random->Below(std::min(values, 4)));
  }
  return draft.Source();
}

// Draws a map, whose results each depend on one vector only.
ProgramSource DrawMap(RandomGenerator* random, int vectors) {
  ProgramDraft draft;
  for (int i = 0; i < vectors; ++i) {
    draft.arguments.push_back(
        static_cast<int>(edgernn::ArgumentKind::kVector) * edgernn::kArgumentIndices + i);
  }
  AddConstants(random, &draft);
  const int constants = static_cast<int>(draft.constants.size());
  for (int i = 0; i < vectors; ++i) {
    int value = i;
    for (int k = random->Below(4); k > 0; --k) {
      const int operation = random->Below(kOperations);
      int operands[3] = {};
      for (int j = 0; j < kArities[operation]; ++j) {
        operands[j] =
            constants > 0 && random->OneIn(3) ? vectors + random->Below(constants) : value;
      }
      draft.Add(operation, operands[0], operands[1], operands[2]);
      value = draft.Values() - 1;
    }
    draft.results.push_back(value);
  }
  return draft.Source();
}

// The table that the checker makes from a source.
CellTable TableOf(const CellSource& source) {
  constexpr edgernn::Extent kExtents[] = {edgernn::Extent::kHidden, edgernn::Extent::kInput,
                                          edgernn::Extent::kOne};
  CellTable table{};
  table.gates = static_cast<int>(source.gates.size());
  for (std::size_t g = 0; g < source.gates.size(); ++g) {
    table.terms[g] = static_cast<unsigned>(source.gates[g]);
  }
  table.params = static_cast<int>(source.vectors.size());
  for (std::size_t i = 0; i < source.vectors.size(); ++i) {
    table.extents[i] = kExtents[source.vectors[i]];
  }
  table.states = static_cast<int>(source.layout[0]);
  table.mid_is_input = source.layout[1] != 0;
  table.reads_last = source.layout[2] != 0;
  table.square = source.layout[3] != 0;
  table.mid_vanishes = source.layout[4] != 0;
  edgernn::CompleteTable(&table);
  return table;
}

}  // namespace

CellSource DrawCell(RandomGenerator* random) {
  CellSource cell;
  CellTable table;
  do {
    cell = {};
    cell.name = "drawn";
    const bool two_stages = random->OneIn(3);
    for (int g = random->Below(random->OneIn(4) ? edgernn::kMaxGates : 4); g >= 0; --g) {
      unsigned terms = static_cast<unsigned>(random->Below(64));
      if (!two_stages) terms &= edgernn::kX | edgernn::kH | edgernn::kC | edgernn::kBias;
      if ((terms & edgernn::kMid) != 0) terms &= ~(edgernn::kM | edgernn::kC);
      if (random->OneIn(2)) terms |= edgernn::kX;
      cell.gates.push_back(terms);
    }
    for (int i = random->Below(edgernn::kMaxParams + 1); i > 0; --i) {
      cell.vectors.push_back(random->Below(3));
    }
    cell.layout = {1 + random->Below(edgernn::kMaxStates), random->OneIn(4), random->OneIn(4),
                   random->OneIn(4), random->OneIn(4)};
    table = TableOf(cell);
  } while (edgernn::FindFault(table) != nullptr);
  cell.update = DrawProgram(random, edgernn::ArgumentsOf(table, false), table.states);
  if (table.has_mid) cell.mid = DrawProgram(random, edgernn::ArgumentsOf(table, true), 1);
  if (table.params > 0 && random->OneIn(2)) cell.map = DrawMap(random, table.params);
  return cell;
}

void MutateCell(RandomGenerator* random, CellSource* cell) {
  std::vector<std::vector<std::int64_t>*> lists;
  for (auto* const list : {&cell->gates, &cell->vectors, &cell->layout, &cell->update.ints,
                           &cell->update.ints, &cell->mid.ints, &cell->map.ints}) {
    if (!list->empty()) lists.push_back(list);
  }
  // in half of the cases, change a single operand of update
  const bool gently = random->OneIn(2);
  for (int i = gently ? 1 : 1 + random->Below(3); i > 0; --i) {
    std::vector<std::int64_t>& list = gently ? cell->update.ints : *random->Choose(lists);
    if (list.empty()) continue;
    std::int64_t& number = random->Choose(list);
    switch (gently ? 3 : random->Below(6)) {
      case 0:
        number = random->WildInt();
        break;
      case 1:
        number = number == std::numeric_limits<std::int32_t>::max() ? 0 : number + 1;
        break;
      case 2:
        number = number == std::numeric_limits<std::int32_t>::min() ? 0 : number - 1;
        break;
      case 3:
        number = random->Below(random->OneIn(4) ? edgernn::kMaxProgramValues : 8);
        break;
      case 4:
        list.erase(list.begin() + (&number - list.data()));
        break;
      default:
        list.insert(list.begin() + (&number - list.data()), random->WildInt());
    }
  }
  if (!gently && random->OneIn(8)) {
    std::vector<float>& numbers = cell->update.numbers;
    if (!numbers.empty() && random->OneIn(2)) {
      random->Choose(numbers) = std::numeric_limits<float>::infinity();
    } else {
      numbers.push_back(1);
    }
  }
}

}  // namespace edgernn_tests
