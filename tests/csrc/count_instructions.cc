// SPDX-License-Identifier: Apache-2.0
// edgernn_count LAYER INPUT...: runs one call of a layer's kernel under an instruction counter and
// prints the fraction of neurons that changed. I = 2, H = 128, T = 100, B = 1.
//
// INPUT is NAME=VALUE, a constant, or NAME~VALUE, uniform in [-VALUE, VALUE) from one generator in
// the order of the arguments. X, all weights and all states of the layer are required.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "op/op.h"

namespace edgernn {
namespace {

constexpr LayerSizes kSizes = {2, 128};
constexpr std::int64_t kSteps = 100;

// Uniform random numbers in [-scale, scale), the same on every machine.
class RandomNumbers {
 public:
  std::vector<float> Draw(std::size_t count, float scale) {
    std::vector<float> numbers;
    for (std::size_t i = 0; i < count; ++i) {
      state_ = state_ * 1664525u + 1013904223u;
      numbers.push_back(scale * (static_cast<float>(state_ >> 8) / 8388608.0f - 1.0f));
    }
    return numbers;
  }

 private:
  std::uint32_t state_ = 1;
};

struct FreeAligned {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }
};

std::unique_ptr<void, FreeAligned> Allocate(std::size_t bytes) {
  return std::unique_ptr<void, FreeAligned>(::operator new(bytes, std::align_val_t(kAlignment)));
}

std::int64_t Count(const WeightSpec& spec) {
  const std::int64_t rows = spec.rows.hidden * kSizes.hidden + spec.rows.input * kSizes.input +
                            spec.rows.one + spec.rows.groups * Groups(kSizes);
  return rows * (spec.columns == Columns::kInput    ? kSizes.input
                 : spec.columns == Columns::kHidden ? kSizes.hidden
                                                    : 1);
}

// The number of elements of each input of an op.
std::map<std::string, std::int64_t> CountInputs(const OpSpec& spec) {
  std::map<std::string, std::int64_t> counts = {{"X", kSteps * kSizes.input}};
  for (const WeightInput& weight : spec.weights) counts[weight.spec.name] = Count(weight.spec);
  for (const StateInput& state : spec.states) counts[state.name] = Width(state.extent, kSizes);
  return counts;
}

}  // namespace

// The counted function; extern "C" so that callgrind finds its name.
extern "C" __attribute__((noinline)) void edgernn_count_run(const Kernel* kernel,
                                                            const void* packed, const Call* call,
                                                            void* scratch) {
  kernel->Run(kSizes, packed, *call, scratch);
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "edgernn_count: %s\n", message.c_str());
  return 2;
}

int Main(const std::vector<std::string>& arguments) {
  const KernelChoice& choice = ChooseKernels();
  if (choice.table == nullptr) return Fail(choice.error);
  const Op* const op = arguments.empty() ? nullptr : FindOp(*choice.table, arguments[0]);
  if (op == nullptr) return Fail("expected the name of a layer");
  const std::map<std::string, std::int64_t> counts = CountInputs(op->spec);
  RandomNumbers numbers;
  std::map<std::string, std::vector<float>> inputs;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::size_t at = arguments[i].find_first_of("=~");
    const std::string name = arguments[i].substr(0, at);
    if (at == std::string::npos || counts.count(name) == 0) return Fail("input: " + arguments[i]);
    const std::size_t count = static_cast<std::size_t>(counts.at(name));
    const float value = std::strtof(arguments[i].c_str() + at + 1, nullptr);
    inputs[name] =
        arguments[i][at] == '=' ? std::vector<float>(count, value) : numbers.Draw(count, value);
  }
  for (const auto& input : counts) {
    if (inputs.count(input.first) == 0) return Fail("input: " + input.first + " is missing");
  }
  std::vector<Tensor> weights;
  for (const WeightInput& weight : op->spec.weights) {
    weights.push_back({{inputs[weight.spec.name].data()}, {}});
  }
  std::vector<float> y(kSteps * kSizes.hidden);
  std::vector<std::int64_t> updates(kSteps, kSizes.hidden), macs(1);
  Call call{};
  call.steps = call.length = kSteps;
  call.batch = 1;
  call.x = inputs["X"].data();
  call.y = y.data();
  for (const StateInput& state : op->spec.states) {
    const StatePlace place = Op::PlaceOf(&call, state);
    *place.in = *place.out = inputs[state.name].data();
  }
  if (op->spec.skips) {
    call.updates = updates.data();
    call.macs = macs.data();
  }
  const auto packed = Allocate(op->PackedBytes(kSizes));
  const auto scratch = Allocate(op->ScratchBytes(kSizes, kSteps, 1));
  op->Pack(kSizes, op->Arrange(weights), packed.get());
  edgernn_count_run(&op->kernel, packed.get(), &call, scratch.get());
  std::int64_t sum = 0;
  for (const std::int64_t count : updates) sum += count;
  std::printf("%.4f\n", static_cast<double>(sum) / static_cast<double>(kSteps * kSizes.hidden));
  return 0;
}

}  // namespace edgernn

int main(int count, char** words) { return edgernn::Main({words + 1, words + count}); }
