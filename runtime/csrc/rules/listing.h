// SPDX-License-Identifier: Apache-2.0
// What listers are made of.
//
// A lister's weights are a struct Packed, its scratch a struct Scratch, both carved out of the
// driver's buffers. Scratch is carved at every step, without the number of rows: what depends on it
// comes last.

#ifndef EDGERNN_RULES_LISTING_H_
#define EDGERNN_RULES_LISTING_H_

#include "compress.h"
#include "gemm.h"
#include "lister.h"

namespace edgernn::EDGERNN_ISA {

// The padding becomes 0.
[[gnu::noinline, gnu::cold]] inline void PackVector(const Values& from, std::int64_t count, float* to) {
  for (std::int64_t j = 0; j < Padded(count); ++j) to[j] = j < count ? from[j] : 0.0f;
}

// A list of neurons, with the room that ListPositive needs.
inline std::int32_t* TakeList(std::int64_t hidden, Carver* carver) {
  return carver->Take<std::int32_t>(Padded(hidden) + kLanes);
}

// Lists where `values` (padded) are above 0; the padding must not be.
inline std::int64_t ListPositives(const float* values, std::int64_t count, std::int32_t* list) {
  std::int64_t found = 0;
  for (std::int64_t j = 0; j < count; j += kLanes) {
    found += ListPositive(Load(values + j), static_cast<std::int32_t>(j), list + found);
  }
  return found;
}

// The functions on plain buffers that listers and imputers have alike, from those of a type that
// take its Packed and Scratch.
template <class Type>
struct CarvedFunctions {
  using Packed = typename Type::Packed;
  using Scratch = typename Type::Scratch;

  static Packed PackedAt(const Sizes& sizes, const void* base) {
    Carver carver(const_cast<void*>(base));
    return Packed(sizes, &carver);
  }

  static std::size_t PackedBytes(const Sizes& sizes) {
    Carver carver(nullptr);
    static_cast<void>(Packed(sizes, &carver));
    return carver.used();
  }

  [[gnu::cold]] static void Pack(const Sizes& sizes, const Weights& from, void* packed) {
    Type::Pack(sizes, from, PackedAt(sizes, packed));
  }

  static std::size_t ScratchBytes(const Sizes& sizes, std::int64_t rows) {
    Carver carver(nullptr);
    static_cast<void>(Scratch(sizes, rows, &carver));
    return carver.used();
  }
};

// The functions of a Lister.
template <class Rule>
struct ListerFunctions : CarvedFunctions<Rule> {
  using typename CarvedFunctions<Rule>::Scratch;
  using CarvedFunctions<Rule>::PackedAt;

  static Scratch ScratchAt(const Sizes& sizes, void* base) {
    Carver carver(base);
    return Scratch(sizes, 0, &carver);
  }

  static void Project(const Sizes& sizes, const void* packed, const float* x, std::int64_t rows,
                      void* scratch) {
    Rule::Project(sizes, PackedAt(sizes, packed), x, rows, ScratchAt(sizes, scratch));
  }

  static Listing List(const Sizes& sizes, const void* packed, void* scratch, std::int64_t row,
                      const float* h, float* memory) {
    return Rule::List(sizes, PackedAt(sizes, packed), ScratchAt(sizes, scratch), row, h, memory);
  }
};

template <class Rule>
constexpr Lister MakeLister() {
  using Functions = ListerFunctions<Rule>;
  return {Rule::kRanks,
          &Functions::PackedBytes,
          &Functions::Pack,
          &Functions::ScratchBytes,
          &Functions::Project,
          &Functions::List};
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_RULES_LISTING_H_
