// SPDX-License-Identifier: Apache-2.0
// Implements try_packed_model.h.

#include "try_packed_model.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "edgernn.h"

namespace edgernn_tests {

AlignedMemory Allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, EDGERNN_ALIGNMENT, bytes) != 0) std::abort();
  return AlignedMemory(memory);
}

void Expect(bool holds, const char* condition) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s; last message: %s\n", condition, edgernn_message());
  std::abort();
}

namespace {

constexpr int kSteps = 3;

// A linear congruential generator: uniform in [0, 2^24).
std::uint32_t Draw(std::uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

// Saves the state, restores it, and calls `step` after restoring damaged copies.
template <class Step>
void TrySavedState(EdgernnModel* model, std::uint32_t* seed, const Step& step) {
  std::size_t bytes = 0;
  Expect(edgernn_state_bytes(model, &bytes) == EDGERNN_OK, "a state has a size");
  std::vector<char> saved(bytes);
  // sums overflow, so the state may have a NaN
  const EdgernnStatus status = edgernn_save_state(model, saved.data(), bytes);
  Expect(status == EDGERNN_OK || status == EDGERNN_BAD_STATE, "a state is saved or has a NaN");
  if (status != EDGERNN_OK) return;
  Expect(edgernn_restore_state(model, saved.data(), bytes) == EDGERNN_OK,
         "a saved state can be restored");
  for (int i = 0; i < 8; ++i) {
    std::vector<char> damaged = saved;
    damaged.resize(i % 2 == 0 ? bytes : Draw(seed) % bytes);
    if (!damaged.empty()) damaged[Draw(seed) % damaged.size()] ^= static_cast<char>(Draw(seed));
    if (edgernn_restore_state(model, damaged.data(), damaged.size()) == EDGERNN_OK) {
      step();
    } else {
      Expect(*edgernn_message() != '\0', "a refusal has a message");
    }
  }
  Expect(edgernn_restore_state(model, saved.data(), bytes) == EDGERNN_OK,
         "a saved state can be restored again");
}

// Runs some steps in memory prefilled with `fill`; returns the outputs.
std::vector<float> Run(const void* file, std::size_t bytes, std::int64_t batch, std::size_t need,
                       int fill) {
  const AlignedMemory memory = Allocate(need);
  std::memset(memory.get(), fill, need);
  EdgernnModel* model = nullptr;
  Expect(edgernn_open(file, bytes, batch, memory.get(), need, &model) == EDGERNN_OK,
         "a file with a known memory size can be opened");
  EdgernnSizes sizes;
  Expect(edgernn_sizes(model, &sizes) == EDGERNN_OK, "a model has sizes");
  const auto count = static_cast<std::size_t>(batch * sizes.output);
  std::vector<float> x(static_cast<std::size_t>(batch * sizes.input)), y(kSteps * count);
  std::vector<std::int64_t> words(static_cast<std::size_t>(batch));
  auto seed = static_cast<std::uint32_t>(bytes);
  Expect(edgernn_on_nonfinite(model, EDGERNN_NONFINITE_RESET) == EDGERNN_OK,
         "a step may be told to reset");
  for (int t = 0; t < kSteps; ++t) {
    // floats of any magnitude, so that sums overflow too, and some that are not finite
    for (float& number : x) {
      const std::uint32_t bits = Draw(&seed) << 8 ^ Draw(&seed);
      std::memcpy(&number, &bits, sizeof number);
    }
    // includes one index past the vocabulary
    bool known = true;
    for (std::int64_t& word : words) {
      word = Draw(&seed) % (sizes.vocabulary + 1);
      known &= word < sizes.vocabulary || sizes.vocabulary == 0;
    }
    float* const to = y.data() + static_cast<std::size_t>(t) * count;
    const auto step = [&] {
      return sizes.vocabulary > 0 ? edgernn_step_words(model, words.data(), to)
                                  : edgernn_step(model, x.data(), to);
    };
    TrySavedState(model, &seed, step);
    Expect(step() == (known ? EDGERNN_OK : EDGERNN_BAD_INPUT),
           "a step accepts all numbers and known words, and refuses unknown words");
  }
  Expect(edgernn_reset(model) == EDGERNN_OK, "a model can be reset");
  return y;
}

}  // namespace

bool TryPackedModel(const void* file, std::size_t bytes) {
  const std::int64_t batch = static_cast<std::int64_t>(bytes % 3) + 1;
  std::size_t need = 0;
  if (edgernn_memory(file, bytes, batch, &need) != EDGERNN_OK) {
    Expect(*edgernn_message() != '\0', "a refusal has a message");
    return false;
  }
  Expect(need <= static_cast<std::size_t>(batch) * ((std::size_t{1} << 20) + 16 * bytes),
         "each sequence takes at most 16 times the file and 1 MiB");
  const std::vector<float> zeros = Run(file, bytes, batch, need, 0x00);
  const std::vector<float> ones = Run(file, bytes, batch, need, 0xff);
  Expect(std::memcmp(zeros.data(), ones.data(), zeros.size() * sizeof(float)) == 0,
         "outputs do not depend on the initial contents of memory");
  return true;
}

}  // namespace edgernn_tests
