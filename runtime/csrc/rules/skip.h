// SPDX-License-Identifier: Apache-2.0
// The whole state changes iff the pressure, which grows while it does not, has reached 1/2.

#ifndef EDGERNN_RULES_SKIP_H_
#define EDGERNN_RULES_SKIP_H_

#include "rules/rule.h"

namespace edgernn {

struct Skip : RuleDefaults {
  static constexpr const char* kName = "skip";
  static constexpr RuleKind kKind = RuleKind::kSample;
  static constexpr MemorySpec kMemories[] = {{"rule_pressure"}};
  static constexpr WeightSpec kParams[] = {{"rule_w", HiddenRows()}, {"rule_b", OneRow()}};
  static constexpr bool kInclusive = true;
  static constexpr int kNeuronMacs = 1;

  template <class V>
  static constexpr V Score(const V* m, const V*) {
    return m[0] - 0.5f;
  }

  template <class V>
  static constexpr V Evidence(V s, const V* q) {
    return q[0] * s;
  }

  template <class V>
  static constexpr V Drive(V sum, const V* q) {
    return Sigmoid(sum + q[1]);
  }

  template <class V>
  static constexpr void Advance(V u, V, V drive, const V*, V* m) {
    m[0] = u * drive + (1.0f - u) * (m[0] + Min(drive, 1.0f - m[0]));
  }
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_SKIP_H_
