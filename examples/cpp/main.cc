// SPDX-License-Identifier: Apache-2.0
// Streams sequences through a model exported by edgernn:
//
//   stream model.onnx [libedgernn_ops.so] < x.csv > y.csv
//
// Each line of I numbers is a step, for which the program prints a line with the model's output. An
// empty line ends a sequence. The first line is a header if it does not start with a number. At the
// end, the program prints the time per step, over the last 100,000 steps, on standard error.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
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

// Returns true unless the first field is a number; a field such as `nanoseconds` only begins as
// one.
bool IsHeader(const std::string& line) {
  char* end = nullptr;
  std::strtof(line.c_str(), &end);
  return end == line.c_str() || std::strchr(", \r", *end) == nullptr;
}

// Reads finite numbers separated by commas. Returns an empty list if the line has anything else.
std::vector<float> ParseLine(const std::string& line) {
  std::vector<float> numbers;
  const char* at = line.c_str();
  while (true) {
    char* end = nullptr;
    const float number = std::strtof(at, &end);
    if (end == at || !std::isfinite(number)) return {};
    numbers.push_back(number);
    while (*end == ' ' || *end == '\r') ++end;
    if (*end == '\0') return numbers;
    if (*end != ',') return {};
    at = end + 1;
  }
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
  Times times;
  std::int64_t updates = 0;
  std::string line;
  // reading std::cin flushes the output, so a reader gets each y before it sends the next x
  for (std::size_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.find_first_not_of(" \r") == std::string::npos) {
      stream.Reset();
      continue;
    }
    if (number == 1 && IsHeader(line)) continue;
    const std::vector<float> x = ParseLine(line);
    if (x.size() != stream.input_size()) {
      throw std::runtime_error("line " + std::to_string(number) + ": expected " +
                               std::to_string(stream.input_size()) + " finite numbers, got " +
                               line);
    }
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
