// SPDX-License-Identifier: Apache-2.0
// Checks a program, which may be damaged or malicious, and allocates registers to its values.

#include "program/check_program.h"

#include <cmath>
#include <cstddef>

#include "common/tensor.h"

namespace edgernn {

namespace {

// Indexed by the codes of ops.
constexpr int kArities[] = {
#define EDGERNN_ARITY(name, code, arity) arity,
    EDGERNN_PROGRAM_OPS(EDGERNN_ARITY)
#undef EDGERNN_ARITY
};
constexpr int kOperations = sizeof kArities / sizeof *kArities;
static_assert(static_cast<int>(Operation::copy) == kOperations, "codes are 0, 1, 2, ...");

class Checker {
 public:
  Checker(const std::string& name, const ProgramSource& source, const ProgramLimits& limits)
      : name_(name), source_(source) {
    if (source.ints.size() < kCounts) Refuse("four counts", source.ints.size());
    const char* const parts[kCounts] = {"arguments", "constants", "instructions", "results"};
    const std::int64_t most[kCounts] = {kMaxProgramArguments, limits.values, limits.values,
                                        limits.results};
    for (std::size_t i = 0; i < kCounts; ++i) {
      if (source.ints[i] >= 0 && source.ints[i] <= most[i]) continue;
      Refuse("0 to " + std::to_string(most[i]) + " " + parts[i], source.ints[i]);
    }
    if (Count(3) != limits.results) Refuse(std::to_string(limits.results) + " results", Count(3));
    first_ = Count(0) + Count(1);
    values_ = first_ + Count(2);
    if (values_ > limits.values)
      Refuse("at most " + std::to_string(limits.values) + " values", values_);
    const std::size_t ints = kCounts + Count(0) + 4 * Count(2) + Count(3);
    if (source.ints.size() != ints) Refuse(std::to_string(ints) + " ints", source.ints.size());
    if (static_cast<int>(source.numbers.size()) != Count(1)) {
      Refuse(std::to_string(Count(1)) + " constants", source.numbers.size());
    }
  }

  ProgramCode Check(const FindArgument& find) {
    ReadArguments(find);
    for (const float number : source_.numbers) {
      if (!std::isfinite(number)) Refuse("finite constants", number);
    }
    code_.constants = source_.numbers;
    ReadInstructions();
    Assign();
    return code_;
  }

 private:
  static constexpr std::size_t kCounts = 4;

  template <class Number>
  [[noreturn]] void Refuse(const std::string& expected, Number got) const {
    throw InvalidArgument(name_ + ": expected " + expected + ", got " + std::to_string(got));
  }

  int Count(std::size_t i) const { return static_cast<int>(source_.ints[i]); }

  void ReadArguments(const FindArgument& find) {
    const std::int64_t* const from = source_.ints.data() + kCounts;
    for (int i = 0; i < Count(0); ++i) {
      const std::int64_t number = from[i];
      for (int j = 0; j < i; ++j) {
        if (from[j] == number) Refuse("distinct arguments", number);
      }
      int index = -1;
      if (number >= 0 && number < kArgumentKinds * kArgumentIndices) {
        index = find(static_cast<ArgumentKind>(number / kArgumentIndices),
                     static_cast<int>(number % kArgumentIndices));
      }
      if (index < 0) Refuse("arguments that this stage of the cell has", number);
      code_.arguments.push_back(
          {static_cast<ArgumentKind>(number / kArgumentIndices), static_cast<std::uint8_t>(index)});
    }
  }

  // Checks the number of a value, which must be below `end`.
  int Value(std::int64_t number, int end) const {
    if (number < 0 || number >= end) {
      Refuse("numbers of values below " + std::to_string(end), number);
    }
    return static_cast<int>(number);
  }

