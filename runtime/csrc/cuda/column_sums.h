// SPDX-License-Identifier: Apache-2.0
// The sums W x + R h + b that a rule of the kind kColumn keeps, and the values of x and h that they
// were computed from. See cpu/driver_column.h.
//
// Every block finds the values to send itself, as it has all operands, and keeps the sums of its
// rows. The order of summation does not depend on the geometry.

#pragma once

#include "cuda/block_memory.h"
#include "cuda/device_rule.h"

namespace edgernn::cuda {

template <class Cell, int kTile, class Cluster>
struct ColumnSums {
  using Block = BlockMemory<Cell, kTile, Cluster>;
  using RowRange = typename Block::RowRange;
  using Updates = CellGateGroup<Cell, 0, kMid>;
  using Mids = CellGateGroup<Cell, kMid, 0>;

  // a copy: a reference to a member of the kernel's object would keep that in local memory
  const Block block;
  const DeviceRule rule;
  float age = 0.0f;     // steps since the sums were computed anew
  bool renews = false;  // they are computed anew at this step
  int moved_x = 0;      // number of values that are sent at this step
  int moved_h = 0;

  // before and after the loop over time

  EDGERNN_DEVICE void Initialise() {
    const LaunchPlan& plan = block.plan;
    const std::int64_t sample = block.Sample(0);
    const auto load = [&](const SentValues& values, const float* from) {
      from += sample * values.count;
      for (int k = block.cluster.thread(); k < values.count; k += block.cluster.threads()) {
        block.shared[values.sent_at + k] = from[k];
      }
    };
    load(plan.sent_x, block.call.memory_in[0]);
    load(plan.sent_h, block.call.memory_in[1]);
    age = block.call.memory_in[2][sample];
    const float* const from = block.call.memory_in[3] + sample * plan.sums;
    VisitSums([&](int row, float* kept) { *kept = from[row]; });
    const auto load_weights = [&](const PackedRows& rows) {
      LoadColumns(rows.x_by_column, block.RangeOf(rows.count));
      LoadColumns(rows.h_by_column, block.RangeOf(rows.count));
    };
    load_weights(plan.update);
    load_weights(plan.mid);
  }

  EDGERNN_DEVICE void WriteBack() const {
    const LaunchPlan& plan = block.plan;
    const std::int64_t sample = block.Sample(0);
    if (float* const to = block.call.memory_out[3]) {
      VisitSums([&](int row, float* kept) { to[sample * plan.sums + row] = *kept; });
    }
    if (block.cluster.block() != 0) return;
    const auto store = [&](const SentValues& values, float* to) {
      if (to == nullptr) return;
      to += sample * values.count;
      for (int k = block.cluster.thread(); k < values.count; k += block.cluster.threads()) {
        to[k] = block.shared[values.sent_at + k];
      }
    };
    store(plan.sent_x, block.call.memory_out[0]);
    store(plan.sent_h, block.call.memory_out[1]);
    if (block.cluster.thread() == 0 && block.call.memory_out[2] != nullptr) {
      block.call.memory_out[2][sample] = age;
    }
  }

  // steps; `side` is the buffer of the current step, see BlockMemory

  // Sends the values that moved, and lists the columns that the products of this step read.
  EDGERNN_DEVICE void Send(int side) {
    const LaunchPlan& plan = block.plan;
    const DeviceRule::ColumnRule column = rule.ReadColumnRule();
    const float* const h = block.State(0, side);
    const float* const inputs = block.Inputs(side);
    const auto x_at = [&](int k) {
      // the inputs of the last step begin at a multiple of four
      return inputs[k < plan.input ? k : k - plan.input + plan.x_columns / 2];
    };
    const auto h_at = [&](int k) { return h[k]; };
    MarkMoved(plan.sent_x, column.threshold_x, column.largest_change, x_at);
    MarkMoved(plan.sent_h, column.threshold_h, column.largest_change, h_at);
    block.cluster.SyncBlock();
    const Moved x = CountMoved(plan.sent_x, Segments(plan.sent_x));
    const Moved h_moved = CountMoved(plan.sent_h, Segments(plan.sent_h));
    moved_x = x.count;
    moved_h = h_moved.count;
    renews = !(age > 0.0f) || x.jumps || h_moved.jumps;
    age = age + 1.0f < column.period ? age + 1.0f : 0.0f;
    ListMoved(plan.sent_x, x_at);
    ListMoved(plan.sent_h, h_at);
    block.cluster.SyncBlock();
  }

