// SPDX-License-Identifier: Apache-2.0
// Where a recurrence on a GPU keeps what: its packed weights in the GPU's memory, and what a block
// has of its own on the chip.
//
// A row of packed weights is all that a neuron needs: for each factor (x, h, c, m) the weights of
// the gates that multiply it, then its biases and parameters. A cluster of blocks divides the rows
// among itself, and each block keeps as many of its own on the chip as there is room for.

#ifndef EDGERNN_CUDA_PLAN_H_
#define EDGERNN_CUDA_PLAN_H_

#include <cstdint>

#include "rules.h"

namespace edgernn::cuda {

// A row of weights is read by so many threads side by side, each of them four numbers at a time.
constexpr int kLanes = 8;

// The rules that run on a GPU.
enum class Mode { kAlways, kSelective, kSkip };

constexpr std::int64_t Padded(std::int64_t count) { return (count + 3) / 4 * 4; }

// Rows of packed weights. Places in a row count floats.
struct Rows {
  std::int64_t at;  // of the first one in the packed weights
  int count;
  int stride;
  int rule;  // the rule's weights of x
  int x;     // the weights of each factor, gate after gate
  int h;
  int c;
  int m;
  int bias;    // of the gates
  int params;  // of the cell, those of one value a neuron
  int own;     // the rule's own
};

// How a call is cut up: it does not change what is computed.
struct Geometry {
  int tile;     // sequences of a cluster
  int blocks;   // of a cluster
  int threads;  // of a block
  int memory;   // on the chip, a block's share in bytes
};

struct Plan {
  Mode mode;
  Geometry geometry;
  int input;
  int hidden;
  int middle;  // M, the size of m
  int rank;    // of R; 0 if it is whole
  // the columns of factors, in floats with their padding
  int x_columns;
  int h_columns;
  int c_columns;
  int m_columns;
  Rows update;          // of neurons
  Rows mid;             // of what makes m
  Rows low;             // of Q
  std::int64_t skip;    // the skip rule's weights of the state, then its bias
  std::int64_t single;  // parameters of one value
  std::int64_t floats;  // in all
  // places on the chip, in floats; `state` for each state, `states` a second copy further on
  int x_at;
  int state_at[kMaxStates];
  int low_at;
  int m_at;
  int skip_at;
  int counts_at;  // of the blocks' listed neurons, twice
  int list_at;
  int held_at;
  int held[3];  // rows that are kept on the chip: of update, mid and low
  // multiply-adds: of a decision, of what is done once a step, and of each neuron
  std::int64_t rule_macs;
  std::int64_t step_macs;
  std::int64_t neuron_macs;
};

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_PLAN_H_
