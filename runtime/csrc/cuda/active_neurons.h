// SPDX-License-Identifier: Apache-2.0
// The neurons that a rule of the kind kNeuron or kGate updates at a step: how a block selects those
// of its range.

#pragma once

#include "cuda/block_memory.h"
#include "cuda/device_rule.h"

namespace edgernn::cuda {

// `side` is the buffer of the current step, see BlockMemory.
template <class Cell, int kTile, class Cluster>
struct ActiveNeurons {
  using Block = BlockMemory<Cell, kTile, Cluster>;
  using RowRange = typename Block::RowRange;

  // a copy: a reference to a member of the kernel's object would keep that in local memory
  const Block block;
  const DeviceRule rule;

  // This block's active set: indices of neurons in its range, in any order.
  EDGERNN_DEVICE int* List() const {
    return reinterpret_cast<int*>(block.shared + block.plan.list_at);
  }

  // The size of each block's active set at this step, in this block's memory.
  EDGERNN_DEVICE int* Counts(int side) const {
    return reinterpret_cast<int*>(block.shared + block.plan.counts_at) +
           side * block.cluster.blocks();
  }

  EDGERNN_DEVICE std::int64_t Total(int side) const {
    std::int64_t total = 0;
    for (int i = 0; i < block.cluster.blocks(); ++i) total += Counts(side)[i];
    return total;
  }

  // The scores of all neurons, under kGate.
  EDGERNN_DEVICE float* Scores() const { return block.shared + block.plan.scores_at; }

  // Selects by the rule's score of each neuron or group at step t, under kNeuron. Copies the states
  // of the other neurons. Returns the size of the set, and sends it to the other blocks.
  EDGERNN_DEVICE int SelectPositive(const RowRange& range, std::int64_t t, int side) const {
    const LaunchPlan& plan = block.plan;
    const PackedRows& rows = plan.decide;
    const int size = plan.group_size;
    const RowRange groups = size > 1 ? block.RangeOf(plan.groups) : range;
    for (int at = block.ThreadGroup(); at < groups.count; at += block.ThreadGroups()) {
      const float* const row = block.RowAt(rows, groups, at);
      const int first = at * size, left = range.count - first;
      const int end = first + (left < size ? left : size);
      const float h = rule.MeanState(block.State(0, side) + range.first, first, end, block.Lane(),
                                     block.cluster);
      const auto decision = rule.DecideNeuron(row, at, h, [&] {
        float sums[1][kTile] = {};
        Accumulate<1u>(block.Lane(), row + rows.rule, block.Inputs(side), plan.x_columns,
                       static_cast<int>(PadToFour(plan.input)), sums);
        return block.cluster.Sum(sums[0][0]);
      });
      if (plan.neuron_memories > 0 && block.Lane() == 0) {
        block.shared[plan.scores_at + at] = decision.score;
      }
      for (int i = first + block.Lane(); i < end; i += kRowThreads) {
        AddOrKeep(decision.changes, range, t, side, i);
      }
    }
    return SendCount(side);
  }

  // Selects the neurons with the largest scores of all, under kGate. Each neuron counts the neurons
  // that rank above it, so the blocks need no further synchronisation once they have all scores.
  EDGERNN_DEVICE int SelectLargest(const RowRange& range, std::int64_t t, int side) const {
    const int largest = rule.ReadCount();
    for (int at = block.ThreadGroup(); at < range.count; at += block.ThreadGroups()) {
      const bool changes = CountBefore(range.first + at) < largest;
      if (block.Lane() == 0) AddOrKeep(changes, range, t, side, at);
    }
    return SendCount(side);
  }

  // The number of neurons whose scores are larger than that of neuron j, or equal to it at a lower
  // index; NaN equals -infinity. All threads of a row must call it.
  EDGERNN_DEVICE int CountBefore(int j) const {
    const float score = Scores()[j];
    const bool is_least = !(score > -INFINITY);
    const float limit = is_least ? -INFINITY : score;
    const auto is_before = [&](float other, int i) {
      return other > limit || (i < j && (is_least || other == limit)) ? 1 : 0;
    };
    const int hidden = block.plan.hidden;
    int count = 0;
    for (int i = 4 * block.Lane(); i < hidden; i += 4 * kRowThreads) {
      const Float4 other = LoadFloat4(Scores() + i);
      count += is_before(other.x, i);
      if (i + 1 < hidden) count += is_before(other.y, i + 1);
      if (i + 2 < hidden) count += is_before(other.z, i + 2);
      if (i + 3 < hidden) count += is_before(other.w, i + 3);
    }
    return static_cast<int>(block.cluster.Sum(static_cast<float>(count)));
  }

  // Advances the memories of this block's neurons over a step.
  EDGERNN_DEVICE void AdvanceMemories(const RowRange& range, int side) const {
    if (block.plan.neuron_memories == 0) return;
    const float* const after = block.State(EvidenceState(Block::kStates), 1 - side);
    for (int at = block.cluster.thread(); at < range.count; at += block.cluster.threads()) {
      const float* const row = block.RowAt(block.plan.update, range, at);
      rule.AdvanceNeuron(row, at, block.shared[block.plan.scores_at + at], after[range.first + at]);
    }
  }

  // Resets the count in the buffer that was read two steps ago.
  EDGERNN_DEVICE void ResetCount(int side) const {
    if (block.cluster.thread() == 0) Counts(side)[block.cluster.block()] = 0;
    block.cluster.SyncBlock();
  }

 private:
  EDGERNN_DEVICE void AddOrKeep(bool changes, const RowRange& range, std::int64_t t, int side,
                                int at) const {
    if (changes) {
      List()[block.cluster.FetchIncrement(Counts(side) + block.cluster.block())] = at;
    } else {
      block.KeepStates(t, side, range.first + at);
    }
  }

  // Sends the size of this block's set to the other blocks, and returns it.
  EDGERNN_DEVICE int SendCount(int side) const {
    const Cluster& cluster = block.cluster;
    int* const at = Counts(side) + cluster.block();
    cluster.SyncBlock();
    const int count = *at;
    for (int other = cluster.thread(); other < cluster.blocks(); other += cluster.threads()) {
      if (other != cluster.block()) *cluster.AddressIn(other, at) = count;
    }
    return count;
  }
};

}  // namespace edgernn::cuda
