// SPDX-License-Identifier: Apache-2.0
// Every neuron changes at every step.

#ifndef EDGERNN_RULES_ALWAYS_H_
#define EDGERNN_RULES_ALWAYS_H_

#include "rules/rule.h"

namespace edgernn {

struct Always : RuleDefaults {
  static constexpr const char* kName = "always";
  static constexpr RuleKind kKind = RuleKind::kTime;
  static constexpr bool kCanSkip = false;
};

}  // namespace edgernn

#endif  // EDGERNN_RULES_ALWAYS_H_
