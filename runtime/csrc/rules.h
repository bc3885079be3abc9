// SPDX-License-Identifier: Apache-2.0
// The list of update rules: what each one adds to the op. How they run is in dense.h, selective.h.

#ifndef EDGERNN_RULES_H_
#define EDGERNN_RULES_H_

#include "cells.h"

namespace edgernn {

// A weight input of shape (rows,), (rows, I) or (rows, H).
enum class Columns { kNone, kInput, kHidden };

struct WeightSpec {
  const char* name;
  Rows rows;
  Columns columns;
};

// Every neuron changes at every step.
struct Always {
  static constexpr const char* kPrefix = "";
  static constexpr bool kSkips = false;
  static constexpr int kParamCount = 0;
  static constexpr const WeightSpec* kParams = nullptr;
};

// Neuron j changes iff (rule_W x_t + rule_b + rule_d * h_{t-1})_j > 0.
struct Selective {
  static constexpr const char* kPrefix = "Selective";
  static constexpr bool kSkips = true;
  static constexpr int kParamCount = 3;
  static constexpr WeightSpec kParams[] = {{"rule_W", {1}, Columns::kInput},
                                           {"rule_d", {1}, Columns::kNone},
                                           {"rule_b", {1}, Columns::kNone}};
};

using Rules = TypeList<Always, Selective>;

}  // namespace edgernn

#endif  // EDGERNN_RULES_H_
