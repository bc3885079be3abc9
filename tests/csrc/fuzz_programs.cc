// SPDX-License-Identifier: Apache-2.0
// Runs COUNT packed models with random cells, from model FIRST on: edgernn_fuzz_programs COUNT
// [FIRST]. The message of a crash names the model. Run by `make check-programs`.

#include <sanitizer/common_interface_defs.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "draw_program_model.h"
#include "edgernn.h"
#include "try_packed_model.h"

namespace {

volatile std::uint64_t current = 0;

void ReportModel() {
  std::fprintf(stderr, "edgernn_fuzz_programs: model %llu failed\n",
               static_cast<unsigned long long>(current));
}

// A message without numbers and the layer's name, to count distinct messages.
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
  __sanitizer_set_death_callback(ReportModel);
  std::signal(SIGABRT, [](int) { ReportModel(); });
  std::uint64_t valid = 0, changed = 0;
  std::set<std::string> refusals;
  for (std::uint64_t i = first; i < first + models; ++i) {
    current = i;
    const edgernn_tests::DrawnModel model = edgernn_tests::DrawProgramModel(i);
    const edgernn_tests::AlignedMemory file = edgernn_tests::Allocate(model.file.size());
    if (!model.file.empty()) std::memcpy(file.get(), model.file.data(), model.file.size());
    const bool ran = edgernn_tests::TryPackedModel(file.get(), model.file.size());
    edgernn_tests::Expect(ran || !model.is_valid, "a valid program is not refused");
    if (!ran) refusals.insert(Kind(edgernn_message()));
    (model.is_valid ? valid : changed) += ran;
  }
  std::printf(
      "%llu models of random programs: %llu valid ones ran, %llu changed ones ran, %llu "
      "were refused with %zu distinct messages\n",
      static_cast<unsigned long long>(models), static_cast<unsigned long long>(valid),
      static_cast<unsigned long long>(changed),
      static_cast<unsigned long long>(models - valid - changed), refusals.size());
  // the distribution must cover all three outcomes
  return valid > models / 3 && changed > models / 40 && (models < 1000 || refusals.size() > 20) ? 0
                                                                                                : 1;
}
