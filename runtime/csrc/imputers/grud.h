// SPDX-License-Identifier: Apache-2.0
// GRU-D: a missing value is the last one observed, drawn to a mean as time goes by.

#ifndef EDGERNN_IMPUTERS_GRUD_H_
#define EDGERNN_IMPUTERS_GRUD_H_

#include "imputers/filling.h"

namespace edgernn::EDGERNN_ISA {

struct GrudImputer {
  struct Packed {
    Layer decay;
    float* d;  // (padded F,), as are the next two
    float* e;
    float* mean;

    Packed(const Sizes& sizes, Carver* carver) : decay(sizes.hidden, Features(sizes), carver) {
      for (float** v : {&d, &e, &mean}) *v = carver->Take<float>(Padded(Features(sizes)));
    }
  };

  struct Scratch {
    Parts parts;
    float* seen;   // (padded F,)
    float* times;  // (B, F)
    float* decay;  // (B, padded H)

    Scratch(const Sizes& sizes, std::int64_t batch, Carver* carver)
        : parts(Features(sizes), carver) {
      seen = carver->Take<float>(Padded(Features(sizes)));
      times = carver->Take<float>(batch * Features(sizes));
      decay = carver->Take<float>(batch * Padded(sizes.hidden));
    }
  };

  static void Pack(const Sizes& sizes, const Weights& from, const Packed& to) {
    to.decay.Pack(from.impute[0], from.impute[1]);
    PackVector(from.impute[2], Features(sizes), to.d);
    PackVector(from.impute[3], Features(sizes), to.e);
    PackVector(from.impute[4], Features(sizes), to.mean);
  }

  static void Step(const Sizes& sizes, const Packed& packed, const float* x, std::int64_t batch,
                   float* h, float* seen, float* inputs, const Scratch& scratch) {
    const std::int64_t features = Features(sizes);
    const std::size_t bytes = Bytes(features);
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
            Keep(Load(packed.d + j) * Load(scratch.parts.times + j) + Load(packed.e + j));
        const Vec last = Pick(mask, value, Load(scratch.seen + j));
        const Vec drawn = keep * last + (1.0f - keep) * Load(packed.mean + j);
        StoreFirst(seen + b * features + j, last, features - j);
        StoreFirst(to + j, Pick(mask, value, drawn), features - j);
      }
      std::memcpy(to + features, scratch.parts.masks, bytes);
    }
  }

  static std::int64_t Macs(const Sizes& sizes) { return sizes.hidden * Features(sizes); }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_IMPUTERS_GRUD_H_
