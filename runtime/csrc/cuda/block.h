// SPDX-License-Identifier: Apache-2.0
// The shared memory of a block of threads, and how it is filled and written back.

#ifndef EDGERNN_CUDA_BLOCK_H_
#define EDGERNN_CUDA_BLOCK_H_

#include "common/kernel.h"
#include "cuda/dot_products.h"

namespace edgernn::cuda {

template <class Cell, int kTile, class Team>
struct Block {
  static constexpr int kStates = kStateCount<Cell>;

  // the kernel's arguments, not another object's: else the compiler keeps all of it in memory
  const LaunchPlan& plan;
  const Call& call;
  const float* const packed;
  const Team team;
  float* const chip;
  const std::int64_t first_row;  // the first sequence of the tile

  // The states that all blocks need: what weights multiply, and what the evidence of a rule is read
  // from.
  EDGERNN_DEVICE bool IsShared(int state) const {
    return state < kFactorStates<Cell> || (plan.kind == RuleKind::kSample && state < 2);
  }

  // where things are

  EDGERNN_DEVICE float* Inputs(int side) const {
    return chip + plan.x_at + side * kTile * plan.x_columns;
  }
  EDGERNN_DEVICE int Wide() const { return static_cast<int>(PadToFour(plan.hidden)); }
  // A shared state has two sides, which take turns.
  EDGERNN_DEVICE float* State(int state, int side) const {
    return chip + plan.state_at[state] + (IsShared(state) ? side * kTile * Wide() : 0);
  }

  // This block's share of `count` rows.
  struct Share {
    int first;
    int count;
  };
  EDGERNN_DEVICE Share ShareOf(int count) const {
    const int most = (count + team.blocks() - 1) / team.blocks();
    const int first = most * team.block();
    const int left = count - first;
    return {first, left < 0 ? 0 : left < most ? left : most};
  }

  // Where the weights of row `at` of this block's share are: on the chip if they are kept there.
  EDGERNN_DEVICE const float* RowAt(const PackedRows& rows, int held, int held_at,
                                    const Share& share, int at) const {
    return at < held ? chip + held_at + at * rows.stride
                     : packed + rows.at + static_cast<std::int64_t>(share.first + at) * rows.stride;
  }
  EDGERNN_DEVICE int HeldAt(int region) const {
    int at = plan.held_at;
    if (region > 0) at += plan.held[0] * plan.update.stride;
    if (region > 1) at += plan.held[1] * plan.mid.stride;
    return at;
  }

  EDGERNN_DEVICE bool IsThere(int row) const { return first_row + row < call.batch; }
  // The sequence that a row of the tile has, where it has none any other.
  EDGERNN_DEVICE std::int64_t Sample(int row) const {
    const std::int64_t sample = first_row + row;
    return sample < call.batch ? sample : call.batch - 1;
  }

  // Writes to a place on the chip of every block of the cluster.
  EDGERNN_DEVICE void Spread(float* at, float value) const {
    for (int block = 0; block < team.blocks(); ++block) *team.Of(block, at) = value;
  }

  // inputs
  EDGERNN_DEVICE float Input(std::int64_t t, int row, int j) const {
    return call.x[(t * call.batch + Sample(row)) * plan.input + j];
  }

  // The i-th number of the tile's inputs at step t.
  EDGERNN_DEVICE float InputAt(std::int64_t t, int i) const {
    return t < call.steps && i < kTile * plan.input ? Input(t, i / plan.input, i % plan.input)
                                                    : 0.0f;
  }

  EDGERNN_DEVICE void PutInput(int side, std::int64_t t, int i, float value) const {
    const int row = i / plan.input, j = i % plan.input;
    float* const to = Inputs(side) + row * plan.x_columns + j;
    *to = value;
    if constexpr (kReadsLast<Cell>) {
      to[plan.x_columns / 2] =
          t > 0 ? Input(t - 1, row, j) : call.last_in[Sample(row) * plan.input + j];
    }
  }

  // x_t, of which the first number of each thread may be there already.
  EDGERNN_DEVICE void PutInputs(int side, std::int64_t t, float first) const {
    if (t >= call.steps) return;
    int i = team.thread();
    if (i < kTile * plan.input) PutInput(side, t, i, first);
    for (i += team.threads(); i < kTile * plan.input; i += team.threads()) {
      PutInput(side, t, i, InputAt(t, i));
    }
  }

  // before and after

  EDGERNN_DEVICE void Copy(const PackedRows& rows, int region) const {
    const Share share = ShareOf(rows.count);
    const int rows_held = plan.held[region] < share.count ? plan.held[region] : share.count;
    const float* const from =
        packed + rows.at + static_cast<std::int64_t>(share.first) * rows.stride;
    float* const to = chip + HeldAt(region);
    for (int i = 4 * team.thread(); i < rows_held * rows.stride; i += 4 * team.threads()) {
      const Four a = LoadFour(from + i);
      to[i] = a.x;
      to[i + 1] = a.y;
      to[i + 2] = a.z;
      to[i + 3] = a.w;
    }
  }

  EDGERNN_DEVICE void Start() const {
    for (int i = team.thread(); i < plan.held_at; i += team.threads()) chip[i] = 0.0f;
    team.Sync();
    Copy(plan.update, 0);
    Copy(plan.mid, 1);
    Copy(plan.low, 2);
    for (int s = 0; s < kStates; ++s) {
      for (int i = team.thread(); i < kTile * plan.hidden; i += team.threads()) {
        const int row = i / plan.hidden, j = i % plan.hidden;
        State(s, 0)[row * Wide() + j] = call.state_in[s][Sample(row) * plan.hidden + j];
      }
    }
    const Share share = ShareOf(plan.hidden);
    for (int i = 0; i < plan.neuron_memories; ++i) {
      const float* const from = call.memory_in[i] + Sample(0) * plan.hidden + share.first;
      for (int at = team.thread(); at < share.count; at += team.threads()) {
        chip[plan.memory_at[i] + at] = from[at];
      }
    }
    for (int i = team.thread(); i < plan.sample_floats; i += team.threads()) {
      chip[plan.sample_at + i] = packed[plan.sample + i];
    }
  }

  // side: where the last states are.
  EDGERNN_DEVICE void Finish(int side) const {
    const Share share = ShareOf(plan.hidden);
    for (int s = 0; s < kStates; ++s) {
      if (call.state_out[s] == nullptr) continue;
      for (int i = team.thread(); i < kTile * share.count; i += team.threads()) {
        const int row = i / share.count, j = share.first + i % share.count;
        if (!IsThere(row)) continue;
        call.state_out[s][Sample(row) * plan.hidden + j] = State(s, side)[row * Wide() + j];
      }
    }
    for (int i = 0; i < plan.neuron_memories; ++i) {
      if (call.memory_out[i] == nullptr) continue;
      float* const to = call.memory_out[i] + Sample(0) * plan.hidden + share.first;
      for (int at = team.thread(); at < share.count; at += team.threads()) {
        to[at] = chip[plan.memory_at[i] + at];
      }
    }
    if (call.last_out == nullptr || team.block() != 0) return;
    for (int i = team.thread(); i < kTile * plan.input; i += team.threads()) {
      const int row = i / plan.input, j = i % plan.input;
      if (!IsThere(row)) continue;
      call.last_out[Sample(row) * plan.input + j] = Input(call.steps - 1, row, j);
    }
  }
};

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_BLOCK_H_
