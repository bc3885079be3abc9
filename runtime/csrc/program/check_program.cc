// SPDX-License-Identifier: Apache-2.0
// Checks a program, which may be damaged or malicious, and allocates registers to its values.

#include "program/check_program.h"

#include <cmath>
#include <cstddef>

namespace edgernn {

namespace {

// Indexed by operation codes.
constexpr int kArities[] = {
#define EDGERNN_ARITY(name, code, arity) arity,
    EDGERNN_PROGRAM_OPS(EDGERNN_ARITY)
#undef EDGERNN_ARITY
};
constexpr int kOperations = sizeof kArities / sizeof *kArities;
static_assert(static_cast<int>(Operation::copy) == kOperations, "codes are 0, 1, 2, ...");

class Checker {
 public:
  Checker(const std::string& name, const ProgramSource& source, ProgramCode* code,
          std::string* error)
      : name_(name), source_(source), code_(*code), error_(*error) {}

  bool Check(const ProgramLimits& limits, const FindArgument& find) {
    if (!CheckCounts(limits) || !ReadArguments(find)) return false;
    for (const float number : source_.numbers) {
      if (!std::isfinite(number)) return Refuse("finite constants", Print(number));
    }
    code_.constants = source_.numbers;
    return ReadInstructions() && Assign();
  }

 private:
  static constexpr std::size_t kCounts = 4;

  // Sets the error and returns false.
  bool Refuse(const std::string& expected, const std::string& got) {
    error_ = name_ + ": expected " + expected + ", got " + got;
    return false;
  }

  bool Refuse(const std::string& expected, std::int64_t got) {
    return Refuse(expected, std::to_string(got));
  }

  // A number that is not finite.
  static std::string Print(float number) {
    return std::isnan(number) ? "nan" : number > 0.0f ? "inf" : "-inf";
  }

  int Count(std::size_t i) const { return static_cast<int>(source_.ints[i]); }

  bool CheckCounts(const ProgramLimits& limits) {
    const auto ints = static_cast<std::int64_t>(source_.ints.size());
    if (source_.ints.size() < kCounts) return Refuse("four counts", ints);
    const char* const parts[kCounts] = {"arguments", "constants", "instructions", "results"};
    const std::int64_t most[kCounts] = {kMaxProgramArguments, limits.values, limits.values,
                                        limits.results};
    for (std::size_t i = 0; i < kCounts; ++i) {
      const std::int64_t count = source_.ints[i];
      if (count >= 0 && count <= most[i]) continue;
      return Refuse("0 to " + std::to_string(most[i]) + " " + parts[i], count);
    }
    if (Count(3) != limits.results) {
      return Refuse(std::to_string(limits.results) + " results", Count(3));
    }
    first_ = Count(0) + Count(1);
    values_ = first_ + Count(2);
    if (values_ > limits.values) {
      return Refuse("at most " + std::to_string(limits.values) + " values", values_);
    }
    const std::int64_t expected = std::int64_t{kCounts} + Count(0) + 4 * Count(2) + Count(3);
    if (ints != expected) return Refuse(std::to_string(expected) + " ints", ints);
    const auto numbers = static_cast<std::int64_t>(source_.numbers.size());
    if (numbers != Count(1)) return Refuse(std::to_string(Count(1)) + " constants", numbers);
    return true;
  }

  bool ReadArguments(const FindArgument& find) {
    const std::int64_t* const from = source_.ints.data() + kCounts;
    for (int i = 0; i < Count(0); ++i) {
      const std::int64_t number = from[i];
      for (int j = 0; j < i; ++j) {
        if (from[j] == number) return Refuse("distinct arguments", number);
      }
      int index = -1;
      if (number >= 0 && number < kArgumentKinds * kArgumentIndices) {
        index = find(static_cast<ArgumentKind>(number / kArgumentIndices),
                     static_cast<int>(number % kArgumentIndices));
      }
      if (index < 0) return Refuse("arguments that this stage of the cell has", number);
      code_.arguments.push_back(
          {static_cast<ArgumentKind>(number / kArgumentIndices), static_cast<std::uint8_t>(index)});
    }
    return true;
  }

  // Checks the number of a value, which must be below `end`.
  bool CheckValue(std::int64_t number, int end) {
    if (number >= 0 && number < end) return true;
    return Refuse("numbers of values below " + std::to_string(end), number);
  }

  // Reads instructions and results. Operands are numbers of values until Assign.
  bool ReadInstructions() {
    for (int i = 0; i < Count(0); ++i) depends_.push_back(1u << i);
    depends_.resize(static_cast<std::size_t>(first_));
    const std::int64_t* from = source_.ints.data() + kCounts + Count(0);
    for (int i = 0; i < Count(2); ++i, from += 4) {
      if (from[0] < 0 || from[0] >= kOperations) {
        return Refuse("operation codes below " + std::to_string(kOperations), from[0]);
      }
      Instruction instruction{static_cast<Operation>(from[0]), {}, 0};
      std::uint32_t depends = 0;
      for (int k = 0; k < 3; ++k) {
        if (k >= kArities[from[0]]) {
          if (from[1 + k] == 0) continue;
          return Refuse("0 for an operand that an op lacks", from[1 + k]);
        }
        if (!CheckValue(from[1 + k], first_ + i)) return false;
        const int operand = static_cast<int>(from[1 + k]);
        instruction.operands[k] = static_cast<std::uint16_t>(operand);
        depends |= depends_[static_cast<std::size_t>(operand)];
      }
      depends_.push_back(depends);
      code_.instructions.push_back(instruction);
    }
    for (int i = 0; i < Count(3); ++i) {
      if (!CheckValue(from[i], values_)) return false;
      const int value = static_cast<int>(from[i]);
      results_.push_back(value);
      code_.depends.push_back(depends_[static_cast<std::size_t>(value)]);
    }
    return true;
  }

  // Allocates a register to each value, for the instructions from its definition to its last use.
  // Each result has its own register, so that results may be stored over the arguments.
  bool Assign() {
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
      return Refuse("at most " + std::to_string(kMaxLiveValues) + " constants and values at a time",
                    live);
    }
    for (const int value : results_) {
      code_.results.push_back(static_cast<std::uint16_t>(places[static_cast<std::size_t>(value)]));
    }
    return true;
  }

  const std::string& name_;
  const ProgramSource& source_;
  ProgramCode& code_;
  std::string& error_;
  int first_ = 0;   // number of the first instruction's value
  int values_ = 0;  // number of values
  std::vector<std::uint32_t> depends_;
  std::vector<int> results_;
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

bool CheckProgram(const std::string& name, const ProgramSource& source, const ProgramLimits& limits,
                  const FindArgument& find, ProgramCode* code, std::string* error) {
  *code = {};
  return Checker(name, source, code, error).Check(limits, find);
}

}  // namespace edgernn
