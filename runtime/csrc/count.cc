// SPDX-License-Identifier: Apache-2.0
// edgernn_count KERNEL: one call of a kernel on random weights, for tests that count its
// instructions. Prints the share of neurons that changed. I = 2, H = 128, T = 100, B = 1.

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernel.h"

namespace edgernn {
namespace {

constexpr Sizes kSizes = {2, 128};
constexpr std::int64_t kSteps = 100;

// Numbers between -scale and scale, the same ones everywhere.
class Numbers {
 public:
  std::vector<float> Draw(std::int64_t count, float scale) {
    std::vector<float> made;
    for (std::int64_t i = 0; i < count; ++i) {
      state_ = state_ * 1664525u + 1013904223u;
      made.push_back(scale * (static_cast<float>(state_ >> 8) / 8388608.0f - 1.0f));
    }
    return made;
  }

 private:
  std::uint32_t state_ = 1;
};

struct Aligned {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }
};

std::unique_ptr<void, Aligned> Allocate(std::size_t bytes) {
  return std::unique_ptr<void, Aligned>(::operator new(bytes, std::align_val_t(kAlignment)));
}

// The place of a type in a list of cells or rules.
template <class Type, class... Rest>
int Place(TypeList<Type, Rest...>, Type) {
  return 0;
}

template <class Type, class First, class... Rest>
int Place(TypeList<First, Rest...>, Type type) {
  return 1 + Place(TypeList<Rest...>(), type);
}

template <class Rule>
Kernel GruUnder(const KernelTable& table, Rule rule) {
  return {&table.drivers[static_cast<int>(Rule::kSpec.driver)],
          table.cells[Place(Cells(), edgernn::Gru())], table.listers[Place(Rules(), rule)]};
}

}  // namespace

// The only part that is counted: a name that the tools find.
extern "C" __attribute__((noinline)) void edgernn_count_run(const Kernel* kernel,
                                                            const void* packed, const Call* call,
                                                            void* scratch) {
  kernel->Run(kSizes, packed, *call, scratch);
}

int Main(const char* name) {
  const KernelChoice& choice = ChooseKernels();
  if (choice.table == nullptr) {
    std::fprintf(stderr, "edgernn_count: %s\n", choice.error);
    return 1;
  }
  const std::int64_t input = kSizes.input, hidden = kSizes.hidden;
  Numbers numbers;
  const std::vector<float> w = numbers.Draw(3 * hidden * input, 0.5f);
  const std::vector<float> r = numbers.Draw(3 * hidden * hidden, 0.05f);
  const std::vector<float> b = numbers.Draw(4 * hidden, 0.05f);
  const std::vector<float> x = numbers.Draw(kSteps * input, 1.0f);
  std::vector<float> h = numbers.Draw(hidden, 0.5f), y(kSteps * hidden);
  Weights weights{};
  weights.w = {w.data()};
  weights.r = {r.data()};
  weights.b = {b.data()};
  std::vector<std::int64_t> updates(kSteps, hidden), macs(1);
  float pressure = 1.0f;
  Call call{};
  call.steps = call.length = kSteps;
  call.batch = 1;
  call.x = x.data();
  call.state_in[0] = call.state_out[0] = h.data();
  call.y = y.data();

  Kernel kernel{};
  std::vector<float> rule_w, rule_d, rule_b;
  if (std::strcmp(name, "gru") == 0) {
    kernel = GruUnder(*choice.table, Always());
  } else if (std::strcmp(name, "sarnn") == 0) {
    kernel = GruUnder(*choice.table, Selective());
    // x uniform in a square: one neuron in ten changes
    rule_w = numbers.Draw(hidden * input, 1.0f);
    rule_d = std::vector<float>(static_cast<std::size_t>(hidden), 0.0f);
    rule_b = std::vector<float>(static_cast<std::size_t>(hidden), -0.59f);
    const Values params[] = {{rule_w.data()}, {rule_d.data()}, {rule_b.data()}};
    std::memcpy(weights.rule, params, sizeof params);
    call.updates = updates.data();
    call.macs = macs.data();
  } else if (std::strcmp(name, "skiprnn") == 0) {
    kernel = GruUnder(*choice.table, Skip());
    // the pressure grows by 0.11 a step: the state changes at every fifth
    rule_w = std::vector<float>(static_cast<std::size_t>(hidden), 0.0f);
    rule_b = {-2.1f};
    const Values params[] = {{rule_w.data()}, {rule_b.data()}};
    std::memcpy(weights.rule, params, sizeof params);
    call.memory_in = call.memory_out = &pressure;
    call.updates = updates.data();
    call.macs = macs.data();
  } else {
    std::fprintf(stderr, "edgernn_count: expected gru, sarnn or skiprnn, got %s\n", name);
    return 2;
  }
  const auto packed = Allocate(kernel.PackedBytes(kSizes));
  const auto scratch = Allocate(kernel.ScratchBytes(kSizes, kSteps, 1));
  kernel.Pack(kSizes, weights, packed.get());
  edgernn_count_run(&kernel, packed.get(), &call, scratch.get());
  std::int64_t sum = 0;
  for (const std::int64_t count : updates) sum += count;
  std::printf("%.4f\n", static_cast<double>(sum) / static_cast<double>(kSteps * hidden));
  return 0;
}

}  // namespace edgernn

int main(int count, char** words) { return edgernn::Main(count == 2 ? words[1] : ""); }
