// SPDX-License-Identifier: Apache-2.0
// EINS: m is x, part of it replaced by an estimate from h; gates see m alone. As options, the
// candidate a sees x, and the forget gate has a bias.

#ifndef EDGERNN_CELLS_EINS_H_
#define EDGERNN_CELLS_EINS_H_

#include "cells/lstm.h"

namespace edgernn {

template <bool kFromX, bool kForget>
struct EinsOf {
  static constexpr const char* kName = kFromX    ? kForget ? "EINSFromXForget" : "EINSFromX"
                                       : kForget ? "EINSForget"
                                                 : "EINS";
  static constexpr Extent kMidExtent = Extent::kInput;
  static constexpr Gate kGates[] = {{"d", kX | kH | kBias | kMid},
                                    {"e", kX | kMid},
                                    {"f", kForget ? kM | kBias : kM},
                                    {"i", kM},
                                    {"o", kM},
                                    {"a", kFromX ? kX : kM}};
  static constexpr const char* kStates[] = {"h", "c"};

  template <class V>
  static constexpr V Mid(const V* p, const V*, V x, const V*) {
    const V d = Sigmoid(p[0]);
    return (1.0f - d) * x + d * p[1];
  }

  template <class V>
  static constexpr void Update(const V* p, const V*, V* state) {
    LstmTail(Sigmoid(p[2]), Sigmoid(p[3]), p[5], Sigmoid(p[4]), state);
  }
};

using Eins = EinsOf<false, false>;
using EinsForget = EinsOf<false, true>;
using EinsFromX = EinsOf<true, false>;
using EinsFromXForget = EinsOf<true, true>;

}  // namespace edgernn

#endif  // EDGERNN_CELLS_EINS_H_
