// SPDX-License-Identifier: Apache-2.0
// Neuron j is open for the first part of its period; its gate fades in and out.

#ifndef EDGERNN_RULES_PHASED_H_
#define EDGERNN_RULES_PHASED_H_

#include "rules/rule.h"

namespace edgernn {

struct Phased : RuleDefaults {
  static constexpr const char* kName = "phased";
  static constexpr RuleKind kKind = RuleKind::kTime;
  static constexpr MemorySpec kMemories[] = {{"rule_t"}};
  static constexpr WeightSpec kParams[] = {
      {"rule_tau", HiddenRows()}, {"rule_s", HiddenRows()}, {"rule_open", OneRow()}};
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_PHASED_H_
