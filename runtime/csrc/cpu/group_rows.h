// SPDX-License-Identifier: Apache-2.0
// Sums over groups of neighbouring neurons that share a decision, and their transposes. The last
// group may have fewer neurons.

#pragma once

#include "cpu/masked_lanes.h"

namespace edgernn::EDGERNN_ISA {

// Functions of one row: of a value per neuron (H,) and a value per group (groups,).
class GroupRows {
 public:
  GroupRows(std::int64_t hidden, std::int64_t group_size)
      : hidden_(hidden), size_(group_size), whole_(hidden / group_size) {}

  // Sums the values of the neurons of each group.
  [[gnu::noinline]] void Sum(const float* from, float* sums) const {
    const std::int64_t vectors = (size_ - 1) / kLanes, left = hidden_ - whole_ * size_;
    const Lanes last(size_ - vectors * kLanes);
    const auto sum = [&](std::int64_t group) {
      const float* const at = from + group * size_;
      Vec total = last.Load(at + vectors * kLanes);
      for (std::int64_t k = 0; k < vectors; ++k) total = total + Load(at + k * kLanes);
      return total;
    };
    std::int64_t group = 0;
    for (; group + 4 <= whole_; group += 4) {
      *reinterpret_cast<LooseQuad*>(sums + group) =
          Sum4(sum(group), sum(group + 1), sum(group + 2), sum(group + 3));
    }
    for (; group < whole_; ++group) sums[group] = SumLanes(sum(group));
    if (left == 0) return;
    Vec total = Zero();
    for (std::int64_t k = 0; k < left; k += kLanes) {
      total = total + Lanes(left - k).Load(from + whole_ * size_ + k);
    }
    sums[whole_] = SumLanes(total);
  }

  // Divides the value of each group by its number of neurons.
  void Divide(float* values) const {
    const float share = 1.0f / static_cast<float>(size_);
    for (std::int64_t group = 0; group < whole_; ++group) values[group] *= share;
    if (hidden_ > whole_ * size_) values[whole_] /= static_cast<float>(hidden_ - whole_ * size_);
  }

  // Adds `value` for each neuron of a group.
  void AddForNeurons(float value, float* sums) const {
    const float all = value * static_cast<float>(size_);
    for (std::int64_t group = 0; group < whole_; ++group) sums[group] += all;
    if (hidden_ > whole_ * size_) {
      sums[whole_] += value * static_cast<float>(hidden_ - whole_ * size_);
    }
  }

  // Copies the value of each group to its neurons.
  [[gnu::noinline]] void Spread(const float* from, float* to) const {
    for (std::int64_t first = 0; first < hidden_; first += size_) {
      const Vec value = Fill(*from++);
      const std::int64_t end = first + size_ < hidden_ ? first + size_ : hidden_;
      // a vector may reach into the next groups, which are written after it
      for (std::int64_t at = first; at < end; at += kLanes) {
        Lanes(hidden_ - at).Store(to + at, value);
      }
    }
  }

 private:
  static float SumLanes(Vec a) { return Sum4(a, a, a, a)[0]; }

  const std::int64_t hidden_;
  const std::int64_t size_;
  const std::int64_t whole_;  // groups with `size_` neurons
};

}  // namespace edgernn::EDGERNN_ISA
