// SPDX-License-Identifier: Apache-2.0
// The selectors of all rules.

#pragma once

#include "selectors/clockwork_selector.h"
#include "selectors/phased_selector.h"
#include "selectors/random_selector.h"
#include "selectors/topk_selector.h"
#include "selectors/variable_selector.h"

namespace edgernn::EDGERNN_ISA {

template <class Rule>
constexpr Selector kSelector = MakeSelector<typename SelectorOf<Rule>::Type>();

// The selector of a rule, or null for a rule whose driver selects no neurons.
template <class Rule>
constexpr const Selector* FindSelector() {
  if constexpr (Rule::kKind == RuleKind::kSample || Rule::kKind == RuleKind::kColumn ||
                DescribeRule<Rule>().IsDense()) {
    return nullptr;
  } else {
    return &kSelector<Rule>;
  }
}

}  // namespace edgernn::EDGERNN_ISA
