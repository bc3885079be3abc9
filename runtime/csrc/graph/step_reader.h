// SPDX-License-Identifier: Apache-2.0
// Reads the arguments of a graph's steps, which may be damaged or malicious, and checks them.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "kernel/step.h"

namespace edgernn {

// Largest size of a value, count of a loop and stride: products of two, times a batch, do not
// overflow 64 bits, and sums of a few neither.
constexpr std::int64_t kMost = std::int64_t{1} << 28;

inline std::string Range(std::int64_t least, std::int64_t most) {
  if (most < least) return "none";
  return std::to_string(least) + (most > least ? " to " + std::to_string(most) : "");
}

// A value and an offset in it.
struct Operand {
  std::int64_t value;
  std::int64_t offset;
};

// A loop over an operand.
struct Stride {
  std::int64_t count;
  std::int64_t stride;
};
// Functions return false, and set the error, for an invalid argument.
class StepReader {
 protected:
  StepReader(const GraphSource& source, std::string* error) : source_(source), error_(*error) {}

  // Sets the error and returns false.
  [[gnu::noinline, gnu::cold]] bool Refuse(const char* name, const std::string& expected,
                                           const std::string& got) {
    error_ = step_ + ": " + name + ": expected " + expected + ", got " + got;
    return false;
  }

  [[gnu::noinline, gnu::cold]] bool Refuse(const char* name, const char* expected,
                                           std::int64_t got) {
    return Refuse(name, expected, std::to_string(got));
  }

  [[gnu::noinline, gnu::cold]] bool RefuseRange(const char* name, std::int64_t least,
                                                std::int64_t most, std::int64_t got) {
    return Refuse(name, Range(least, most), std::to_string(got));
  }

  // Reads the next argument.
  bool Read(const char* name, std::int64_t least, std::int64_t most, std::int64_t* to) {
    if (at_ == end_) return Refuse(name, "a number", "no more arguments");
    *to = *at_++;
    return (*to >= least && *to <= most) || RefuseRange(name, least, most, *to);
  }

  bool ReadCount(const char* name, std::int64_t* to) { return Read(name, 1, kMost, to); }
  bool ReadStride(const char* name, std::int64_t* to) { return Read(name, -kMost, kMost, to); }

  bool ReadOperand(const char* name, Operand* to) {
    const auto values = static_cast<std::int64_t>(source_.values.size());
    return Read(name, 0, values - 1, &to->value) && Read("offset", 0, kMost, &to->offset);
  }

  // Reads the place of results, which is no constant and no input.
  bool ReadResult(const char* name, Operand* to) {
    if (!ReadOperand(name, to)) return false;
    const ValueKind kind{ValueOf(*to).kind};
    return (kind != ValueKind::kConstant && kind != ValueKind::kInput) ||
           Refuse(name, "a value that steps may write", "a constant or an input");
  }

  // Reads the place of a layer's output, or -1 for none.
  bool ReadOutput(Operand* to) {
    if (at_ == end_ || *at_ != -1) return ReadResult("to", to);
    ++at_;
    to->value = -1;
    return Read("offset", 0, 0, &to->offset);
  }

  // Reads the index of a tensor with this number of axes.
  bool ReadTensor(const char* name, std::size_t axes, const Tensor** to) {
    std::int64_t index;
    if (!Read(name, 0, static_cast<std::int64_t>(source_.tensors.size()) - 1, &index)) return false;
    *to = &source_.tensors[static_cast<std::size_t>(index)];
    return (*to)->shape.size() == axes ||
           Refuse(name, std::to_string(axes) + " axes", Print((*to)->shape));
  }

  // Reads the index of a vector of this size, or -1 for none, for which *to becomes null.
  bool ReadOptionalVector(const char* name, std::int64_t size, const Tensor** to) {
    *to = nullptr;
    if (at_ != end_ && *at_ == -1) {
      ++at_;
      return true;
    }
    return ReadTensor(name, 1, to) &&
           ((*to)->shape[0] == size || Refuse(name, Print(Shape{size}), Print((*to)->shape)));
  }

  // Reads two loops over rows, after a loop over streams.
  bool ReadRows(const Operand& from, const Operand& to, std::vector<CopyLoop>* loops) {
    *loops = {Streams(from, to)};
    for (int i = 0; i < 2; ++i) {
      CopyLoop loop;
      if (!ReadCount("rows", &loop.count) || !ReadStride("stride of from", &loop.from) ||
          !ReadStride("stride of to", &loop.to)) {
        return false;
      }
      loops->push_back(loop);
    }
    return true;
  }

  const GraphValue& ValueOf(const Operand& operand) const {
    return source_.values[static_cast<std::size_t>(operand.value)];
  }

  // The stride from stream to stream.
  std::int64_t StreamStride(const Operand& operand) const {
    const GraphValue& value = ValueOf(operand);
    switch (ValueKind{value.kind}) {
      case ValueKind::kConstant:
        return 0;
      case ValueKind::kInput:
        return source_.input;
      case ValueKind::kOutput:
        return source_.output;
      default:
        return value.size;
    }
  }

  CopyLoop Streams(const Operand& from, const Operand& to) const {
    return {batch_, StreamStride(from), StreamStride(to)};
  }

  // Fails if an operand of a stream reaches beyond its value. Strides are those of a stream.
  bool CheckRange(const char* name, const Operand& operand, const std::vector<Stride>& loops) {
    std::int64_t first = operand.offset, last = operand.offset;
    for (const Stride& loop : loops) {
      std::int64_t& end = loop.stride < 0 ? first : last;
      end += (loop.count - 1) * loop.stride;
    }
    const std::int64_t size = ValueOf(operand).size;
    return (first >= 0 && last < size) || Refuse(name,
                                                 "numbers 0 to " + std::to_string(size - 1) +
                                                     " of value " + std::to_string(operand.value),
                                                 Range(first, last));
  }

  // CheckRange for results, of which there are at most as many as numbers in the value.
  bool CheckResult(const char* name, const Operand& operand, const std::vector<Stride>& loops) {
    const std::int64_t size = ValueOf(operand).size;
    std::int64_t count = 1;
    for (const Stride& loop : loops) {
      // does not overflow, as both are at most kMost
      count *= loop.count;
      if (count > size) return RefuseRange("results", 1, size, count);
    }
    return CheckRange(name, operand, loops);
  }

  // Checks the rows of a step that reads `read` after each of `reads` and writes `outputs` numbers.
  bool CheckRows(const Operand& from, const Operand& to, const std::vector<CopyLoop>& loops,
                 std::int64_t least, std::int64_t most, std::int64_t outputs) {
    std::vector<Stride> reads, writes{{outputs, 1}};
    for (std::size_t i = 1; i < loops.size(); ++i) {
      reads.push_back({loops[i].count, loops[i].from});
      writes.push_back({loops[i].count, loops[i].to});
    }
    const Operand first{from.value, from.offset + least}, last{from.value, from.offset + most};
    return CheckRange("from", first, reads) && CheckRange("from", last, reads) &&
           CheckResult("to", to, writes);
  }

  bool Fail(const std::string& message) {
    error_ = step_ + ": " + message;
    return false;
  }

  const GraphSource& source_;
  std::string& error_;
  std::string step_;                  // name of the step that is read, for messages
  const std::int32_t* at_ = nullptr;  // its next argument
  const std::int32_t* end_ = nullptr;
  std::int64_t batch_ = 0;  // streams of a group
};

}  // namespace edgernn
