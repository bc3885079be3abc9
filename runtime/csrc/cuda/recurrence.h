// SPDX-License-Identifier: Apache-2.0
// The GPU kernel: a cluster of thread blocks runs whole sequences of any cell in one launch.
//
// Each cluster processes a tile of sequences, and each of its blocks owns a range of the neurons,
// with their weights resident in shared memory as far as they fit. Every block has a copy of all
// operands of products: a new value is broadcast to all copies. The cluster synchronises once per
// step, and once more for each intermediate (Q h, m), or for the scores of a rule of the kind
// kGate.
//
// The template parameter Cluster has the interface of ClusterGroup (cuda/cluster_group.h).

#pragma once

#include "cuda/active_neurons.h"
#include "cuda/column_sums.h"

namespace edgernn::cuda {

template <class Cell, int kTile, class Cluster>
class Recurrence {
 public:
  EDGERNN_DEVICE Recurrence(const LaunchPlan& plan, const Call& call, const float* packed,
                            const Cluster& cluster)
      : plan_(plan),
        call_(call),
        packed_(packed),
        cluster_(cluster),
        shared_(cluster.memory()),
        block_{plan,
               call,
               packed,
               cluster,
               cluster.memory(),
               std::int64_t{cluster.cluster_index()} * kTile},
        rule_{plan, cluster.memory()},
        active_{block_, rule_},
        columns_{block_, rule_},
        group_(block_.ThreadGroup()),
        lane_(block_.Lane()),
        groups_(block_.ThreadGroups()) {}

  EDGERNN_DEVICE void Run() {
    block_.Initialise();
    ReadScalarParams();
    // one loop for all rules, so that their common code is compiled once
    const RowRange range = block_.Neurons();
    const bool waits = Decides(RuleKind::kSample), sends = Decides(RuleKind::kColumn);
    const bool selects = Decides(RuleKind::kNeuron), ranks = Decides(RuleKind::kGate);
    if (sends) columns_.Initialise();
    if (!waits) block_.StoreInputs(0, 0, block_.InputAt(0, cluster_.thread()));
    cluster_.SyncCluster();
    if (waits) StartSample();
    for (std::int64_t t = 0; t < call_.steps; ++t) {
      if (waits && SampleWaits(range, t)) continue;
      // prefetch the next input during this step
      const float ahead = waits ? 0.0f : block_.InputAt(t + 1, cluster_.thread());
      if (waits) {
        block_.StoreInputs(side_, t, block_.InputAt(t, cluster_.thread()));
        cluster_.SyncBlock();
      }
      if (sends) columns_.Send(side_);
      int count = range.count;
      if (selects) count = active_.SelectPositive(range, t, side_);
      if (ranks) ComputeScores(range);
      if (NeedsIntermediates()) {
        if (selects) cluster_.SyncCluster();
        if (!selects || active_.Total(side_) > 0) ComputeIntermediates();
      } else if (ranks) {
        cluster_.SyncCluster();
      }
      if (ranks) count = active_.SelectLargest(range, t, side_);
      for (int i = group_; i < count; i += groups_) {
        Update(range, t, selects || ranks ? active_.List()[i] : i);
      }
      if (!waits) block_.StoreInputs(1 - side_, t + 1, ahead);
      cluster_.SyncCluster();
      if (selects || ranks) EndNeurons(range, t);
      if (sends) EndColumns(t);
      side_ = 1 - side_;
      if (selects || ranks) active_.ResetCount(side_);
      if (waits) EndSample();
    }
    // outputs may alias inputs that other blocks still read
    cluster_.SyncCluster();
    block_.WriteBack(side_);
    if (sends) columns_.WriteBack();
    FinishRule();
  }

 private:
  using ThisBlock = BlockMemory<Cell, kTile, Cluster>;
  using RowRange = typename ThisBlock::RowRange;
  using Updates = CellGateGroup<Cell, 0, kMid>;
  using Mids = CellGateGroup<Cell, kMid, 0>;
  static constexpr int kStates = kStateCount<Cell>;

  // True under rules of this kind, under which a tile is one sequence.
  EDGERNN_DEVICE bool Decides(RuleKind kind) const { return kTile == 1 && plan_.kind == kind; }

