// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel table of one instruction set at run time. A library includes this header in
// one source file, after defining EDGERNN_TABLE as the type of its tables.

#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace edgernn {

// EDGERNN_ISAS in CMakeLists.txt lists the instruction sets to build
#ifdef EDGERNN_HAS_NATIVE
namespace native {
extern const EDGERNN_TABLE kTable;
extern const EDGERNN_TABLE kDotsTable;
}  // namespace native
#endif
#ifdef EDGERNN_HAS_SIMD128
namespace simd128 {
extern const EDGERNN_TABLE kTable;
}
#endif
#ifdef EDGERNN_HAS_RELAXED_SIMD
namespace relaxed_simd {
extern const EDGERNN_TABLE kTable;
}
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

// True if this processor has Arm's dot-product instructions.
inline bool HasDotProducts() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  int has = 0;
  std::size_t bytes = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}

// The tables that this processor can run, from the slowest to the fastest.
std::vector<const EDGERNN_TABLE*> ListSupported() {
  std::vector<const EDGERNN_TABLE*> list;
#ifdef EDGERNN_HAS_NATIVE
  list.push_back(&native::kTable);
  if (HasDotProducts()) list.push_back(&native::kDotsTable);
#endif
#ifdef EDGERNN_HAS_SIMD128
  list.push_back(&simd128::kTable);
#endif
#ifdef EDGERNN_HAS_RELAXED_SIMD
  list.push_back(&relaxed_simd::kTable);
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

// Returns the fastest table that this processor can run, or the one that the environment variable
// EDGERNN_ISA names. On failure returns null and sets *error to a static message.
const EDGERNN_TABLE* ChooseTable(const char** error) {
  const std::vector<const EDGERNN_TABLE*> list = ListSupported();
#if defined(__wasm__)
  // a module has no environment, and the kernels of one instruction set
  const char* wanted = nullptr;
#else
  const char* wanted = std::getenv("EDGERNN_ISA");
#endif
  const bool any = wanted == nullptr || *wanted == '\0';
  std::string names;
  for (auto table = list.rbegin(); table != list.rend(); ++table) {
    if (any || std::strcmp(wanted, (*table)->isa) == 0) return *table;
    names += (names.empty() ? "" : ", ") + std::string((*table)->isa);
  }
  static const std::string text =
      any || names.empty()
          ? "this processor supports none of the instruction sets that the library was built for"
          : "EDGERNN_ISA: expected one of " + names + ", got " + wanted;
  *error = text.c_str();
  return nullptr;
}

}  // namespace
}  // namespace edgernn
