// SPDX-License-Identifier: Apache-2.0
// A list of types, such as all cells or all rules.

#pragma once

namespace edgernn {

template <class... Types>
struct TypeList {
  static constexpr int kCount = sizeof...(Types);
};

}  // namespace edgernn