  // Reads instructions and results. Operands are numbers of values until Assign.
  void ReadInstructions() {
    for (int i = 0; i < Count(0); ++i) depends_.push_back(1u << i);
    depends_.resize(static_cast<std::size_t>(first_));
    const std::int64_t* from = source_.ints.data() + kCounts + Count(0);
    for (int i = 0; i < Count(2); ++i, from += 4) {
      if (from[0] < 0 || from[0] >= kOperations) {
        Refuse("codes of ops below " + std::to_string(kOperations), from[0]);
      }
      Instruction instruction{static_cast<Operation>(from[0]), {}, 0};
      std::uint32_t depends = 0;
      for (int k = 0; k < 3; ++k) {
        if (k >= kArities[from[0]]) {
          if (from[1 + k] != 0) Refuse("0 for an operand that an op lacks", from[1 + k]);
          continue;
        }
        const int operand = Value(from[1 + k], first_ + i);
        instruction.operands[k] = static_cast<std::uint16_t>(operand);
        depends |= depends_[static_cast<std::size_t>(operand)];
      }
      depends_.push_back(depends);
      code_.instructions.push_back(instruction);
    }
    for (int i = 0; i < Count(3); ++i) {
      const int value = Value(from[i], values_);
      results_.push_back(value);
      code_.depends.push_back(depends_[static_cast<std::size_t>(value)]);
    }
  }

  // Allocates a register to each value, for the instructions from its definition to its last use.
  // Each result has its own register, so that results may be stored over the arguments.
  void Assign() {
    for (int& value : results_) {
      if (value >= first_) continue;
      code_.instructions.push_back({Operation::copy, {static_cast<std::uint16_t>(value)}, 0});
      value = first_ + static_cast<int>(code_.instructions.size()) - 1;
    }
    const int count = static_cast<int>(code_.instructions.size());
    // the last instruction that reads each value
    std::vector<int> last(static_cast<std::size_t>(first_ + count), -1);
    const auto arity = [](const Instruction& instruction) {
      return instruction.operation == Operation::copy
                 ? 1
                 : kArities[static_cast<int>(instruction.operation)];
    };
    for (int i = 0; i < count; ++i) {
      const Instruction& instruction = code_.instructions[static_cast<std::size_t>(i)];
      for (int k = 0; k < arity(instruction); ++k) last[instruction.operands[k]] = i;
    }
    for (const int value : results_) last[static_cast<std::size_t>(value)] = count;
    std::vector<int> places(last.size());
    for (int value = 0; value < first_; ++value) places[static_cast<std::size_t>(value)] = value;
    std::vector<int> unused;
    for (int i = 0; i < count; ++i) {
      Instruction& instruction = code_.instructions[static_cast<std::size_t>(i)];
      for (int k = 0; k < arity(instruction); ++k) {
        const std::uint16_t value = instruction.operands[k];
        instruction.operands[k] = static_cast<std::uint16_t>(places[value]);
        if (value < first_ || last[value] != i) continue;
        unused.push_back(places[value]);
        // a value may be two operands of an instruction
        last[value] = -1;
      }
      if (unused.empty()) unused.push_back(first_ + code_.registers++);
      const int place = unused.back();
      unused.pop_back();
      instruction.to = static_cast<std::uint16_t>(place);
      const std::size_t value = static_cast<std::size_t>(first_ + i);
      places[value] = place;
      if (last[value] < i) unused.push_back(place);
    }
    const int live = Count(1) + code_.registers;
    if (live > kMaxLiveValues) {
      Refuse("at most " + std::to_string(kMaxLiveValues) + " constants and values at a time", live);
    }
    for (const int value : results_) {
      code_.results.push_back(static_cast<std::uint16_t>(places[static_cast<std::size_t>(value)]));
    }
  }

  const std::string& name_;
  const ProgramSource& source_;
  int first_;   // number of the first instruction's value
  int values_;  // number of values
  std::vector<std::uint32_t> depends_;
  std::vector<int> results_;
  ProgramCode code_;
};

}  // namespace

Program ProgramCode::View() const {
  return {static_cast<int>(arguments.size()),
          static_cast<int>(constants.size()),
          static_cast<int>(instructions.size()),
          static_cast<int>(results.size()),
          registers,
          arguments.data(),
          constants.data(),
          instructions.data(),
          results.data()};
}

ProgramCode CheckProgram(const std::string& name, const ProgramSource& source,
                         const ProgramLimits& limits, const FindArgument& find) {
  return Checker(name, source, limits).Check(find);
}

}  // namespace edgernn
