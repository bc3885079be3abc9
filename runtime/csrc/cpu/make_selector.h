// SPDX-License-Identifier: Apache-2.0
// Makes a Selector from its type.
//
// The type has a struct Packed with its weights and a struct Scratch with its buffers, both
// allocated in the driver's memory. Their layout is recomputed at every step. As the number of rows
// is unknown then, Scratch allocates buffers that depend on it last.

#pragma once

#include "cpu/compress.h"
#include "cpu/gemm.h"
#include "kernel/selector.h"

namespace edgernn::EDGERNN_ISA {

// Packs a vector. The padding becomes 0.
[[gnu::noinline, gnu::cold]] inline void PackVector(const Values& from, std::int64_t count,
                                                    float* to) {
  for (std::int64_t j = 0; j < PadToLanes(count); ++j) to[j] = j < count ? from[j] : 0.0f;
}

// Allocates a list of neurons, with the slack that AppendLanes needs.
inline std::int32_t* AllocateList(std::int64_t hidden, Arena* arena) {
  return arena->Allocate<std::int32_t>(PadToLanes(hidden) + kLanes);
}

// Allocates the bits of all neurons, by block.
inline LaneBits* AllocateLanes(std::int64_t hidden, Arena* arena) {
  return arena->Allocate<LaneBits>(Blocks(hidden));
}

// The set of the neurons with bits, which this function clears in the padding.
inline ActiveSet MakeActiveSet(std::int64_t hidden, LaneBits* lanes, std::int64_t macs) {
  lanes[Blocks(hidden) - 1] &= kAllLanes >> (PadToLanes(hidden) - hidden);
  ActiveSet active{0, nullptr, macs, lanes};
  for (std::int64_t k = 0; k < Blocks(hidden); ++k) {
    active.count += __builtin_popcount(lanes[k]);
    active.blocks += lanes[k] != 0;
  }
  return active;
}

// Writes the indices of the values above 0 to `list` and returns their number. The padding of
// `values` must not be above 0.
inline std::int64_t SelectPositive(const float* values, std::int64_t count, std::int32_t* list) {
  std::int64_t listed = 0;
  for (std::int64_t j = 0; j < count; j += kLanes) {
    const LaneBits lanes = PositiveLanes(Load(values + j));
    listed += AppendLanes(lanes, static_cast<std::int32_t>(j), list + listed);
  }
  return listed;
}

// Functions of a selector or an imputer on plain buffers, from those of its type on Packed and
// Scratch.
template <class Type>
struct ArenaFunctions {
  using Packed = typename Type::Packed;
  using Scratch = typename Type::Scratch;

  static Packed PackedIn(const LayerSizes& sizes, const void* base) {
    Arena arena(const_cast<void*>(base));
    return Packed(sizes, &arena);
  }

  static std::uint64_t PackedBytes(const LayerSizes& sizes) {
    Arena arena(nullptr);
    static_cast<void>(Packed(sizes, &arena));
    return arena.used();
  }

  [[gnu::cold]] static void Pack(const LayerSizes& sizes, const Weights& from, void* packed) {
    Type::Pack(sizes, from, PackedIn(sizes, packed));
  }

  static std::uint64_t ScratchBytes(const LayerSizes& sizes, std::int64_t rows) {
    Arena arena(nullptr);
    static_cast<void>(Scratch(sizes, rows, &arena));
    return arena.used();
  }
};

// The functions of a Selector on plain buffers.
template <class Rule>
struct SelectorFunctions : ArenaFunctions<Rule> {
  using typename ArenaFunctions<Rule>::Scratch;
  using ArenaFunctions<Rule>::PackedIn;

  static Scratch ScratchIn(const LayerSizes& sizes, void* base) {
    Arena arena(base);
    return Scratch(sizes, 0, &arena);
  }

  static void Project(const LayerSizes& sizes, const void* packed, const float* x,
                      std::int64_t rows, void* scratch) {
    Rule::Project(sizes, PackedIn(sizes, packed), x, rows, ScratchIn(sizes, scratch));
  }

  static ActiveSet Select(const LayerSizes& sizes, const void* packed, void* scratch,
                          std::int64_t row, const float* h, const float* const* memory) {
    return Rule::Select(sizes, PackedIn(sizes, packed), ScratchIn(sizes, scratch), row, h, memory);
  }

  static void AdvanceMemory(const LayerSizes& sizes, const void* packed, void* scratch,
                            const float* state, float* const* memory) {
    Rule::AdvanceMemory(sizes, PackedIn(sizes, packed), ScratchIn(sizes, scratch), state, memory);
  }
};

template <class Rule, class = void>
constexpr decltype(Selector::select_largest) kSelectLargest = nullptr;

template <class Rule>
constexpr decltype(Selector::select_largest)
    kSelectLargest<Rule, std::void_t<decltype(Rule::SelectLargest)>> = &Rule::SelectLargest;

template <class Rule>
constexpr Selector MakeSelector() {
  using Functions = SelectorFunctions<Rule>;
  return {Rule::kRanks,
          Rule::kMasks,
          &Functions::PackedBytes,
          &Functions::Pack,
          &Functions::ScratchBytes,
          &Functions::Project,
          &Functions::Select,
          &Functions::AdvanceMemory,
          kSelectLargest<Rule>};
}

}  // namespace edgernn::EDGERNN_ISA
