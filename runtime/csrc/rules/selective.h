// SPDX-License-Identifier: Apache-2.0
// Neurons whose coordinator, a row of x and a weight of their own h, is above zero.

#ifndef EDGERNN_RULES_SELECTIVE_H_
#define EDGERNN_RULES_SELECTIVE_H_

#include "rules/listing.h"

namespace edgernn::EDGERNN_ISA {

struct SelectiveLister {
  static constexpr int kRanks = -1;

  struct Packed {
    float* w;  // packed blocks
    float* d;  // (padded H,)
    float* b;  // (padded H,)

    Packed(const Sizes& sizes, Carver* carver) {
      const std::int64_t padded = Padded(sizes.hidden);
      w = carver->Take<float>(padded * sizes.input);
      d = carver->Take<float>(padded);
      b = carver->Take<float>(padded);
    }
  };

  struct Scratch {
    std::int32_t* neurons;
    float* projected;  // (rows, padded H)

    Scratch(const Sizes& sizes, std::int64_t rows, Carver* carver) {
      neurons = TakeList(sizes.hidden, carver);
      projected = carver->Take<float>(rows * Padded(sizes.hidden));
    }
  };

  static void Pack(const Sizes& sizes, const Weights& from, const Packed& to) {
    PackMatrix(from.rule[0], sizes.hidden, sizes.input, LargestPanel(1), to.w);
    PackVector(from.rule[1], sizes.hidden, to.d);
    PackVector(from.rule[2], sizes.hidden, to.b);
  }

  static void Project(const Sizes& sizes, const Packed& packed, const float* x, std::int64_t rows,
                      const Scratch& scratch) {
    Multiply(x, rows, sizes.input, packed.w, packed.b, Blocks(sizes.hidden), scratch.projected);
  }

  static Listing List(const Sizes& sizes, const Packed& packed, const Scratch& scratch,
                      std::int64_t row, const float* h, float*) {
    const float* projected = scratch.projected + row * Padded(sizes.hidden);
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
      const Vec v = Load(projected + j) + Load(packed.d + j) * Load(h + j);
      count += ListPositive(v, static_cast<std::int32_t>(j), scratch.neurons + count);
    }
    return {count, scratch.neurons, sizes.hidden * sizes.input + sizes.hidden};
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_RULES_SELECTIVE_H_
