// SPDX-License-Identifier: Apache-2.0
// Neuron j changes at step t iff a number that depends on t, j and the seed is below the rate.

#ifndef EDGERNN_RULES_RANDOM_H_
#define EDGERNN_RULES_RANDOM_H_

#include "rules/rule.h"

namespace edgernn {

struct Random : RuleDefaults {
  static constexpr const char* kName = "random";
  static constexpr RuleKind kKind = RuleKind::kTime;
  static constexpr MemorySpec kMemories[] = {{"rule_t"}};
  static constexpr WeightSpec kParams[] = {{"rule_rate", OneRow()}, {"rule_seed", OneRow()}};
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_RANDOM_H_
