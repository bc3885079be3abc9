// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set when the library is first used.

#include <cstdlib>
#include <cstring>
#include <string>

#include "kernel.h"

namespace edgernn {

#if defined(__x86_64__)
namespace baseline {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#else
namespace native {
extern const KernelTable kTable;
}
#endif

namespace {

struct Candidate {
  const KernelTable* table;
  bool supported;
};

// From the slowest to the fastest; the first one always runs.
#if defined(__x86_64__)
constexpr int kCandidates = 3;

void ListCandidates(Candidate (&list)[kCandidates]) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  list[0] = {&baseline::kTable, true};
  list[1] = {&avx2::kTable, avx2};
  list[2] = {&avx512::kTable, avx512};
}
#else
constexpr int kCandidates = 1;

void ListCandidates(Candidate (&list)[kCandidates]) { list[0] = {&native::kTable, true}; }
#endif

KernelChoice Choose() {
  Candidate list[kCandidates];
  ListCandidates(list);
  const char* wanted = std::getenv("EDGERNN_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  std::string names;
  for (int i = kCandidates - 1; i >= 0; --i) {
    if (!list[i].supported) continue;
    if (any || std::strcmp(wanted, list[i].table->isa) == 0) return {list[i].table, nullptr};
    names += (names.empty() ? "" : ", ") + std::string(list[i].table->isa);
  }
  // lives as long as the process
  static const std::string error = "EDGERNN_ISA=" + std::string(wanted) +
                                   ": not known or not supported here; this processor runs " +
                                   names;
  return {nullptr, error.c_str()};
}

}  // namespace

const KernelChoice& ChooseKernels() {
  static const KernelChoice choice = Choose();
  return choice;
}

}  // namespace edgernn
