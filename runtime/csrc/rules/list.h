// SPDX-License-Identifier: Apache-2.0
// The list of update rules. A header each says what a rule adds to the op and how it decides.

#ifndef EDGERNN_RULES_LIST_H_
#define EDGERNN_RULES_LIST_H_

#include "common/type_list.h"
#include "rules/always.h"
#include "rules/clockwork.h"
#include "rules/phased.h"
#include "rules/random.h"
#include "rules/selective.h"
#include "rules/skip.h"
#include "rules/variable.h"

namespace edgernn {

using Rules = TypeList<Always, Random, Clockwork, Skip, Selective, Phased, Variable>;

}  // namespace edgernn

#endif  // EDGERNN_RULES_LIST_H_
