// SPDX-License-Identifier: Apache-2.0
// Neuron j changes iff (rule_W x_t + rule_b + rule_d * h_{t-1})_j > 0.

#ifndef EDGERNN_RULES_SELECTIVE_H_
#define EDGERNN_RULES_SELECTIVE_H_

#include "rules/rule.h"

namespace edgernn {

struct Selective : RuleDefaults {
  static constexpr const char* kName = "selective";
  static constexpr RuleKind kKind = RuleKind::kNeuron;
  static constexpr WeightSpec kParams[] = {{"rule_W", HiddenRows(), Columns::kInput},
                                           {"rule_d", HiddenRows()},
                                           {"rule_b", HiddenRows()}};
  static constexpr int kMatrix = 0;
  static constexpr int kBias = 2;
  static constexpr int kNeuronMacs = 1;

  template <class V>
  static constexpr V Score(V e, V h, const V*, const V* q) {
    return e + q[1] * h;
  }

  template <class V>
  static constexpr V Likelihood(V score, float slope) {
    return Clamp(score * (0.5f * slope) + 0.5f, 0.0f, 1.0f);
  }
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_SELECTIVE_H_
