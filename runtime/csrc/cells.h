// SPDX-License-Identifier: Apache-2.0
// The list of cells. A new cell is a header in cells/ and a line in each of the two lists below.
//
// A cell is a struct with
//   kName                op name without the rule's prefix
//   kGates               its gates; W, R, C, V and b stack their rows in this order
//   kStates              names of its states, all (B, H); the first is h, the output, and the
//                        second the c of gates that have it
//   Update(p, q, state)  new states from the pre-activations of its gates, its parameters (mapped)
//                        and the old states; neither gates marked kMid nor, if M is I, parameters
//                        of size I are there
// and may have
//   kParams              further weight inputs, after b in this order
//   kMidExtent           kInput if M, the size of m and of the gates marked kMid, is I, not H
//   Mid(p, q, x, state)  m, from the gates marked kMid, the parameters of size M or 1, and x if M
//                        is I, else the states; where a gate has the term kM
//   kMidVanishes         true: m is zero where the states are
//   kReadsLast           true: W has 2I columns, for x_t and then x_{t-1}; there is no m
//   kSquare              true: I must be H. Update finds the neuron's x after its gates in p; Mid
//                        gets x, the states and all parameters, and gates marked kMid if any

#ifndef EDGERNN_CELLS_H_
#define EDGERNN_CELLS_H_

#include "cells/decaynet.h"
#include "cells/eins.h"
#include "cells/fastgrnn.h"
#include "cells/fastgrnn_split.h"
#include "cells/gru.h"
#include "cells/gru_before.h"
#include "cells/ihc_lstm.h"
#include "cells/irc_fastgrnn.h"
#include "cells/irc_gru.h"
#include "cells/irc_lstm.h"
#include "cells/irc_sru.h"
#include "cells/irc_t_lstm.h"
#include "cells/lstm.h"
#include "cells/pru.h"
#include "cells/rnn.h"
#include "cells/sru.h"
#include "cells/t_lstm.h"

namespace edgernn {

template <class... Types>
struct TypeList {
  static constexpr int kCount = sizeof...(Types);
};

using Cells = TypeList<  //
    Gru,                 //
    GruBefore,           //
    Lstm,                //
    LstmPeephole,        //
    DecayNet,            //
    Pru,                 //
    Rnn,                 //
    Eins,                //
    EinsForget,          //
    EinsFromX,           //
    EinsFromXForget,     //
    Sru,                 //
    SruProjected,        //
    TLstm,               //
    IrcGru,              //
    IrcLstm,             //
    IrcFastGrnn,         //
    IrcSru,              //
    IrcSruProjected,     //
    IrcTLstm,            //
    IrcTLstmProjected,   //
    IhcLstm,             //
    FastGrnn,            //
    FastGrnnSplit>;

}  // namespace edgernn

#endif  // EDGERNN_CELLS_H_