  // The multiply-adds of the listed columns.
  EDGERNN_DEVICE std::int64_t Macs() const {
    const LaunchPlan& plan = block.plan;
    return CountListed(plan.sent_x, moved_x) * plan.x_column_macs +
           CountListed(plan.sent_h, moved_h) * plan.h_column_macs;
  }

  // Adds the products of the listed columns to the kept sums of row `at` of a range, which the
  // first thread of the row then has.
  template <class Set>
  EDGERNN_DEVICE void AddColumns(const PackedRows& rows, const RowRange& range, int at,
                                 const float* row) const {
    const LaunchPlan& plan = block.plan;
    float sums[Set::kSlots] = {};
    AddListed<Set::kXGates>(rows.x_by_column, range, at, plan.sent_x, moved_x, sums);
    AddListed<Set::kHGates>(rows.h_by_column, range, at, plan.sent_h, moved_h, sums);
    float* const kept = Kept<Set>(rows, at);
#pragma unroll
    for (int g = 0; g < Set::kCount; ++g) {
      if (!IsKept<Set>(g)) continue;
      const float sum = block.cluster.Sum(sums[g]);
      if (block.Lane() == 0) kept[g] = (renews ? row[rows.bias + g] : kept[g]) + sum;
    }
  }

  // True if the sums of the gate at this place of a group are kept.
  template <class Set>
  EDGERNN_DEVICE static constexpr bool IsKept(int place) {
    return ((Set::kXGates | Set::kHGates) >> place & 1) != 0;
  }

  // The kept sums (gates,) of row `at` of this block's range.
  template <class Set>
  EDGERNN_DEVICE float* Kept(const PackedRows& rows, int at) const {
    return block.shared + rows.kept_at + at * Set::kCount;
  }

 private:
  struct Moved {
    int count;
    bool jumps;  // a value changed by more than the rule's limit
  };

  EDGERNN_DEVICE static int Segments(const SentValues& values) {
    return (values.count + kRowThreads - 1) / kRowThreads;
  }

  EDGERNN_DEVICE int* Ints(int at) const { return reinterpret_cast<int*>(block.shared + at); }

  EDGERNN_DEVICE std::int64_t CountListed(const SentValues& values, int moved) const {
    return renews ? values.count : moved;
  }

  // Calls visit(row, kept) for the kept sums of this block, and their rows in the memory (P,).
  template <class Visit>
  EDGERNN_DEVICE void VisitSums(const Visit& visit) const {
    VisitSumsOf<Updates>(block.plan.update, block.Neurons(), visit);
    VisitSumsOf<Mids>(block.plan.mid, block.RangeOf(block.plan.middle), visit);
  }

  template <class Set, class Visit>
  EDGERNN_DEVICE void VisitSumsOf(const PackedRows& rows, const RowRange& range,
                                  const Visit& visit) const {
    constexpr GateList all = Set::kGroup.all;
#pragma unroll
    for (int g = 0; g < Set::kCount; ++g) {
      if (!IsKept<Set>(g)) continue;
      const int first = block.plan.sum_rows[all.at[g]] + range.first;
      for (int at = block.cluster.thread(); at < range.count; at += block.cluster.threads()) {
        visit(first + at, Kept<Set>(rows, at) + g);
      }
    }
  }

  // Loads the resident columns of the rows of this block's range.
  EDGERNN_DEVICE void LoadColumns(const PackedColumns& columns, const RowRange& range) const {
    const int width = range.count * columns.gates;
    const float* const from = block.packed + columns.at + range.first * columns.gates;
    float* const to = block.shared + columns.resident_at;
    for (int k = block.ThreadGroup(); k < columns.resident; k += block.ThreadGroups()) {
      for (int i = block.Lane(); i < width; i += kRowThreads) {
        to[k * columns.resident_stride + i] = from[k * columns.stride + i];
      }
    }
  }

