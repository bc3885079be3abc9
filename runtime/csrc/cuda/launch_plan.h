// SPDX-License-Identifier: Apache-2.0
// The plan of a launch: its geometry, the layout of packed weights in global memory, and the layout
// of a block's shared memory.
//
// A row of packed weights holds everything that one neuron needs: for each factor (x, h, c, m) the
// weights of the gates that multiply it, then its biases and parameters. The rows are partitioned
// among the blocks of a cluster, and each block keeps as many rows resident in shared memory as
// fit. Under a rule of the kind kColumn the weights of x and h lie by columns instead.

#pragma once

#include <cstdint>

#include "rules/list.h"

namespace edgernn::cuda {

// Number of adjacent threads that read a row of weights, four floats at a time.
constexpr int kRowThreads = 8;

constexpr std::int64_t PadToFour(std::int64_t count) { return (count + 3) / 4 * 4; }

// The number of rows of each block, a multiple of `unit`.
constexpr int RowsPerBlock(int rows, int blocks, int unit) {
  const int units = (rows + unit - 1) / unit;
  return (units + blocks - 1) / blocks * unit;
}

// True if a rule has kernels for a GPU.
constexpr bool RunsOnGpu(const RuleSpec& rule) {
  return rule.IsDense() || (rule.has_equations && rule.pool < 0) ||
         rule.kind == RuleKind::kColumn || rule.kind == RuleKind::kGate;
}

// The offset of a parameter of a rule that does not decide for single neurons, in the region of
// these parameters: first the vectors (hidden,), then the scalars.
constexpr std::int64_t SharedParamAt(const RuleSpec& rule, int param, std::int64_t hidden) {
  std::int64_t vectors = 0, before = 0;
  const bool is_scalar = rule.params[param].rows.one > 0;
  for (int i = 0; i < kMaxRuleParams; ++i) {
    if (!IsRead(rule, i)) continue;
    const bool one = rule.params[i].rows.one > 0;
    vectors += one ? 0 : 1;
    before += i < param && one == is_scalar ? 1 : 0;
  }
  return is_scalar ? vectors * PadToFour(hidden) + before : before * PadToFour(hidden);
}

// The size of the region of these parameters in floats.
constexpr std::int64_t SharedParamFloats(const RuleSpec& rule, std::int64_t hidden) {
  std::int64_t vectors = 0, numbers = 0;
  for (int i = 0; i < kMaxRuleParams; ++i) {
    if (IsRead(rule, i)) ++(rule.params[i].rows.one > 0 ? numbers : vectors);
  }
  return vectors * PadToFour(hidden) + PadToFour(numbers);
}

// The weights of x or h in a gate group, by columns: (columns, rows, gates). A rule of the kind
// kColumn reads the columns of a few values, in which the weights of adjacent rows are adjacent.
struct PackedColumns {
  std::int64_t at;      // offset of the first column in the packed weights
  int count;            // number of columns
  int gates;            // number of gates of a row
  std::int64_t stride;  // size of a column
  // the number of columns of which each block keeps the part of its rows in shared memory; the
  // offset of these parts, and their size
  int resident;
  int resident_at;
  int resident_stride;
};

// Rows of packed weights. Offsets within a row are in floats.
struct PackedRows {
  std::int64_t at;  // offset of the first row in the packed weights
  int count;
  int stride;
  int rule;  // the rule's matrix, under kNeuron
  int x;     // the weights of each factor, gate by gate
  int h;
  int c;
  int m;
  int bias;         // biases of the gates
  int params;       // the cell's parameters with one value per neuron
  int rule_params;  // the rule's other parameters, under kNeuron
  int resident;     // the number of rows that each block keeps in its shared memory
  int resident_at;  // their offset there
  // under kColumn, the weights that the rows lack, and the offset in shared memory of the block's
  // kept sums (rows, gates)
  PackedColumns x_by_column;
  PackedColumns h_by_column;
  int kept_at;
};

// The values of x or h under a rule of the kind kColumn: offsets in shared memory. Each block has
// all values.
struct SentValues {
  int count;      // number of columns
  int sent_at;    // (count,), the values that were last sent
  int moved_at;   // (⌈count / kRowThreads⌉,), the columns that moved, as bits; higher bits: jumps
  int list_at;    // (count,), the columns that products read
  int factor_at;  // (count,), what these columns are multiplied by
};

// The launch geometry. Results do not depend on it.
struct Geometry {
  int tile;     // sequences per cluster
  int blocks;   // blocks per cluster
  int threads;  // threads per block
  int memory;   // shared memory per block in bytes
};

// The plan of a launch; passed to the kernel by value.
struct LaunchPlan {
  int rule;       // index in the list of rules
  RuleKind kind;  // kind of the rule; kTime: all neurons change at every step
  Geometry geometry;
  int input;
  int hidden;
  int middle;      // M, the size of m
  int rank;        // rank of R; 0 if R is a full matrix
  int group_size;  // neighbouring neurons that share a decision
  int groups;      // number of groups; hidden if group_size is 1
  // columns of each factor, padded
  int x_columns;
  int h_columns;
  int c_columns;
  int m_columns;
  PackedRows update;  // gates that update reads, one row per neuron
  PackedRows mid;     // gates that m is computed from
  PackedRows low;     // Q, where R is a product R Q
  PackedRows decide;  // the rule's weights, one row per group; those of `update` without groups
  std::int64_t shared_params;  // offset of the parameters of a rule that is not of the kind kNeuron
  std::int64_t scalars;        // offset of scalar parameters
  std::int64_t floats;         // total size
  // offsets in shared memory, in floats; x and shared states are double-buffered
  int x_at;
  int state_at[kMaxStates];
  int low_at;
  int m_at;
  int shared_params_at;
  int shared_params_floats;
  int counts_at;                // active neurons of each block, double-buffered
  int list_at;                  // the block's active set
  int sample_memories;          // number of memories of a kSample rule
  int neuron_memories;          // number of memories of a kNeuron rule
  int memory_at[kMaxMemories];  // memories of the block's neurons
  SentValues sent_x;            // under kColumn
  SentValues sent_h;
  int sums;                 // P, the number of kept sums of a sequence, under kColumn
  int sum_rows[kMaxGates];  // the first row of each gate among them
  int scores_at;    // scores of the block's neurons, if they have memories; of all, under kGate
  int resident_at;  // resident weights
  // multiply-adds of a decision, of the intermediates of a step, and of a neuron
  std::int64_t rule_macs;
  std::int64_t step_macs;
  std::int64_t neuron_macs;
  // multiply-adds of a column of x and of h, under kColumn
  std::int64_t x_column_macs;
  std::int64_t h_column_macs;
};

}  // namespace edgernn::cuda
