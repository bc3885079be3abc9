// SPDX-License-Identifier: Apache-2.0
// The shared memory of a thread block: where everything lies in it, how it is filled and written
// back, and how a step stores states and outputs.

#pragma once

#include "cuda/dot_products.h"
#include "kernel/kernel.h"

namespace edgernn::cuda {

template <class Cell, int kTile, class Cluster>
struct BlockMemory {
  static constexpr int kStates = kStateCount<Cell>;

  // references to the kernel's arguments: copies would be kept in local memory
  const LaunchPlan& plan;
  const Call& call;
  const float* const packed;
  const Cluster cluster;
  float* const shared;
  const std::int64_t first_row;  // the first sequence of the tile

  // The kRowThreads threads that share a row, and the place of this thread among them.
  EDGERNN_DEVICE int ThreadGroup() const { return cluster.thread() / kRowThreads; }
  EDGERNN_DEVICE int ThreadGroups() const { return cluster.threads() / kRowThreads; }
  EDGERNN_DEVICE int Lane() const { return cluster.thread() % kRowThreads; }

  // True for states that every block of the cluster reads: operands of products, and the state that
  // a rule's evidence reads.
  EDGERNN_DEVICE bool IsShared(int state) const {
    return state < kFactorStates<Cell> || (plan.kind == RuleKind::kSample && state < 2);
  }

  // addresses; the `side` selects one of two buffers

  EDGERNN_DEVICE float* Inputs(int side) const {
    return shared + plan.x_at + side * kTile * plan.x_columns;
  }
  EDGERNN_DEVICE int StateStride() const { return static_cast<int>(PadToFour(plan.hidden)); }
  // Shared states are double-buffered.
  EDGERNN_DEVICE float* State(int state, int side) const {
    return shared + plan.state_at[state] + (IsShared(state) ? side * kTile * StateStride() : 0);
  }

  // The rows that this block owns.
  struct RowRange {
    int first;
    int count;
  };
  // Partitions `count` rows among the blocks of the cluster, in multiples of `unit`.
  EDGERNN_DEVICE RowRange RangeOf(int count, int unit = 1) const {
    const int rows_per_block = RowsPerBlock(count, cluster.blocks(), unit);
    const int first = rows_per_block * cluster.block();
    const int remaining = count - first;
    return {first, remaining < 0 ? 0 : remaining < rows_per_block ? remaining : rows_per_block};
  }

  // The neurons of this block, which are whole groups.
  EDGERNN_DEVICE RowRange Neurons() const { return RangeOf(plan.hidden, plan.group_size); }

  // The weights of row `at` of this block's range: in shared memory if resident, else global
  // memory.
  EDGERNN_DEVICE const float* RowAt(const PackedRows& rows, const RowRange& range, int at) const {
    return at < rows.resident
               ? shared + rows.resident_at + at * rows.stride
               : packed + rows.at + static_cast<std::int64_t>(range.first + at) * rows.stride;
  }

  EDGERNN_DEVICE bool IsInBatch(int row) const { return first_row + row < call.batch; }
  // The sequence of a row of the tile; the last sequence where the batch ends before the tile.
  EDGERNN_DEVICE std::int64_t Sample(int row) const {
    const std::int64_t sample = first_row + row;
    return sample < call.batch ? sample : call.batch - 1;
  }

  // Writes to the same address in the shared memory of every block of the cluster.
  EDGERNN_DEVICE void Broadcast(float* at, float value) const {
    for (int block = 0; block < cluster.blocks(); ++block) *cluster.AddressIn(block, at) = value;
  }

  // states and outputs

  // Stores a new state where the next step reads it; `side` is that of the current step.
  EDGERNN_DEVICE void StoreState(int state, int side, int offset, float value) const {
    if (IsShared(state)) {
      Broadcast(State(state, 1 - side) + offset, value);
    } else {
      State(state, 0)[offset] = value;
    }
  }

  // Copies the states of neuron j, which does not change, to where the next step reads them.
  EDGERNN_DEVICE void KeepStates(std::int64_t t, int side, int j) const {
    for (int s = 0; s < kStates; ++s) {
      if (IsShared(s)) StoreState(s, side, j, State(s, side)[j]);
    }
    WriteOutput(t, 0, j, State(0, side)[j]);
  }

  EDGERNN_DEVICE void WriteOutput(std::int64_t t, int row, int j, float h) const {
    if (call.y == nullptr || !IsInBatch(row)) return;
    call.y[(t * call.batch + Sample(row)) * plan.hidden + j] = h;
  }

  // Writes the number of updates of step t of the tile's only sequence.
  EDGERNN_DEVICE void WriteUpdates(std::int64_t t, std::int64_t count) const {
    if (cluster.block() != 0 || cluster.thread() != 0 || call.updates == nullptr) return;
    call.updates[t * call.batch + Sample(0)] = count;
  }