  // Marks the values that moved by more than the threshold, as bits of segments of kRowThreads
  // columns; the higher bits count those that moved by more than `limit`.
  template <class ValueAt>
  EDGERNN_DEVICE void MarkMoved(const SentValues& values, float threshold, float limit,
                                const ValueAt& value_at) const {
    const float* const sent = block.shared + values.sent_at;
    for (int i = block.ThreadGroup(); i < Segments(values); i += block.ThreadGroups()) {
      const int k = i * kRowThreads + block.Lane();
      const float distance = k < values.count ? fabsf(value_at(k) - sent[k]) : 0.0f;
      int bits = 0;
      if (k < values.count && distance > threshold) bits = 1 << block.Lane();
      if (bits != 0 && distance > limit) bits += 1 << kRowThreads;
      // exact, as all bits are distinct
      const float sum = block.cluster.Sum(static_cast<float>(bits));
      if (block.Lane() == 0) Ints(values.moved_at)[i] = static_cast<int>(sum);
    }
  }

  // Counts the values that moved in the first `end` segments; all threads of a row must call it.
  EDGERNN_DEVICE Moved CountMoved(const SentValues& values, int end) const {
    constexpr int kMask = (1 << kRowThreads) - 1;
    int count = 0, jumps = 0;
    for (int i = block.Lane(); i < end; i += kRowThreads) {
      const int bits = Ints(values.moved_at)[i];
      count += CountBits(static_cast<unsigned>(bits & kMask));
      jumps += bits >> kRowThreads;
    }
    return {static_cast<int>(block.cluster.Sum(static_cast<float>(count))),
            block.cluster.Sum(static_cast<float>(jumps)) > 0.0f};
  }

  // Sends the values that moved, and lists them in order; or lists all columns with the values that
  // were last sent, if the sums are computed anew.
  template <class ValueAt>
  EDGERNN_DEVICE void ListMoved(const SentValues& values, const ValueAt& value_at) const {
    float* const sent = block.shared + values.sent_at;
    float* const factors = block.shared + values.factor_at;
    int* const list = Ints(values.list_at);
    for (int i = block.ThreadGroup(); i < Segments(values); i += block.ThreadGroups()) {
      const int before = CountMoved(values, i).count;
      const auto bits = static_cast<unsigned>(Ints(values.moved_at)[i]);
      const int k = i * kRowThreads + block.Lane();
      if (k >= values.count) continue;
      const bool moved = (bits >> block.Lane() & 1) != 0;
      const float last = sent[k];
      if (moved) sent[k] = value_at(k);
      if (!moved && !renews) continue;
      const int place = renews ? k : before + CountBits(bits & ((1u << block.Lane()) - 1));
      list[place] = k;
      factors[place] = renews ? sent[k] : sent[k] - last;
    }
  }

  // Adds the listed columns of row `at`, times their factors, to the sums of the gates in kGates;
  // each thread of the row adds a part.
  template <unsigned kGates, int kCount>
  EDGERNN_DEVICE void AddListed(const PackedColumns& columns, const RowRange& range, int at,
                                const SentValues& values, int moved, float (&sums)[kCount]) const {
    if constexpr (kGates != 0) {
      const float* const factors = block.shared + values.factor_at;
      const int* const list = Ints(values.list_at);
      const int end = static_cast<int>(CountListed(values, moved));
      for (int i = block.Lane(); i < end; i += kRowThreads) {
        const int k = list[i];
        const float factor = factors[i];
        const float* weights =
            k < columns.resident
                ? block.shared + columns.resident_at + k * columns.resident_stride
                : block.packed + columns.at + k * columns.stride + range.first * columns.gates;
        weights += at * columns.gates;
#pragma unroll
        for (int g = 0; g < kCount; ++g) {
          if ((kGates >> g & 1) != 0) sums[g] += *weights++ * factor;
        }
      }
    }
  }
};

}  // namespace edgernn::cuda
