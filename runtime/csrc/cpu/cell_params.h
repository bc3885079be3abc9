// SPDX-License-Identifier: Apache-2.0
// A cell's own parameters, packed once as whole vectors, with their maps applied.

#pragma once

#include "cpu/gemm.h"
#include "kernel/cell_kernel.h"

namespace edgernn::EDGERNN_ISA {

// Applies a map to the first `count` values in place, and to their padding.
[[gnu::noinline]] inline void MapVector(Map map, float* values, std::int64_t count) {
  for (std::int64_t j = 0; j < count; j += kLanes) {
    const Vec a = Load(values + j);
    if (map == Map::kSigmoid) Store(values + j, Sigmoid(a));
    if (map == Map::kTanh) Store(values + j, Tanh(a));
  }
}

struct PackedParams {
  float* at[kMaxParams];  // (padded H,), (padded I,) or (lanes,) each

  static std::int64_t Count(const CellTable& cell, const LayerSizes& sizes, int i) {
    switch (cell.extents[i]) {
      case Extent::kHidden:
        return sizes.hidden;
      case Extent::kInput:
        return sizes.input;
      default:
        return 1;
    }
  }

  void Allocate(const CellTable& cell, const LayerSizes& sizes, Arena* arena) {
    for (int i = 0; i < cell.params; ++i) {
      at[i] = arena->Allocate<float>(PadToLanes(Count(cell, sizes, i)));
    }
  }

  [[gnu::noinline, gnu::cold]] void Pack(const CellKernel& cell, const LayerSizes& sizes,
                                         const Weights& from) const {
    for (int i = 0; i < cell.params; ++i) {
      const bool one = cell.extents[i] == Extent::kOne;
      const std::int64_t count = Count(cell, sizes, i);
      for (std::int64_t j = 0; j < PadToLanes(count); ++j) {
        at[i][j] = one ? from.params[i][0] : j < count ? from.params[i][j] : 0.0f;
      }
      if (cell.map == nullptr) MapVector(cell.maps[i], at[i], count);
    }
    if (cell.map != nullptr) cell.map(cell, sizes, at);
  }
};

// The parameters of one call. A parameter of Map::kLength that is 0 becomes the call's length.
class CallParams {
 public:
  CallParams(const CellTable& cell, const PackedParams& packed, std::int64_t length) {
    for (int i = 0; i < cell.params; ++i) {
      at_[i] = packed.at[i];
      if (cell.maps[i] != Map::kLength || *packed.at[i] != 0.0f) continue;
      Store(length_, Fill(static_cast<float>(length)));
      at_[i] = length_;
    }
  }
  CallParams(const CallParams&) = delete;
  CallParams& operator=(const CallParams&) = delete;

  const float* const* at() const { return at_; }

 private:
  const float* at_[kMaxParams];
  float length_[kLanes];
};

}  // namespace edgernn::EDGERNN_ISA
