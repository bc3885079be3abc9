// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set when the library is first used.

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernel.h"

namespace edgernn {

// which instruction sets were built: see EDGERNN_ISAS in CMakeLists.txt
#ifdef EDGERNN_HAS_NATIVE
namespace native {
extern const KernelTable kTable;
}
#endif
#ifdef EDGERNN_HAS_BASELINE
namespace baseline {
extern const KernelTable kTable;
}
#endif
#ifdef EDGERNN_HAS_AVX2
namespace avx2 {
extern const KernelTable kTable;
}
#endif
#ifdef EDGERNN_HAS_AVX512
namespace avx512 {
extern const KernelTable kTable;
}
#endif

namespace {

// The tables that this processor runs, from the slowest to the fastest.
std::vector<const KernelTable*> ListSupported() {
  std::vector<const KernelTable*> list;
#ifdef EDGERNN_HAS_NATIVE
  list.push_back(&native::kTable);
#endif
#ifdef EDGERNN_HAS_BASELINE
  list.push_back(&baseline::kTable);
#endif
#if defined(EDGERNN_HAS_AVX2) || defined(EDGERNN_HAS_AVX512)
  __builtin_cpu_init();
#endif
#ifdef EDGERNN_HAS_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    list.push_back(&avx2::kTable);
  }
#endif
#ifdef EDGERNN_HAS_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    list.push_back(&avx512::kTable);
  }
#endif
  return list;
}

KernelChoice Choose() {
  const std::vector<const KernelTable*> list = ListSupported();
  const char* wanted = std::getenv("EDGERNN_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  std::string names;
  for (auto table = list.rbegin(); table != list.rend(); ++table) {
    if (any || std::strcmp(wanted, (*table)->isa) == 0) return {*table, nullptr};
    names += (names.empty() ? "" : ", ") + std::string((*table)->isa);
  }
  if (any) return {nullptr, "this processor runs none of the instruction sets that were built"};
  // lives as long as the process
  static const std::string error = "EDGERNN_ISA=" + std::string(wanted) +
                                   ": not known or not supported here; this processor runs " +
                                   (names.empty() ? "none that was built" : names);
  return {nullptr, error.c_str()};
}

}  // namespace

const KernelChoice& ChooseKernels() {
  static const KernelChoice choice = Choose();
  return choice;
}

}  // namespace edgernn
