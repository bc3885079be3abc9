// SPDX-License-Identifier: Apache-2.0
// Implements try_packed_model.h.

#include "tests/try_packed_model.h"

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
  for (int t = 0; t < kSteps; ++t) {
    // finite floats of any magnitude, so that sums overflow too
    for (float& number : x) {
      const std::uint32_t bits = Draw(&seed) << 8 ^ Draw(&seed);
      const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
      if (finite) std::memcpy(&number, &bits, sizeof number);
    }
    // includes one index past the vocabulary
    bool known = true;
    for (std::int64_t& word : words) {
      word = Draw(&seed) % (sizes.vocabulary + 1);
      known &= word < sizes.vocabulary || sizes.vocabulary == 0;
    }
    float* const to = y.data() + static_cast<std::size_t>(t) * count;
    const EdgernnStatus status = sizes.vocabulary > 0 ? edgernn_step_words(model, words.data(), to)
                                                      : edgernn_step(model, x.data(), to);
    Expect(status == (known ? EDGERNN_OK : EDGERNN_BAD_INPUT),
           "a step accepts finite inputs and known words, and refuses unknown words");
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
  Expect(need < (std::size_t{1} << 20) + 4096 * bytes, "memory is proportional to the file");
  const std::vector<float> zeros = Run(file, bytes, batch, need, 0x00);
  const std::vector<float> ones = Run(file, bytes, batch, need, 0xff);
  Expect(std::memcmp(zeros.data(), ones.data(), zeros.size() * sizeof(float)) == 0,
         "outputs do not depend on the initial contents of memory");
  return true;
}

}  // namespace edgernn_tests
