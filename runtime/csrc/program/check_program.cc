// SPDX-License-Identifier: Apache-2.0
// Checks a program, which may be damaged or malicious, fuses its instructions and allocates
// registers to its values.

#include "program/check_program.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace edgernn {

namespace {

// Indexed by operations.
constexpr int kArities[] = {
#define EDGERNN_ARITY(name, code, arity) arity,
    EDGERNN_PROGRAM_OPS(EDGERNN_ARITY) EDGERNN_FUSED_OPS(EDGERNN_ARITY)
#undef EDGERNN_ARITY
};
constexpr int kOperations = static_cast<int>(Operation::copy);
#define EDGERNN_CHECK(name, code, arity) \
  static_assert(static_cast<int>(Operation::name) == code, "codes are 0, 1, 2, ...");
EDGERNN_PROGRAM_OPS(EDGERNN_CHECK)
#undef EDGERNN_CHECK

// `fused` computes `reader` and its operand `from`, whose operands take that operand's place.
struct Fusion {
  Operation reader;
  int operand;
  bool commutes;  // operands 0 and 1 of the reader may be exchanged
  Operation from;
  Operation fused;
};

constexpr Fusion kFusions[] = {
    {Operation::add, 0, true, Operation::mul, Operation::mul_add},
    {Operation::mul, 0, true, Operation::sigmoid, Operation::sigmoid_mul},
    {Operation::sigmoid_mul, 1, false, Operation::tanh, Operation::sigmoid_mul_tanh},
    {Operation::mul_add, 0, true, Operation::sigmoid, Operation::sigmoid_mul_add},
    {Operation::mul_add, 1, true, Operation::tanh, Operation::mul_tanh_add},
    {Operation::sigmoid_mul_add, 1, false, Operation::tanh, Operation::sigmoid_mul_tanh_add},
    {Operation::sigmoid_mul_add, 2, false, Operation::sigmoid_mul,
     Operation::sigmoid_mul_add_sigmoid_mul},
    {Operation::sigmoid_mul_tanh_add, 2, false, Operation::sigmoid_mul,
     Operation::sigmoid_mul_tanh_add_sigmoid_mul},
    {Operation::lerp, 2, false, Operation::sigmoid, Operation::lerp_sigmoid},
    {Operation::lerp_sigmoid, 0, false, Operation::tanh, Operation::tanh_lerp_sigmoid},
    {Operation::lerp_sigmoid, 1, false, Operation::tanh, Operation::lerp_tanh_sigmoid},
};

}  // namespace

int ArityOf(const Instruction& instruction) {
  return kArities[static_cast<int>(instruction.operation)];
}

namespace {

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
    for (const float number : source_.numbers) {
      code_.constants.insert(code_.constants.end(), kConstantCopies, number);
    }
    if (!ReadInstructions()) return false;
    for (const Fusion& fusion : kFusions) Fuse(fusion);
    return Assign();
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
      Instruction instruction{static_cast<Operation>(from[0]), {}, {}, 0};
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

  // How often each value is read, by instructions and as a result.
  std::vector<int> CountUses() const {
    std::vector<int> uses(static_cast<std::size_t>(values_));
    for (const Instruction& instruction : code_.instructions) {
      for (int k = 0; k < ArityOf(instruction); ++k) ++uses[instruction.operands[k]];
    }
    for (const int value : results_) ++uses[static_cast<std::size_t>(value)];
    return uses;
  }

  // True if an instruction can compute its operand k too, which nothing else reads.
  bool CanFuse(const Fusion& fusion, const Instruction& reader, int k,
               const std::vector<int>& uses) const {
    const std::uint16_t value = reader.operands[k];
    return value >= first_ && uses[value] == 1 && InstructionOf(value).operation == fusion.from;
  }

  void Fuse(const Fusion& fusion) {
    const std::vector<int> uses = CountUses();
    for (Instruction& reader : code_.instructions) {
      const int k = fusion.operand;
      if (reader.operation != fusion.reader) continue;
      if (fusion.commutes && CanFuse(fusion, reader, 1 - k, uses)) {
        std::swap(reader.operands[0], reader.operands[1]);
      } else if (!CanFuse(fusion, reader, k, uses)) {
        continue;
      }
      const Instruction& from = InstructionOf(reader.operands[k]);
      reader.operation = fusion.fused;
      if (fusion.from == Operation::mul) reader.operands[2] = reader.operands[1];
      for (int i = 0; i < ArityOf(from); ++i) reader.operands[k + i] = from.operands[i];
    }
    DropUnused();
  }

  const Instruction& InstructionOf(std::uint16_t value) const {
    return code_.instructions[static_cast<std::size_t>(value - first_)];
  }

