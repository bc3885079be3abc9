// SPDX-License-Identifier: Apache-2.0
// Neuron j changes at the steps that its period divides, and reads from its own kind and slower.

#ifndef EDGERNN_RULES_CLOCKWORK_H_
#define EDGERNN_RULES_CLOCKWORK_H_

#include "rules/rule.h"

namespace edgernn {

struct Clockwork : RuleDefaults {
  static constexpr const char* kName = "clockwork";
  static constexpr RuleKind kKind = RuleKind::kTime;
  static constexpr MemorySpec kMemories[] = {{"rule_t"}};
  static constexpr WeightSpec kParams[] = {{"rule_periods", HiddenRows()}};
  static constexpr bool kThins = true;
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_CLOCKWORK_H_
