// SPDX-License-Identifier: Apache-2.0
// Makes an Imputer from its type, and defines the building blocks that imputers share.

#pragma once

#include "cpu/gemm.h"
#include "cpu/make_selector.h"
#include "imputers/imputer.h"

namespace edgernn::EDGERNN_ISA {

// The functions of an Imputer on plain buffers.
template <class Type>
struct ImputerFunctions : ArenaFunctions<Type> {
  using typename ArenaFunctions<Type>::Scratch;
  using ArenaFunctions<Type>::PackedIn;

  static void Step(const LayerSizes& sizes, const void* packed, const float* x, std::int64_t batch,
                   float* h, float* seen, float* inputs, void* scratch) {
    Arena arena(scratch);
    Type::Step(sizes, PackedIn(sizes, packed), x, batch, h, seen, inputs,
               Scratch(sizes, batch, &arena));
  }
};

template <class Type>
constexpr Imputer MakeImputer() {
  using Functions = ImputerFunctions<Type>;
  return {&Functions::PackedBytes, &Functions::Pack, &Functions::ScratchBytes, &Functions::Step,
          &Type::Macs};
}

// A linear layer, packed for Multiply: `size` rows of `depth` columns, and a bias.
struct LinearLayer {
  std::int64_t size;
  std::int64_t depth;
  float* w;
  float* b;

  LinearLayer(std::int64_t size, std::int64_t depth, Arena* arena) : size(size), depth(depth) {
    w = arena->Allocate<float>(PadToLanes(size) * depth);
    b = arena->Allocate<float>(PadToLanes(size));
  }

  void Pack(const Values& rows, const Values& bias) const {
    PackMatrix(rows, size, depth, LargestPanel(1), w);
    PackVector(bias, size, b);
  }

  // computes out (B, padded size) from a (B, depth)
  void Run(const float* a, std::int64_t batch, float* out) const {
    Multiply(a, batch, depth, w, b, Blocks(size), out);
  }
};

// exp(-max(0, a)); 0 for large a.
inline Vec DecayFactor(Vec a) {
  Vec scale;
  const Vec less_one = SplitExp(Clamp(a, 0.0f, 87.0f), -1.0f, &scale);
  return scale * (less_one + 1.0f);
}

// a where mask is above 0, else b.
[[gnu::always_inline]] inline Vec Where(Vec mask, Vec a, Vec b) {
  return {mask.raw > Vec::Raw{} ? a.raw : b.raw};
}

// The values, masks and times of a sample, each padded to whole vectors with zeros.
struct MaskedInput {
  float* values;
  float* masks;
  float* times;

  MaskedInput(std::int64_t features, Arena* arena) {
    for (float** part : {&values, &masks, &times})
      *part = arena->Allocate<float>(PadToLanes(features));
  }

  void Read(const float* x, std::int64_t features) const {
    for (float* to : {values, masks, times}) {
      std::memset(to, 0, Bytes(PadToLanes(features)));
      std::memcpy(to, x, Bytes(features));
      x += features;
    }
  }
};

// Copies the times of all samples to times (B, F).
inline void GatherTimes(const float* x, std::int64_t batch, std::int64_t features, float* times) {
  for (std::int64_t b = 0; b < batch; ++b) {
    std::memcpy(times + b * features, x + (3 * b + 2) * features, Bytes(features));
  }
}

// Multiplies h (B, H) by exp(-max(0, decay)) in place, with decay (B, padded H).
inline void Decay(const float* decay, std::int64_t batch, std::int64_t hidden, float* h) {
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t j = 0; j < hidden; j += kLanes) {
      float factor[kLanes];
      Store(factor, DecayFactor(Load(decay + b * PadToLanes(hidden) + j)));
      for (std::int64_t i = 0; i < kLanes && j + i < hidden; ++i)
        h[b * hidden + j + i] *= factor[i];
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA
