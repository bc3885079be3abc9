// SPDX-License-Identifier: Apache-2.0
// A list of types, such as all cells or all rules.

#ifndef EDGERNN_COMMON_TYPE_LIST_H_
#define EDGERNN_COMMON_TYPE_LIST_H_

namespace edgernn {

template <class... Types>
struct TypeList {
  static constexpr int kCount = sizeof...(Types);
};

}  // namespace edgernn

#endif  // EDGERNN_COMMON_TYPE_LIST_H_
