// SPDX-License-Identifier: Apache-2.0
// Each neuron tires when it changes, and is pressed by what its state and its score were.

#ifndef EDGERNN_RULES_TIRING_H_
#define EDGERNN_RULES_TIRING_H_

#include "rules/rule.h"

namespace edgernn {

struct Tiring : RuleDefaults {
  static constexpr const char* kName = "tiring";
  static constexpr RuleKind kKind = RuleKind::kNeuron;
  static constexpr bool kInclusive = true;
  static constexpr MemorySpec kMemories[] = {{"rule_m", Extent::kHidden},
                                             {"rule_r", Extent::kHidden}};
  static constexpr WeightSpec kParams[] = {{"rule_W", HiddenRows(), Columns::kInput},
                                           {"rule_d", HiddenRows()},
                                           {"rule_b", HiddenRows()},
                                           {"rule_g", HiddenRows()},
                                           {"rule_k", OneRow()}};
  static constexpr int kMatrix = 0;
  static constexpr int kBias = 2;
  static constexpr int kNeuronMacs = 1;

  template <class V>
  static constexpr V Score(V e, V h, const V* m, const V* q) {
    return e + q[1] * h - m[0] + q[4] * m[1];
  }

  template <class V>
  static constexpr V Likelihood(V score, float slope) {
    return Clamp(score * (0.5f * slope) + 0.5f, 0.0f, 1.0f);
  }

  template <class V>
  static constexpr V Evidence(V s, const V* q) {
    return q[1] * s;
  }

  template <class V>
  static constexpr V Drive(V sum, const V* q) {
    return Tanh(q[4] * sum);
  }

  template <class V>
  static constexpr void Advance(V u, V score, V drive, const V* q, V* m) {
    m[0] = Sigmoid(q[3]) * m[0] + u;
    m[1] = (1.0f - u) * (m[1] * 0.5f + score * 0.25f) + drive;
  }
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_TIRING_H_
