// SPDX-License-Identifier: Apache-2.0
// The first neurons change, and read the first inputs; x_t and h_{t-1} say how many of them.

#ifndef EDGERNN_RULES_VARIABLE_H_
#define EDGERNN_RULES_VARIABLE_H_

#include "rules/rule.h"

namespace edgernn {

struct Variable : RuleDefaults {
  static constexpr const char* kName = "variable";
  static constexpr RuleKind kKind = RuleKind::kNeuron;
  static constexpr bool kMasks = true;
  static constexpr WeightSpec kParams[] = {{"rule_h", HiddenRows()},
                                           {"rule_x", InputRows()},
                                           {"rule_b", OneRow()},
                                           {"rule_sharpness", OneRow()},
                                           {"rule_epsilon", OneRow()}};
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_VARIABLE_H_
