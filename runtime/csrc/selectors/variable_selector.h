// SPDX-License-Identifier: Apache-2.0
// The selector of the rule variable: selects a prefix of the neurons and inputs. Its length is
// computed at each step, and the masks fall off softly at its end.

#pragma once

#include "selectors/neuron_selector.h"

namespace edgernn::EDGERNN_ISA {

struct VariableSelector {
  static constexpr int kRanks = -1;
  static constexpr bool kMasks = true;

  struct Packed {
    float* h;     // (padded H,)
    float* x;     // packed block
    float* b;     // (lanes,)
    float* edge;  // (2,): the sharpness, and the logit above which the mask is exactly 0 or 1

    Packed(const LayerSizes& sizes, Arena* arena) {
      h = arena->Allocate<float>(PadToLanes(sizes.hidden));
      x = arena->Allocate<float>(kLanes * sizes.input);
      b = arena->Allocate<float>(kLanes);
      edge = arena->Allocate<float>(2);
    }
  };

  struct Scratch {
    float* x_mask;      // (padded I,)
    float* state_mask;  // (padded H,)
    std::int32_t* neurons;
    std::int32_t* inputs;
    float* blend;      // (padded H,)
    float* projected;  // (rows, lanes)

    Scratch(const LayerSizes& sizes, std::int64_t rows, Arena* arena) {
      x_mask = arena->Allocate<float>(PadToLanes(sizes.input));
      state_mask = arena->Allocate<float>(PadToLanes(sizes.hidden));
      neurons = AllocateList(sizes.hidden, arena);
      inputs = AllocateList(sizes.input, arena);
      blend = arena->Allocate<float>(PadToLanes(sizes.hidden));
      projected = arena->Allocate<float>(rows * kLanes);
    }
  };

  static void Pack(const LayerSizes& sizes, const Weights& from, const Packed& to) {
    PackVector(from.rule[0], sizes.hidden, to.h);
    PackMatrix(from.rule[1], 1, sizes.input, LargestPanel(1), to.x);
    PackVector(from.rule[2], 1, to.b);
    to.edge[0] = from.rule[3][0];
    to.edge[1] = __builtin_logf(1.0f / from.rule[4][0] - 1.0f);
  }

  static void Project(const LayerSizes& sizes, const Packed& packed, const float* x,
                      std::int64_t rows, const Scratch& scratch) {
    Multiply(x, rows, sizes.input, packed.x, packed.b, 1, scratch.projected);
  }

  static ActiveSet Select(const LayerSizes& sizes, const Packed& packed, const Scratch& scratch,
                          std::int64_t row, const float* h, const float* const*) {
    Vec sum = Zero();
    for (std::int64_t j = 0; j < sizes.hidden; j += kLanes) {
      sum = sum + Load(packed.h + j) * Load(h + j);
    }
    const float dot = Sum4(sum, sum, sum, sum)[0];
    const Vec fraction = Sigmoid(Fill(scratch.projected[row * kLanes] + dot));
    ActiveSet active{WriteMask(fraction, sizes.hidden, packed, scratch.state_mask, scratch.neurons),
                     scratch.neurons, sizes.hidden + sizes.input};
    for (std::int64_t i = 0; i < active.count; ++i) {
      scratch.blend[i] = scratch.state_mask[active.neurons[i]];
    }
    active.blend = scratch.blend;
    active.state_mask = scratch.state_mask;
    active.state_end = End(scratch.neurons, active.count);
    active.x_mask = scratch.x_mask;
    active.x_end = End(scratch.inputs,
                       WriteMask(fraction, sizes.input, packed, scratch.x_mask, scratch.inputs));
    return active;
  }

  static void AdvanceMemory(const LayerSizes&, const Packed&, const Scratch&, const float*,
                            float* const*) {}

 private:
  // Writes the mask of `count` values, of which it keeps a fraction, and lists the nonzero ones.
  // Returns their number.
  static std::int64_t WriteMask(Vec fraction, std::int64_t count, const Packed& packed, float* mask,
                                std::int32_t* list) {
    std::int64_t active_count = 0;
    for (std::int64_t j = 0; j < count; j += kLanes) {
      Vec place;
      for (int lane = 0; lane < kLanes; ++lane) place.raw[lane] = static_cast<float>(j + 1 + lane);
      const Vec depth = (fraction * static_cast<float>(count) - place) * packed.edge[0];
      const Vec::Raw size = depth.raw < 0.0f ? -depth.raw : depth.raw;
      const Vec::Raw snapped = depth.raw > 0.0f ? Fill(1.0f).raw : Zero().raw;
      const Vec kept{size > packed.edge[1] ? snapped : Sigmoid(depth).raw};
      Store(mask + j, kept);
      // NaN counts as active
      const Vec any{kept.raw == 0.0f ? Zero().raw : Fill(1.0f).raw};
      active_count +=
          AppendLanes(PositiveLanes(any), static_cast<std::int32_t>(j), list + active_count);
    }
    while (active_count > 0 && list[active_count - 1] >= count) --active_count;
    return active_count;
  }

  // The index after the last one of a list.
  static std::int64_t End(const std::int32_t* list, std::int64_t count) {
    return count == 0 ? 0 : list[count - 1] + 1;
  }
};

template <>
struct SelectorOf<Variable> {
  using Type = VariableSelector;
};

}  // namespace edgernn::EDGERNN_ISA