  // inputs

  EDGERNN_DEVICE float Input(std::int64_t t, int row, int j) const {
    return call.x[(t * call.batch + Sample(row)) * plan.input + j];
  }

  // Element i of the tile's inputs at step t; 0 past the end.
  EDGERNN_DEVICE float InputAt(std::int64_t t, int i) const {
    return t < call.steps && i < kTile * plan.input ? Input(t, i / plan.input, i % plan.input)
                                                    : 0.0f;
  }

  EDGERNN_DEVICE void StoreInput(int side, std::int64_t t, int i, float value) const {
    const int row = i / plan.input, j = i % plan.input;
    float* const to = Inputs(side) + row * plan.x_columns + j;
    *to = value;
    if constexpr (kReadsLast<Cell>) {
      to[plan.x_columns / 2] =
          t > 0 ? Input(t - 1, row, j) : call.last_in[Sample(row) * plan.input + j];
    }
  }

  // Stores x_t; `first` is each thread's first element, loaded before.
  EDGERNN_DEVICE void StoreInputs(int side, std::int64_t t, float first) const {
    if (t >= call.steps) return;
    int i = cluster.thread();
    if (i < kTile * plan.input) StoreInput(side, t, i, first);
    for (i += cluster.threads(); i < kTile * plan.input; i += cluster.threads()) {
      StoreInput(side, t, i, InputAt(t, i));
    }
  }

  // before and after the loop over time

  EDGERNN_DEVICE void LoadWeights(const PackedRows& rows, const RowRange& range) const {
    const int resident_rows = rows.resident < range.count ? rows.resident : range.count;
    const float* const from =
        packed + rows.at + static_cast<std::int64_t>(range.first) * rows.stride;
    float* const to = shared + rows.resident_at;
    for (int i = 4 * cluster.thread(); i < resident_rows * rows.stride;
         i += 4 * cluster.threads()) {
      const Float4 a = LoadFloat4(from + i);
      to[i] = a.x;
      to[i + 1] = a.y;
      to[i + 2] = a.z;
      to[i + 3] = a.w;
    }
  }

  EDGERNN_DEVICE void Initialise() const {
    for (int i = cluster.thread(); i < plan.resident_at; i += cluster.threads()) shared[i] = 0.0f;
    cluster.SyncBlock();
    LoadWeights(plan.update, Neurons());
    LoadWeights(plan.mid, RangeOf(plan.mid.count));
    LoadWeights(plan.low, RangeOf(plan.low.count));
    if (plan.group_size > 1) LoadWeights(plan.decide, RangeOf(plan.groups));
    for (int s = 0; s < kStates; ++s) {
      for (int i = cluster.thread(); i < kTile * plan.hidden; i += cluster.threads()) {
        const int row = i / plan.hidden, j = i % plan.hidden;
        State(s, 0)[row * StateStride() + j] = call.state_in[s][Sample(row) * plan.hidden + j];
      }
    }
    const RowRange range = Neurons();
    for (int i = 0; i < plan.neuron_memories; ++i) {
      const float* const from = call.memory_in[i] + Sample(0) * plan.hidden + range.first;
      for (int at = cluster.thread(); at < range.count; at += cluster.threads()) {
        shared[plan.memory_at[i] + at] = from[at];
      }
    }
    for (int i = cluster.thread(); i < plan.shared_params_floats; i += cluster.threads()) {
      shared[plan.shared_params_at + i] = packed[plan.shared_params + i];
    }
  }

  // Writes the final states, which are in the buffer `side`, to global memory.
  EDGERNN_DEVICE void WriteBack(int side) const {
    const RowRange range = Neurons();
    for (int s = 0; s < kStates; ++s) {
      if (call.state_out[s] == nullptr) continue;
      for (int i = cluster.thread(); i < kTile * range.count; i += cluster.threads()) {
        const int row = i / range.count, j = range.first + i % range.count;
        if (!IsInBatch(row)) continue;
        call.state_out[s][Sample(row) * plan.hidden + j] = State(s, side)[row * StateStride() + j];
      }
    }
    for (int i = 0; i < plan.neuron_memories; ++i) {
      if (call.memory_out[i] == nullptr) continue;
      float* const to = call.memory_out[i] + Sample(0) * plan.hidden + range.first;
      for (int at = cluster.thread(); at < range.count; at += cluster.threads()) {
        to[at] = shared[plan.memory_at[i] + at];
      }
    }
    if (call.last_out == nullptr || cluster.block() != 0) return;
    for (int i = cluster.thread(); i < kTile * plan.input; i += cluster.threads()) {
      const int row = i / plan.input, j = i % plan.input;
      if (!IsInBatch(row)) continue;
      call.last_out[Sample(row) * plan.input + j] = Input(call.steps - 1, row, j);
    }
  }
};

}  // namespace edgernn::cuda
