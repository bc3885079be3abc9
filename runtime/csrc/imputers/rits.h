// SPDX-License-Identifier: Apache-2.0
// RITS: a missing value is a blend of two estimates, one from the state and one from the other
// features at the same step.

#pragma once

#include "imputers/make_imputer.h"

namespace edgernn::EDGERNN_ISA {

struct RitsImputer {
  struct Packed {
    LinearLayer decay;
    LinearLayer from_state;
    LinearLayer from_others;
    LinearLayer blend_weight;  // computes the weights of the blend
    float* d;                  // (padded F,)
    float* e;                  // (padded F,)

    Packed(const LayerSizes& sizes, Arena* arena)
        : decay(sizes.hidden, Features(sizes), arena),
          from_state(Features(sizes), sizes.hidden, arena),
          from_others(Features(sizes), Features(sizes), arena),
          blend_weight(Features(sizes), sizes.input, arena) {
      for (float** v : {&d, &e}) *v = arena->Allocate<float>(PadToLanes(Features(sizes)));
    }
  };

  struct Scratch {
    MaskedInput parts;
    float* times;         // (B, F)
    float* decay;         // (B, padded H)
    float* from_state;    // (B, padded F)
    float* filled;        // (F,): the values, with missing ones from the state
    float* from_others;   // (padded F,)
    float* known;         // (2F,): decay factors and masks
    float* blend_weight;  // (padded F,)

    Scratch(const LayerSizes& sizes, std::int64_t batch, Arena* arena)
        : parts(Features(sizes), arena) {
      const std::int64_t padded = PadToLanes(Features(sizes));
      times = arena->Allocate<float>(batch * Features(sizes));
      decay = arena->Allocate<float>(batch * PadToLanes(sizes.hidden));
      from_state = arena->Allocate<float>(batch * padded);
      filled = arena->Allocate<float>(padded);
      from_others = arena->Allocate<float>(padded);
      known = arena->Allocate<float>(2 * padded);
      blend_weight = arena->Allocate<float>(padded);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    const std::int64_t features = Features(sizes);
    to.decay.Pack(from.impute[0], from.impute[1]);
    to.from_state.Pack(from.impute[2], from.impute[3]);
    to.from_others.Pack(from.impute[4], from.impute[5]);
    // the diagonal is zero: the estimate of a feature must not use its own value
    for (std::int64_t j = 0; j < features; ++j) {
      const Panel panel(LargestPanel(1), j / kLanes, Blocks(features));
      to.from_others.w[PackedOffset(panel, j / kLanes, j, 1, features) + j % kLanes] = 0.0f;
    }
    PackVector(from.impute[6], features, to.d);
    PackVector(from.impute[7], features, to.e);
    to.blend_weight.Pack(from.impute[8], from.impute[9]);
  }

  static void Step(const LayerSizes& sizes, const Packed& packed, const float* x,
                   std::int64_t batch, float* h, float*, float* inputs, const Scratch& scratch) {
    const std::int64_t features = Features(sizes);
    const std::uint64_t bytes = Bytes(features);
    GatherTimes(x, batch, features, scratch.times);
    packed.decay.Run(scratch.times, batch, scratch.decay);
    Decay(scratch.decay, batch, sizes.hidden, h);
    packed.from_state.Run(h, batch, scratch.from_state);
    for (std::int64_t b = 0; b < batch; ++b) {
      const MaskedInput& parts = scratch.parts;
      const float* const from_state = scratch.from_state + b * PadToLanes(features);
      parts.Read(x + 3 * b * features, features);
      for (std::int64_t j = 0; j < features; j += kLanes) {
        const Vec mask = Load(parts.masks + j), value = Load(parts.values + j);
        Store(scratch.filled + j, Where(mask, value, Load(from_state + j)));
        const Vec keep =
            DecayFactor(Load(packed.d + j) * Load(parts.times + j) + Load(packed.e + j));
        StoreFirst(scratch.known + j, keep, features - j);
      }
      std::memcpy(scratch.known + features, parts.masks, bytes);
      packed.from_others.Run(scratch.filled, 1, scratch.from_others);
      packed.blend_weight.Run(scratch.known, 1, scratch.blend_weight);
      float* const to = inputs + 2 * b * features;
      for (std::int64_t j = 0; j < features; j += kLanes) {
        const Vec state = Load(from_state + j), others = Load(scratch.from_others + j);
        const Vec blend = state + Sigmoid(Load(scratch.blend_weight + j)) * (others - state);
        const Vec value = Where(Load(parts.masks + j), Load(parts.values + j), blend);
        StoreFirst(to + j, value, features - j);
      }
      std::memcpy(to + features, parts.masks, bytes);
    }
  }

  static std::int64_t Macs(const LayerSizes& sizes) {
    const std::int64_t features = Features(sizes);
    return features * (2 * sizes.hidden + features + sizes.input);
  }
};

}  // namespace edgernn::EDGERNN_ISA
