// SPDX-License-Identifier: Apache-2.0
// The plan of a launch: its geometry, the layout of the packed weights in global memory, and that
// of a block's shared memory ("on the chip").
//
// A row of packed weights is all that a neuron needs: for each factor (x, h, c, m) the weights of
// the gates that multiply it, then its biases and parameters. A cluster of blocks divides the rows
// among itself, and each block keeps as many of its own on the chip as there is room for.

#ifndef EDGERNN_CUDA_LAUNCH_PLAN_H_
#define EDGERNN_CUDA_LAUNCH_PLAN_H_

#include <cstdint>

#include "rules/list.h"

namespace edgernn::cuda {

// A row of weights is read by so many threads side by side, each of them four numbers at a time.
constexpr int kRowThreads = 8;

constexpr std::int64_t PadToFour(std::int64_t count) { return (count + 3) / 4 * 4; }

// Where the weights that the equations of a rule of the kind kSample read lie, one of `hidden`
// floats or a number each: vectors first.
constexpr std::int64_t SampleParamAt(const RuleSpec& rule, int param, std::int64_t hidden) {
  std::int64_t vectors = 0, before = 0;
  const bool number = rule.params[param].rows.one > 0;
  for (int i = 0; i < kMaxRuleParams; ++i) {
    if (!IsRead(rule, i)) continue;
    const bool one = rule.params[i].rows.one > 0;
    vectors += one ? 0 : 1;
    before += i < param && one == number ? 1 : 0;
  }
  return number ? vectors * PadToFour(hidden) + before : before * PadToFour(hidden);
}

constexpr std::int64_t SampleParamFloats(const RuleSpec& rule, std::int64_t hidden) {
  std::int64_t vectors = 0, numbers = 0;
  for (int i = 0; i < kMaxRuleParams; ++i) {
    if (IsRead(rule, i)) ++(rule.params[i].rows.one > 0 ? numbers : vectors);
  }
  return vectors * PadToFour(hidden) + PadToFour(numbers);
}

// Rows of packed weights. Places in a row count floats.
struct PackedRows {
  std::int64_t at;  // of the first one in the packed weights
  int count;
  int stride;
  int rule;  // the rule's matrix
  int x;     // the weights of each factor, gate after gate
  int h;
  int c;
  int m;
  int bias;         // of the gates
  int params;       // of the cell, those of one value a neuron
  int rule_params;  // the rule's others, where neurons decide
};

// How a call is cut up: it does not change what is computed.
struct Geometry {
  int tile;     // sequences of a cluster
  int blocks;   // of a cluster
  int threads;  // of a block
  int memory;   // on the chip, a block's share in bytes
};

struct LaunchPlan {
  int rule;       // in the list of rules
  RuleKind kind;  // of the rule; kTime: all neurons change at every step
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
  PackedRows update;    // of neurons
  PackedRows mid;       // of what makes m
  PackedRows low;       // of Q
  std::int64_t sample;  // what the equations of a rule of the kind kSample read
  std::int64_t single;  // parameters of one value
  std::int64_t floats;  // in all
  // places on the chip, in floats; `state` for each state, `states` a second copy further on
  int x_at;
  int state_at[kMaxStates];
  int low_at;
  int m_at;
  int sample_at;
  int sample_floats;
  int counts_at;  // of the blocks' active neurons, twice
  int list_at;
  int sample_memories;          // so many numbers a rule of the kind kSample keeps
  int neuron_memories;          // so many numbers a neuron one of the kind kNeuron keeps
  int memory_at[kMaxMemories];  // of the block's neurons
  int scores_at;                // of the same, where they have memories
  int held_at;
  int held[3];  // rows that are kept on the chip: of update, mid and low
  // multiply-adds: of a decision, of what is done once a step, and of each neuron
  std::int64_t rule_macs;
  std::int64_t step_macs;
  std::int64_t neuron_macs;
};

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_LAUNCH_PLAN_H_
