// SPDX-License-Identifier: Apache-2.0
// The list of imputers, with the inputs that each adds to the op. The kernel of an imputer is in a
// header of its own.
//
// The X of an op with an imputer has 3F columns: values, masks and times. The cell's I is then 2F.

#pragma once

#include "rules/list.h"

namespace edgernn {

constexpr int kMaxImputerParams = 10;

// The inputs of an imputer. `memory` is the name of its state (B, F), or null.
struct ImputerSpec {
  const char* name;
  const char* memory;
  WeightSpec params[kMaxImputerParams];  // unused entries have no name
};

// GRU-D: a missing value is the last observed one, which decays towards the mean.
struct Grud {
  static constexpr ImputerSpec kSpec = {"gru-d",
                                        "x_seen",
                                        {{"impute_D", HiddenRows(), Columns::kFeatures},
                                         {"impute_g", HiddenRows()},
                                         {"impute_d", FeatureRows()},
                                         {"impute_e", FeatureRows()},
                                         {"impute_mean", FeatureRows()}}};
};

// RITS: a missing value is a blend of estimates from the state and from the other features.
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
