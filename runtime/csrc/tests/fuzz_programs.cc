// SPDX-License-Identifier: Apache-2.0
// Gives random cells to the library: edgernn_fuzz_programs COUNT [FIRST]. See `make
// check-programs`. FIRST is the number of the first model, which is told where one does harm.

#include <sanitizer/common_interface_defs.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "edgernn.h"
#include "tests/draw_program_model.h"
#include "tests/try_packed_model.h"

namespace {

volatile std::uint64_t current = 0;

void TellWhich() {
  std::fprintf(stderr, "edgernn_fuzz_programs: model %llu did harm\n",
               static_cast<unsigned long long>(current));
}

// A message without its numbers and the name of the layer.
std::string Kind(const char* message) {
  std::string kind, word;
  for (const char c : std::string(message) + ' ') {
    if (std::strchr("0123456789-", c) == nullptr) word += c;
    if (c != ' ') continue;
    if (word.find("drawn") == std::string::npos) kind += word;
    word.clear();
  }
  return kind;
}

}  // namespace

int main(int count, char** words) {
  const std::uint64_t models = count > 1 ? std::strtoull(words[1], nullptr, 10) : 0;
  const std::uint64_t first = count > 2 ? std::strtoull(words[2], nullptr, 10) : 0;
  if (models == 0) {
    std::fprintf(stderr, "usage: edgernn_fuzz_programs COUNT [FIRST]\n");
    return 2;
  }
  __sanitizer_set_death_callback(TellWhich);
  std::signal(SIGABRT, [](int) { TellWhich(); });
  std::uint64_t valid = 0, changed = 0;
  std::set<std::string> refusals;
  for (std::uint64_t i = first; i < first + models; ++i) {
    current = i;
    const edgernn_tests::DrawnModel model = edgernn_tests::DrawProgramModel(i);
    const edgernn_tests::Memory file = edgernn_tests::Allocate(model.file.size());
    if (!model.file.empty()) std::memcpy(file.get(), model.file.data(), model.file.size());
    const bool ran = edgernn_tests::TryPackedModel(file.get(), model.file.size());
    edgernn_tests::Expect(ran || !model.is_valid, "a valid program is not refused");
    if (!ran) refusals.insert(Kind(edgernn_message()));
    (model.is_valid ? valid : changed) += ran;
  }
  std::printf(
      "%llu models of random programs: %llu valid ones ran, %llu changed ones ran, %llu "
      "were refused with %zu kinds of sentences\n",
      static_cast<unsigned long long>(models), static_cast<unsigned long long>(valid),
      static_cast<unsigned long long>(changed),
      static_cast<unsigned long long>(models - valid - changed), refusals.size());
  // what is drawn must be worth it
  return valid > models / 3 && changed > models / 40 && (models < 1000 || refusals.size() > 20) ? 0
                                                                                                : 1;
}
