// SPDX-License-Identifier: Apache-2.0
// Chooses among the tables of the instruction sets that were built. For one source file of a
// library, which defines EDGERNN_TABLE, the type of its tables, before it includes this.

#ifndef EDGERNN_COMMON_DISPATCH_H_
#define EDGERNN_COMMON_DISPATCH_H_

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace edgernn {

// which instruction sets were built: see EDGERNN_ISAS in CMakeLists.txt
#ifdef EDGERNN_HAS_NATIVE
namespace native {
extern const EDGERNN_TABLE kTable;
extern const EDGERNN_TABLE kDotsTable;
}  // namespace native
#endif
#ifdef EDGERNN_HAS_BASELINE
namespace baseline {
extern const EDGERNN_TABLE kTable;
}
#endif
#ifdef EDGERNN_HAS_AVX2
namespace avx2 {
extern const EDGERNN_TABLE kTable;
}
#endif
#ifdef EDGERNN_HAS_AVX512
namespace avx512 {
extern const EDGERNN_TABLE kTable;
extern const EDGERNN_TABLE kDotsTable;
}  // namespace avx512
#endif

namespace {

// Whether this processor has Arm's dot products.
inline bool HasDotProducts() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

// The tables that this processor runs, from the slowest to the fastest.
std::vector<const EDGERNN_TABLE*> ListSupported() {
  std::vector<const EDGERNN_TABLE*> list;
#ifdef EDGERNN_HAS_NATIVE
  list.push_back(&native::kTable);
  if (HasDotProducts()) list.push_back(&native::kDotsTable);
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
    if (__builtin_cpu_supports("avx512vnni")) list.push_back(&avx512::kDotsTable);
  }
#endif
  return list;
}

// The best table that this processor runs, or the one that the environment variable EDGERNN_ISA
// names. On failure it is null and `error`, which lives as long as the process, says why.
const EDGERNN_TABLE* ChooseTable(const char** error) {
  const std::vector<const EDGERNN_TABLE*> list = ListSupported();
  const char* wanted = std::getenv("EDGERNN_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  std::string names;
  for (auto table = list.rbegin(); table != list.rend(); ++table) {
    if (any || std::strcmp(wanted, (*table)->isa) == 0) return *table;
    names += (names.empty() ? "" : ", ") + std::string((*table)->isa);
  }
  static const std::string text =
      any ? "this processor runs none of the instruction sets that were built"
          : "EDGERNN_ISA=" + std::string(wanted) +
                ": not known or not supported here; this processor runs " +
                (names.empty() ? "none that was built" : names);
  *error = text.c_str();
  return nullptr;
}

}  // namespace
}  // namespace edgernn

#endif  // EDGERNN_COMMON_DISPATCH_H_
