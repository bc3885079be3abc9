// SPDX-License-Identifier: Apache-2.0
// One number a step says how many neurons change, always the first ones, and how many inputs are
// read; at the edge they fade out.

#ifndef EDGERNN_RULES_VARIABLE_H_
#define EDGERNN_RULES_VARIABLE_H_

#include "rules/listing.h"

namespace edgernn::EDGERNN_ISA {

struct VariableLister {
  static constexpr int kRanks = -1;

  struct Packed {
    float* h;      // (padded H,)
    float* x;      // a packed block
    float* b;      // (lanes,)
    float* edge;   // (2,): the sharpness of the edge, and the logit from which it is all or nothing

    Packed(const Sizes& sizes, Carver* carver) {
      h = carver->Take<float>(Padded(sizes.hidden));
      x = carver->Take<float>(kLanes * sizes.input);
      b = carver->Take<float>(kLanes);
      edge = carver->Take<float>(2);
    }
  };

  struct Scratch {
    float* x_mask;      // (padded I,)
    float* state_mask;  // (padded H,)
    std::int32_t* neurons;
    std::int32_t* inputs;
    float* shares;     // (padded H,)
    float* projected;  // (rows, lanes)

    Scratch(const Sizes& sizes, std::int64_t rows, Carver* carver) {
      x_mask = carver->Take<float>(Padded(sizes.input));
      state_mask = carver->Take<float>(Padded(sizes.hidden));
      neurons = TakeList(sizes.hidden, carver);
      inputs = TakeList(sizes.input, carver);
      shares = carver->Take<float>(Padded(sizes.hidden));
      projected = carver->Take<float>(rows * kLanes);
    }
  };

  static void Pack(const Sizes& sizes, const Weights& from, const Packed& to) {
    PackVector(from.rule[0], sizes.hidden, to.h);
    PackMatrix(from.rule[1], 1, sizes.input, LargestPanel(1), to.x);
    PackVector(from.rule[2], 1, to.b);
    to.edge[0] = from.rule[3][0];
    to.edge[1] = __builtin_logf(1.0f / from.rule[4][0] - 1.0f);
  }

  static void Project(const Sizes& sizes, const Packed& packed, const float* x, std::int64_t rows,
                      const Scratch& scratch) {
    Multiply(x, rows, sizes.input, packed.x, packed.b, 1, scratch.projected);
  }

  static Listing List(const Sizes& sizes, const Packed& packed, const Scratch& scratch,
                      std::int64_t row, const float* h, float*) {
    Vec sum = Zero();
    for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
      sum = sum + Load(packed.h + j) * Load(h + j);
    }
    const float dot = Sum4(sum, sum, sum, sum)[0];
    const Vec share = Sigmoid(Fill(scratch.projected[row * kLanes] + dot));
    Listing made{Fade(share, sizes.hidden, packed, scratch.state_mask, scratch.neurons),
                 scratch.neurons, sizes.hidden + sizes.input};
    for (std::int64_t i = 0; i < made.count; ++i) {
      scratch.shares[i] = scratch.state_mask[made.neurons[i]];
    }
    made.shares = scratch.shares;
    made.state_mask = scratch.state_mask;
    made.state_end = End(scratch.neurons, made.count);
    made.x_mask = scratch.x_mask;
    made.x_end =
        End(scratch.inputs, Fade(share, sizes.input, packed, scratch.x_mask, scratch.inputs));
    return made;
  }

 private:
  // What of each of `count` is there if a share of them is; lists those of which anything is.
  static std::int64_t Fade(Vec share, std::int64_t count, const Packed& packed, float* mask,
                           std::int32_t* list) {
    std::int64_t found = 0;
    for (std::int64_t j = 0; j < count; j += kLanes) {
      Vec place;
      for (int lane = 0; lane < kLanes; ++lane) place.raw[lane] = static_cast<float>(j + 1 + lane);
      const Vec depth = (share * static_cast<float>(count) - place) * packed.edge[0];
      const Vec::Raw size = depth.raw < 0.0f ? -depth.raw : depth.raw;
      const Vec::Raw snapped = depth.raw > 0.0f ? Fill(1.0f).raw : Zero().raw;
      const Vec there{size > packed.edge[1] ? snapped : Sigmoid(depth).raw};
      Store(mask + j, there);
      // what is no number is not nothing either
      const Vec any{there.raw == 0.0f ? Zero().raw : Fill(1.0f).raw};
      found += ListPositive(any, static_cast<std::int32_t>(j), list + found);
    }
    while (found > 0 && list[found - 1] >= count) --found;
    return found;
  }

  // Behind the last one of a list.
  static std::int64_t End(const std::int32_t* list, std::int64_t count) {
    return count == 0 ? 0 : list[count - 1] + 1;
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_RULES_VARIABLE_H_