  // Drops the instructions whose values are not read, from the last on.
  void DropUnused() {
    std::vector<int> uses = CountUses();
    for (std::size_t i = code_.instructions.size(); i-- > 0;) {
      if (uses[static_cast<std::size_t>(first_) + i] > 0) continue;
      const Instruction& instruction = code_.instructions[i];
      for (int k = 0; k < ArityOf(instruction); ++k) --uses[instruction.operands[k]];
    }
    std::vector<int> numbers(uses.size());
    for (int value = 0; value < first_; ++value) numbers[static_cast<std::size_t>(value)] = value;
    std::vector<Instruction> kept;
    for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
      const std::size_t value = static_cast<std::size_t>(first_) + i;
      if (uses[value] == 0) continue;
      Instruction instruction = code_.instructions[i];
      for (int k = 0; k < ArityOf(instruction); ++k) {
        instruction.operands[k] = static_cast<std::uint16_t>(numbers[instruction.operands[k]]);
      }
      numbers[value] = first_ + static_cast<int>(kept.size());
      kept.push_back(instruction);
    }
    for (int& value : results_) value = numbers[static_cast<std::size_t>(value)];
    code_.instructions = std::move(kept);
    values_ = first_ + static_cast<int>(code_.instructions.size());
  }

  int AddCopy(int value) {
    code_.instructions.push_back({Operation::copy, {}, {static_cast<std::uint16_t>(value)}, 0});
    return values_++;
  }

  // The last instruction that reads each value.
  std::vector<int> FindLastReaders() const {
    std::vector<int> last(static_cast<std::size_t>(values_), -1);
    for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
      const Instruction& instruction = code_.instructions[i];
      for (int k = 0; k < ArityOf(instruction); ++k) {
        last[instruction.operands[k]] = static_cast<int>(i);
      }
    }
    return last;
  }

  // Makes each result the value of an instruction of its own, after which no instruction reads the
  // state of the same index, or columns, so that results may be stored over these.
  void SeparateResults() {
    for (auto result = results_.begin(); result != results_.end(); ++result) {
      const bool again = std::find(results_.begin(), result, *result) != result;
      if (*result < first_ || again) *result = AddCopy(*result);
    }
    const std::vector<int> last = FindLastReaders();
    for (std::size_t i = 0; i < code_.arguments.size(); ++i) {
      const ProgramArgument& argument = code_.arguments[i];
      for (std::size_t r = 0; r < results_.size(); ++r) {
        const bool may_share = argument.kind == ArgumentKind::kColumns ||
                               (argument.kind == ArgumentKind::kState && argument.index == r);
        if (may_share && last[i] > results_[r] - first_) results_[r] = AddCopy(results_[r]);
      }
    }
  }

  std::uint8_t StepOf(std::uint16_t value) const {
    if (value >= first_) return kLaneStep;
    if (value >= code_.arguments.size()) return kNumberStep;
    const ProgramArgument& argument = code_.arguments[value];
    if (argument.kind == ArgumentKind::kGate) return kGateStep;
    if (argument.kind == ArgumentKind::kRow) return kNumberStep;
    if (argument.kind != ArgumentKind::kVector) return kLaneStep;
    return static_cast<std::uint8_t>(kVectorSteps + argument.index);
  }

  // Assigns a place to each value: to a result its own, to others a register for the instructions
  // from its definition to its last use.
  bool Assign() {
    SeparateResults();
    const std::vector<int> last = FindLastReaders();
    std::vector<int> places(last.size(), -1);
    int end = 0;
    for (const ProgramArgument& argument : code_.arguments) {
      places[static_cast<std::size_t>(end++)] = argument.Place();
    }
    for (int i = 0; i < Count(1); ++i) {
      places[static_cast<std::size_t>(end++)] = kFirstConstant + i;
    }
    int place = kFirstResult;
    for (const int value : results_) places[static_cast<std::size_t>(value)] = place++;
    code_.results = static_cast<int>(results_.size());
    const int first_register = kFirstConstant + Count(1);
    std::vector<int> unused;
    for (int i = 0; i < values_ - first_; ++i) {
      Instruction& instruction = code_.instructions[static_cast<std::size_t>(i)];
      for (int k = 0; k < ArityOf(instruction); ++k) {
        const std::uint16_t value = instruction.operands[k];
        const int place = places[value];
        instruction.steps[k] = StepOf(value);
        instruction.operands[k] = static_cast<std::uint16_t>(place);
        // a value may be several operands of an instruction
        const bool listed = std::find(unused.begin(), unused.end(), place) != unused.end();
        if (place >= first_register && last[value] == i && !listed) unused.push_back(place);
      }
      int& place = places[static_cast<std::size_t>(first_ + i)];
      if (place < 0) {
        if (unused.empty()) unused.push_back(first_register + code_.registers++);
        place = unused.back();
        unused.pop_back();
      }
      instruction.to = static_cast<std::uint16_t>(place);
    }
    const int live = code_.results + code_.registers;
    if (live <= kMaxLiveValues) return true;
    return Refuse("at most " + std::to_string(kMaxLiveValues) + " constants and values at a time",
                  live);
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

template <class Number>
const Number* CopyArray(const Number* from, std::int64_t count, Arena* arena) {
  Number* const to = arena->Allocate<Number>(count);
  if (to != nullptr) std::copy(from, from + count, to);
  return to;
}

}  // namespace

Program ProgramCode::View() const {
  Program program{};
  program.arguments = static_cast<std::int64_t>(arguments.size());
  program.constants = static_cast<std::int64_t>(constants.size()) / kConstantCopies;
  program.instructions = static_cast<std::int64_t>(instructions.size());
  program.results = results;
  program.registers = registers;
  program.block = std::min(kProgramBlock, kMaxLiveValues / std::max(1, results + registers));
  for (const ProgramArgument& argument : arguments) {
    std::int64_t& count = program.counts[static_cast<int>(argument.kind)];
    count = std::max(count, std::int64_t{argument.index} + 1);
  }
  program.argument = arguments.data();
  program.constant = constants.data();
  program.instruction = instructions.data();
  return program;
}

Program CopyProgram(Program program, Arena* arena) {
  program.argument = CopyArray(program.argument, program.arguments, arena);
  program.constant = CopyArray(program.constant, program.constants * kConstantCopies, arena);
  program.instruction = CopyArray(program.instruction, program.instructions, arena);
  return program;
}

bool CheckProgram(const std::string& name, const ProgramSource& source, const ProgramLimits& limits,
                  const FindArgument& find, ProgramCode* code, std::string* error) {
  *code = {};
  return Checker(name, source, code, error).Check(limits, find);
}

}  // namespace edgernn
