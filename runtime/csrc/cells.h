// SPDX-License-Identifier: Apache-2.0
// The list of cells. A new cell is a header in cells/ and a line in each of the two lists below.
//
// A cell is a struct with
//   kName                op name without the rule's prefix
//   kGates               its gates; W, R, V and b stack their rows in this order
//   kParams              further weight inputs, after b in this order; may be left out
//   kMidExtent           kInput if M, the size of m and of the gates marked kMid, is I; left out: H
//   kStates              names of its states, all (B, H); the first is h, the output
//   Update(p, q, state)  new states from the pre-activations of its gates, its parameters (mapped)
//                        and the old states; neither gates marked kMid nor, if M is I, parameters
//                        of size I are there
//   Mid(p, q, given)     m, from the gates marked kMid, the parameters of size M or 1, and x if M
//                        is I, else the states; only if a gate has the term kM

#ifndef EDGERNN_CELLS_H_
#define EDGERNN_CELLS_H_

#include "cells/eins.h"
#include "cells/fastgrnn.h"
#include "cells/fastgrnn_split.h"
#include "cells/gru.h"
#include "cells/gru_before.h"
#include "cells/ihc_lstm.h"
#include "cells/irc_fastgrnn.h"
#include "cells/irc_gru.h"
#include "cells/irc_lstm.h"
#include "cells/lstm.h"
#include "cells/pru.h"
#include "cells/rnn.h"

namespace edgernn {

template <class... Types>
struct TypeList {
  static constexpr int kCount = sizeof...(Types);
};

using Cells = TypeList<  //
    Gru,                 //
    GruBefore,           //
    Lstm,                //
    Pru,                 //
    Rnn,                 //
    Eins,                //
    IrcGru,              //
    IrcLstm,             //
    IrcFastGrnn,         //
    IhcLstm,             //
    FastGrnn,            //
    FastGrnnSplit>;

}  // namespace edgernn

#endif  // EDGERNN_CELLS_H_