  // Properties of the cell's parameters as constants, as its list is not in device memory.
  struct ParamKinds {
    bool is_scalar[kMaxParams];
    bool is_length[kMaxParams];
  };
  static constexpr ParamKinds Kinds() {
    ParamKinds kinds{};
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      kinds.is_scalar[i] = ParamsOf<Cell>::kList[i].extent == Extent::kOne;
      kinds.is_length[i] = ParamsOf<Cell>::kList[i].map == Map::kLength;
    }
    return kinds;
  }

  EDGERNN_DEVICE void ReadScalarParams() {
    constexpr ParamKinds kinds = Kinds();
#pragma unroll
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      scalars_[i] = kinds.is_scalar[i] ? packed_[plan_.scalars + i] : 0.0f;
      if (kinds.is_length[i] && scalars_[i] == 0.0f) scalars_[i] = static_cast<float>(call_.length);
    }
  }

  // The sums of all products of the gates of a group in the bit mask kRead, for one row of weights;
  // without those that a kColumn rule keeps. The other sums become 0.
  template <class Set, unsigned kRead = kAllGates>
  EDGERNN_DEVICE void Multiply(const PackedRows& rows, const float* row,
                               float (&sums)[Set::kSlots][kTile]) const {
#pragma unroll
    for (int g = 0; g < Set::kSlots; ++g) {
#pragma unroll
      for (int r = 0; r < kTile; ++r) sums[g][r] = 0.0f;
    }
    const float* const h = plan_.rank > 0 ? shared_ + plan_.low_at : block_.State(0, side_);
    if (!Decides(RuleKind::kColumn)) {
      Accumulate<Set::kXGates, kRead>(lane_, row + rows.x, block_.Inputs(side_), plan_.x_columns,
                                      plan_.x_columns, sums);
      Accumulate<Set::kHGates, kRead>(lane_, row + rows.h, h, plan_.h_columns, plan_.h_columns,
                                      sums);
    }
    Accumulate<Set::kCGates, kRead>(lane_, row + rows.c,
                                    block_.State(kFactorStates<Cell> - 1, side_),
                                    block_.StateStride(), plan_.c_columns, sums);
    Accumulate<Set::kMGates, kRead>(lane_, row + rows.m, shared_ + plan_.m_at, plan_.m_columns,
                                    plan_.m_columns, sums);
#pragma unroll
    for (int g = 0; g < Set::kCount; ++g) {
      if ((kRead >> g & 1) == 0) continue;
#pragma unroll
      for (int r = 0; r < kTile; ++r) sums[g][r] = cluster_.Sum(sums[g][r]);
    }
  }

  // The pre-activations of a gate group for row `at` of weights and one row of the tile: lane r
  // takes row r of the tile.
  template <class Set>
  EDGERNN_DEVICE void Gates(const PackedRows& rows, int at, const float* row,
                            const float (&sums)[Set::kSlots][kTile], Scalar* p) const {
    constexpr GateList all = Set::kGroup.all;
#pragma unroll
    for (int g = 0; g < Set::kCount; ++g) {
      float sum = sums[g][0];
#pragma unroll
      for (int r = 1; r < kTile; ++r) sum = lane_ == r ? sums[g][r] : sum;
      const bool is_kept = Decides(RuleKind::kColumn) && columns_.template IsKept<Set>(g);
      p[all.at[g]] = {sum +
                      (is_kept ? columns_.template Kept<Set>(rows, at)[g] : row[rows.bias + g])};
    }
  }

  EDGERNN_DEVICE void Params(const PackedRows& rows, const float* row, Scalar* q) const {
    constexpr ParamKinds kinds = Kinds();
#pragma unroll
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      q[i] = {kinds.is_scalar[i] ? scalars_[i] : row[rows.params + i]};
    }
  }

  // Computes Q h and broadcasts it.
  EDGERNN_DEVICE void ComputeLowRank() const {
    const RowRange range = block_.RangeOf(plan_.rank);
    for (int at = group_; at < range.count; at += groups_) {
      const float* const row = block_.RowAt(plan_.low, range, at);
      float sums[1][kTile] = {};
      Accumulate<1u>(lane_, row, block_.State(0, side_), block_.StateStride(), plan_.low.stride,
                     sums);
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
        const float sum = cluster_.Sum(sums[0][r]);
        if (lane_ == r) {
          block_.Broadcast(shared_ + plan_.low_at + r * plan_.h_columns + range.first + at, sum);
        }
      }
    }
    cluster_.SyncCluster();
  }

  // Computes m and broadcasts it.
  EDGERNN_DEVICE void ComputeMid() const {
    if constexpr (kHasMid<Cell>) {
      constexpr bool kStatesToo = !kMidIsInput<Cell> || kSquare<Cell>;
      const RowRange range = block_.RangeOf(plan_.middle);
      for (int at = group_; at < range.count; at += groups_) {
        const float* const row = block_.RowAt(plan_.mid, range, at);
        float sums[Mids::kSlots][kTile];
        if (Decides(RuleKind::kColumn)) {
          columns_.template AddColumns<Mids>(plan_.mid, range, at, row);
        }
        Multiply<Mids>(plan_.mid, row, sums);
        if (lane_ >= kTile) continue;
        const int j = range.first + at;
        Scalar p[kUpdateInputs<Cell>] = {}, q[kMaxParams] = {}, state[kStates] = {};
        Gates<Mids>(plan_.mid, at, row, sums, p);
        Params(plan_.mid, row, q);
        for (int s = 0; kStatesToo && s < kStates; ++s) {
          state[s] = {block_.State(s, side_)[lane_ * block_.StateStride() + j]};
        }
        const Scalar x{kReadsInput<Cell> ? block_.Inputs(side_)[lane_ * plan_.x_columns + j]
                                         : 0.0f};
        const Scalar* const old = state;
        block_.Broadcast(shared_ + plan_.m_at + lane_ * plan_.m_columns + j,
                         Cell::Mid(p, q, x, old).raw);
      }
      cluster_.SyncCluster();
    }
  }

  // Computes and stores the new states of neuron `at` of this block's range.
  EDGERNN_DEVICE void Update(const RowRange& range, std::int64_t t, int at) const {
    const PackedRows& rows = plan_.update;
    const float* const row = block_.RowAt(rows, range, at);
    float sums[Updates::kSlots][kTile];
    constexpr unsigned kScored = Updates::kUpdateGate;
    if (Decides(RuleKind::kColumn)) columns_.template AddColumns<Updates>(rows, range, at, row);
    const bool is_scored = kScored != 0 && Decides(RuleKind::kGate);
    if (is_scored) {
      Multiply<Updates, kAllGates ^ kScored>(rows, row, sums);
    } else {
      Multiply<Updates>(rows, row, sums);
    }
    if (lane_ >= kTile) return;
    const int j = range.first + at, offset = lane_ * block_.StateStride() + j;
    Scalar p[kUpdateInputs<Cell>] = {}, q[kMaxParams] = {}, state[kStates];
    Gates<Updates>(rows, at, row, sums, p);
    if constexpr (kScored != 0) {
      constexpr UpdateGate gate = kUpdateGateOf<Cell>;
      if (is_scored) p[gate.gate] = Scalar{active_.Scores()[j]} * gate.sign;
    }
    if constexpr (kSquare<Cell>) {
      p[kGateCount<Cell>] = {block_.Inputs(side_)[lane_ * plan_.x_columns + j]};
    }
    Params(rows, row, q);
#pragma unroll
    for (int s = 0; s < kStates; ++s) state[s] = {block_.State(s, side_)[offset]};
    Cell::Update(p, q, state);
#pragma unroll
    for (int s = 0; s < kStates; ++s) block_.StoreState(s, side_, offset, state[s].raw);
    block_.WriteOutput(t, lane_, j, state[0].raw);
  }

  EDGERNN_DEVICE bool NeedsIntermediates() const { return plan_.rank > 0 || kHasMid<Cell>; }

  EDGERNN_DEVICE void ComputeIntermediates() const {
    if (plan_.rank > 0) ComputeLowRank();
    ComputeMid();
  }

  // update rules

  // Computes the scores of this block's neurons from their update gates, and broadcasts them.
  EDGERNN_DEVICE void ComputeScores(const RowRange& range) const {
    constexpr unsigned kScored = Updates::kUpdateGate;
    if constexpr (kScored != 0) {
      constexpr UpdateGate gate = kUpdateGateOf<Cell>;
      for (int at = group_; at < range.count; at += groups_) {
        const float* const row = block_.RowAt(plan_.update, range, at);
        float sums[Updates::kSlots][kTile];
        Multiply<Updates, kScored>(plan_.update, row, sums);
        if (lane_ >= kTile) continue;
        Scalar p[kUpdateInputs<Cell>] = {};
        Gates<Updates>(plan_.update, at, row, sums, p);
        block_.Broadcast(active_.Scores() + range.first + at, (p[gate.gate] * gate.sign).raw);
      }
    }
  }

  EDGERNN_DEVICE void EndNeurons(const RowRange& range, std::int64_t t) {
    active_.AdvanceMemories(range, side_);
    const std::int64_t total = active_.Total(side_);
    macs_ += plan_.rule_macs + (total > 0 ? plan_.step_macs + total * plan_.neuron_macs : 0);
    block_.WriteUpdates(t, total);
  }

  EDGERNN_DEVICE void EndColumns(std::int64_t t) {
    macs_ += plan_.step_macs + plan_.hidden * plan_.neuron_macs + columns_.Macs();
    block_.WriteUpdates(t, columns_.moved_h);
  }

  EDGERNN_DEVICE float Drive() const {
    return rule_.Drive(block_.State(EvidenceState(kStates), side_), lane_, cluster_);
  }

  EDGERNN_DEVICE void StartSample() {
#pragma unroll
    for (int i = 0; i < kMaxMemories; ++i) {
      if (i < plan_.sample_memories) memory_[i].raw = call_.memory_in[i][block_.Sample(0)];
    }
    if (rule_.SampleChanges(memory_)) return;
    drive_ = Drive();
    macs_ += plan_.rule_macs;
  }

  // True if the sequence waits at step t: advances its memories and repeats its output.
  EDGERNN_DEVICE bool SampleWaits(const RowRange& range, std::int64_t t) {
    const bool waits = !rule_.SampleChanges(memory_);
    block_.WriteUpdates(t, waits ? 0 : plan_.hidden);
    if (!waits) return false;
    rule_.AdvanceSample(0.0f, drive_, memory_);
    const float* const h = block_.State(0, side_) + range.first;
    for (int at = cluster_.thread(); at < range.count; at += cluster_.threads()) {
      block_.WriteOutput(t, 0, range.first + at, h[at]);
    }
    return true;
  }

  EDGERNN_DEVICE void EndSample() {
    drive_ = Drive();
    rule_.AdvanceSample(1.0f, drive_, memory_);
    macs_ += plan_.rule_macs + plan_.step_macs + plan_.hidden * plan_.neuron_macs;
  }

  EDGERNN_DEVICE void FinishRule() const {
    if (cluster_.block() != 0 || cluster_.thread() != 0 || plan_.kind == RuleKind::kTime) return;
#pragma unroll
    for (int i = 0; i < kMaxMemories; ++i) {
      if (i >= plan_.sample_memories || call_.memory_out[i] == nullptr) continue;
      call_.memory_out[i][block_.Sample(0)] = memory_[i].raw;
    }
    if (call_.macs != nullptr) call_.macs[block_.Sample(0)] = macs_;
  }

  const LaunchPlan& plan_;
  const Call& call_;
  const float* const packed_;
  const Cluster cluster_;
  float* const shared_;
  const ThisBlock block_;
  const DeviceRule rule_;
  const ActiveNeurons<Cell, kTile, Cluster> active_;
  ColumnSums<Cell, kTile, Cluster> columns_;
  const int group_;
  const int lane_;
  const int groups_;
  int side_ = 0;
  float scalars_[kMaxParams];
  // Multiply-adds of the tile's only sequence, if the rule decides.
  std::int64_t macs_ = 0;
  Scalar memory_[kMaxMemories] = {};  // kSample only
  float drive_ = 0.0f;
};

}  // namespace edgernn::cuda
