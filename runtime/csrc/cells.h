// SPDX-License-Identifier: Apache-2.0
// The list of cells. A new cell is a header in cells/ and a line in each of the two lists below.
//
// A cell is a struct with
//   kName                op name without the rule's prefix
//   kGates               its gates; W, R, V and b stack their rows in this order
//   kStates              names of its states, all (B, H); the first is h, the output
//   Update(p, state)     new states from the pre-activations of its gates and the old states;
//                        gates marked kMid are not in p
//   Mid(p, state)        m, from the gates marked kMid; only if a gate has the term kM

#ifndef EDGERNN_CELLS_H_
#define EDGERNN_CELLS_H_

#include "cells/gru.h"
#include "cells/gru_before.h"
#include "cells/lstm.h"
#include "cells/pru.h"

namespace edgernn {

template <class... Types>
struct TypeList {
  static constexpr int kCount = sizeof...(Types);
};

using Cells = TypeList<  //
    Gru,                 //
    GruBefore,           //
    Lstm,                //
    Pru>;

}  // namespace edgernn

#endif  // EDGERNN_CELLS_H_
