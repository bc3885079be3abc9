// SPDX-License-Identifier: Apache-2.0
// GRU-D: a missing value is the last observed one, which decays towards the mean over time.

#pragma once

#include "imputers/make_imputer.h"

namespace edgernn::EDGERNN_ISA {

struct GrudImputer {
  struct Packed {
    LinearLayer decay;
    float* d;     // (padded F,)
    float* e;     // (padded F,)
    float* mean;  // (padded F,)

    Packed(const LayerSizes& sizes, Arena* arena) : decay(sizes.hidden, Features(sizes), arena) {
      for (float** v : {&d, &e, &mean}) *v = arena->Allocate<float>(PadToLanes(Features(sizes)));
    }
  };

  struct Scratch {
    MaskedInput parts;
    float* seen;   // (padded F,)
    float* times;  // (B, F)
    float* decay;  // (B, padded H)

    Scratch(const LayerSizes& sizes, std::int64_t batch, Arena* arena)
        : parts(Features(sizes), arena) {
      seen = arena->Allocate<float>(PadToLanes(Features(sizes)));
      times = arena->Allocate<float>(batch * Features(sizes));
      decay = arena->Allocate<float>(batch * PadToLanes(sizes.hidden));
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    to.decay.Pack(from.impute[0], from.impute[1]);
    PackVector(from.impute[2], Features(sizes), to.d);
    PackVector(from.impute[3], Features(sizes), to.e);
    PackVector(from.impute[4], Features(sizes), to.mean);
  }

  static void Step(const LayerSizes& sizes, const Packed& packed, const float* x,
                   std::int64_t batch, float* h, float* seen, float* inputs,
                   const Scratch& scratch) {
    const std::int64_t features = Features(sizes);
    const std::uint64_t bytes = Bytes(features);
    GatherTimes(x, batch, features, scratch.times);
    packed.decay.Run(scratch.times, batch, scratch.decay);
    Decay(scratch.decay, batch, sizes.hidden, h);
    for (std::int64_t b = 0; b < batch; ++b) {
      scratch.parts.Read(x + 3 * b * features, features);
      std::memcpy(scratch.seen, seen + b * features, bytes);
      float* const to = inputs + 2 * b * features;
      for (std::int64_t j = 0; j < features; j += kLanes) {
        const Vec value = Load(scratch.parts.values + j), mask = Load(scratch.parts.masks + j);
        const Vec keep =
            DecayFactor(Load(packed.d + j) * Load(scratch.parts.times + j) + Load(packed.e + j));
        const Vec last = Where(mask, value, Load(scratch.seen + j));
        const Vec decayed = keep * last + (1.0f - keep) * Load(packed.mean + j);
        StoreFirst(seen + b * features + j, last, features - j);
        StoreFirst(to + j, Where(mask, value, decayed), features - j);
      }
      std::memcpy(to + features, scratch.parts.masks, bytes);
    }
  }

  static std::int64_t Macs(const LayerSizes& sizes) { return sizes.hidden * Features(sizes); }
};

}  // namespace edgernn::EDGERNN_ISA
