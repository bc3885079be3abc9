// SPDX-License-Identifier: Apache-2.0
// The list of imputers: what each one adds to the op. How they fill and decay is in imputers/.
//
// Behind an imputer X has 3F columns, values, masks and times, and the cell's I is 2F.

#ifndef EDGERNN_IMPUTERS_H_
#define EDGERNN_IMPUTERS_H_

#include "rules.h"

namespace edgernn {

constexpr int kMaxImputerParams = 10;

// An imputer; `memory` is the name of its own state (B, F), or null.
struct ImputerSpec {
  const char* prefix;
  const char* memory;
  WeightSpec params[kMaxImputerParams];  // those that it lacks have no name
};

// A missing value is the last one observed, drawn to a mean.
struct Grud {
  static constexpr ImputerSpec kSpec = {"GRUD",
                                        "x_seen",
                                        {{"impute_D", {1}, Columns::kFeatures},
                                         {"impute_g", {1}, Columns::kNone},
                                         {"impute_d", {0, 0, 0, 0, 1}, Columns::kNone},
                                         {"impute_e", {0, 0, 0, 0, 1}, Columns::kNone},
                                         {"impute_mean", {0, 0, 0, 0, 1}, Columns::kNone}}};
};

// A missing value is a mix of what the state and the other features say.
struct Rits {
  static constexpr ImputerSpec kSpec = {"RITS",
                                        nullptr,
                                        {{"impute_D", {1}, Columns::kFeatures},
                                         {"impute_g", {1}, Columns::kNone},
                                         {"impute_A", {0, 0, 0, 0, 1}, Columns::kHidden},
                                         {"impute_a", {0, 0, 0, 0, 1}, Columns::kNone},
                                         {"impute_Z", {0, 0, 0, 0, 1}, Columns::kFeatures},
                                         {"impute_z", {0, 0, 0, 0, 1}, Columns::kNone},
                                         {"impute_d", {0, 0, 0, 0, 1}, Columns::kNone},
                                         {"impute_e", {0, 0, 0, 0, 1}, Columns::kNone},
                                         {"impute_B", {0, 0, 0, 0, 1}, Columns::kInput},
                                         {"impute_k", {0, 0, 0, 0, 1}, Columns::kNone}}};
};

using Imputers = TypeList<Grud, Rits>;

}  // namespace edgernn

#endif  // EDGERNN_IMPUTERS_H_
