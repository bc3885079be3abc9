// SPDX-License-Identifier: Apache-2.0
// Streams sequences through a model exported by edgernn:
//
//   stream model.onnx [libedgernn_ops.so] < x.csv > y.csv
//
// Each line of I numbers, which may be in quotes, is a step, for which the program prints a line
// with the model's output. An empty line ends a sequence. A first line without any number is a
// header: if the model knows the names of its channels, the columns are read in their order, by
// name. At the end, the program prints the time per step, over the last 100,000 steps, on
// standard error.

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "stream.h"

namespace {

// The measured times of the last steps.
struct Times {
  static constexpr std::size_t kKept = 100'000;

  void Append(double time) {
    if (microseconds.size() < kKept) microseconds.resize(microseconds.size() + 1);
    microseconds[count++ % kKept] = time;
  }

  std::vector<double> microseconds;  // a ring buffer: step t is at t % kKept
  std::size_t count = 0;             // number of all steps
};

// Returns the text between the first and the last character that is no space.
std::string Trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Splits a line at the commas that are not in quotes, and removes quotes around a cell.
std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  for (std::string& cell : cells) {
    cell = Trimmed(cell);
    if (cell.size() > 1 && cell.front() == '"' && cell.find('"', 1) == cell.size() - 1) {
      cell = Trimmed(cell.substr(1, cell.size() - 2));
    }
  }
  return cells;
}

// Reads a number, also nan and inf, but not the hexadecimal ones of C++. Returns false if the cell
// has anything else.
bool ParseNumber(const std::string& cell, float* number) {
  char* end = nullptr;
  *number = std::strtof(cell.c_str(), &end);
  return !cell.empty() && *end == '\0' && cell.find_first_of("xX(") == std::string::npos;
}

// Returns true if a cell has digits and no letters, such as one with another minus sign or with #.
bool IsDamaged(const std::string& cell) {
  const auto is = [](int (*kind)(int)) { return [kind](unsigned char c) { return kind(c) != 0; }; };
  return std::any_of(cell.begin(), cell.end(), is(std::isdigit)) &&
         std::none_of(cell.begin(), cell.end(), is(std::isalpha));
}

// Returns true if a line has a cell that is not empty, and no cell that is or was a number.
bool IsHeader(const std::string& line) {
  bool has_text = false;
  float number = 0;
  for (const std::string& cell : Cells(line)) {
    if (ParseNumber(cell, &number) || IsDamaged(cell)) return false;
    has_text |= !cell.empty();
  }
  return has_text;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// Finds the channel of each column by the names in a header, if the model knows names.
void ReadHeader(const std::string& header, const std::vector<std::string>& channels,
                std::vector<std::size_t>* places) {
  std::vector<std::string> columns = Cells(header);
  if (channels.empty()) {
    if (columns.size() == places->size()) return;
    throw std::runtime_error("line 1: expected a header of " + std::to_string(places->size()) +
                             " columns, got " + header + "; correct the header");
  }
  // numpy.savetxt marks a header with #
  columns[0].erase(0, columns[0].find_first_not_of("# "));
  if (!std::is_permutation(columns.begin(), columns.end(), channels.begin(), channels.end()) ||
      std::set<std::string>(columns.begin(), columns.end()).size() != places->size()) {
    throw std::runtime_error("line 1: expected the columns " + Joined(channels) +
                             " of the training, got " + Joined(columns) + "; correct the header");
  }
  for (std::size_t i = 0; i < places->size(); ++i) {
    const auto channel = std::find(channels.begin(), channels.end(), columns[i]);
    (*places)[i] = static_cast<std::size_t>(channel - channels.begin());
  }
}

// Reads finite numbers separated by commas, that of column i to number places[i] of x. `number` is
// that of the line.
std::vector<float> ParseLine(const std::string& line, std::size_t number,
                             const std::vector<std::size_t>& places) {
  const std::size_t count = places.size();
  const std::vector<std::string> cells = Cells(line);
  const std::string where = "line " + std::to_string(number);
  if (cells.size() != count) {
    throw std::runtime_error(where + ": expected " + std::to_string(count) +
                             " finite numbers, got " + line);
  }
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    float& value = numbers[places[i]];
    if (!ParseNumber(cells[i], &value) || !std::isfinite(value)) {
      throw std::runtime_error(where + ", column " + std::to_string(i + 1) +
                               ": expected a finite number, got '" + cells[i] + "'");
    }
  }
  return numbers;
}

void Print(const std::vector<float>& y) {
  for (std::size_t i = 0; i < y.size(); ++i) std::printf("%s%.9g", i == 0 ? "" : ",", y[i]);
  std::printf("\n");
}

void Summarise(const Times& times, std::int64_t updates) {
  if (times.count == 0) return;
  std::vector<double> sorted = times.microseconds;
  std::sort(sorted.begin(), sorted.end());
  std::fprintf(stderr, "%zu steps: median %.2f us per step, 90th percentile %.2f us", times.count,
               sorted[sorted.size() / 2], sorted[sorted.size() * 9 / 10]);
  if (updates >= 0) {
    std::fprintf(stderr, ", %.1f updates per step",
                 static_cast<double>(updates) / static_cast<double>(times.count));
  }
  std::fprintf(stderr, "\n");
}

void Run(const std::string& model, const std::string& library) {
  using Clock = std::chrono::steady_clock;
  edgernn::Stream stream(model, library);
  std::vector<std::size_t> places(stream.input_size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  Times times;
  std::int64_t updates = 0;
  std::string line;
  // reading std::cin flushes the output, so a reader gets each y before it sends the next x
  for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
    if (number == 1 && line.compare(0, 3, "\xef\xbb\xbf") == 0) line.erase(0, 3);
    if (Trimmed(line).empty()) {
      stream.Reset();
      continue;
    }
    if (number == 1 && IsHeader(line)) {
      ReadHeader(line, stream.channels(), &places);
      continue;
    }
    const std::vector<float> x = ParseLine(line, number, places);
    const Clock::time_point start = Clock::now();
    const std::vector<float>& y = stream.Step(x);
    times.Append(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    updates += stream.updates();
    Print(y);
  }
  Summarise(times, stream.updates() < 0 ? -1 : updates);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: stream model.onnx [libedgernn_ops.so] < x.csv > y.csv\n");
    return 2;
  }
  try {
    Run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stream: %s\n", error.what());
    return 1;
  }
}
