// SPDX-License-Identifier: Apache-2.0
// The list of imputers: what each one adds to the op. A header each has its kernel.
//
// Behind an imputer X has 3F columns, values, masks and times, and the cell's I is 2F.

#ifndef EDGERNN_IMPUTERS_LIST_H_
#define EDGERNN_IMPUTERS_LIST_H_

#include "rules/list.h"

namespace edgernn {

constexpr int kMaxImputerParams = 10;

// An imputer; `memory` is the name of its own state (B, F), or null.
struct ImputerSpec {
  const char* name;
  const char* memory;
  WeightSpec params[kMaxImputerParams];  // those that it lacks have no name
};

// A missing value is the last one observed, drawn to a mean.
struct Grud {
  static constexpr ImputerSpec kSpec = {"gru-d",
                                        "x_seen",
                                        {{"impute_D", HiddenRows(), Columns::kFeatures},
                                         {"impute_g", HiddenRows()},
                                         {"impute_d", FeatureRows()},
                                         {"impute_e", FeatureRows()},
                                         {"impute_mean", FeatureRows()}}};
};

// A missing value is a mix of what the state and the other features say.
struct Rits {
  static constexpr ImputerSpec kSpec = {"rits",
                                        nullptr,
                                        {{"impute_D", HiddenRows(), Columns::kFeatures},
                                         {"impute_g", HiddenRows()},
                                         {"impute_A", FeatureRows(), Columns::kHidden},
                                         {"impute_a", FeatureRows()},
                                         {"impute_Z", FeatureRows(), Columns::kFeatures},
                                         {"impute_z", FeatureRows()},
                                         {"impute_d", FeatureRows()},
                                         {"impute_e", FeatureRows()},
                                         {"impute_B", FeatureRows(), Columns::kInput},
                                         {"impute_k", FeatureRows()}}};
};

using Imputers = TypeList<Grud, Rits>;

}  // namespace edgernn

#endif  // EDGERNN_IMPUTERS_LIST_H_
