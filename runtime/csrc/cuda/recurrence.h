// SPDX-License-Identifier: Apache-2.0
// The kernel: a cluster of blocks runs a whole sequence of any cell without the host.
//
// Each cluster has a tile of sequences and each of its blocks a share of the neurons, whose weights
// lie on the chip as far as there is room. Every block has a copy of all that weights multiply; a
// new value is written to all copies, and the cluster meets once a step, in between too where m or
// Q h stands between the state and the gates.
//
// `Team` is the threads of a block: see cuda/team.h.

#ifndef EDGERNN_CUDA_RECURRENCE_H_
#define EDGERNN_CUDA_RECURRENCE_H_

#include "cuda/block.h"
#include "cuda/rule.h"
#include "cuda/scalar.h"

namespace edgernn::cuda {

template <class Cell, int kTile, class Team>
class Recurrence {
 public:
  EDGERNN_DEVICE Recurrence(const LaunchPlan& plan, const Call& call, const float* packed,
                            const Team& team)
      : plan_(plan),
        call_(call),
        packed_(packed),
        team_(team),
        chip_(team.memory()),
        block_{plan, call, packed, team, team.memory(), std::int64_t{team.cluster()} * kTile},
        rule_{plan, team.memory()},
        group_(team.thread() / kRowThreads),
        lane_(team.thread() % kRowThreads),
        groups_(team.threads() / kRowThreads) {}

  EDGERNN_DEVICE void Run() {
    block_.Start();
    ReadSingle();
    // one loop for all rules, so that there is one copy of what they have in common
    const Share share = block_.ShareOf(plan_.hidden);
    const bool waits = plan_.kind == RuleKind::kSample;
    const bool selects = plan_.kind == RuleKind::kNeuron;
    if (!waits) block_.PutInputs(0, 0, block_.InputAt(0, team_.thread()));
    team_.SyncAll();
    if (waits) StartSample();
    for (std::int64_t t = 0; t < call_.steps; ++t) {
      if (waits && SampleWaits(share, t)) continue;
      // on its way while this step is made
      const float ahead = waits ? 0.0f : block_.InputAt(t + 1, team_.thread());
      if (waits) {
        block_.PutInputs(side_, t, block_.InputAt(t, team_.thread()));
        team_.Sync();
      }
      const int count = selects ? Select(share, t) : share.count;
      if (Prepares()) {
        if (selects) team_.SyncAll();
        if (!selects || Total() > 0) Prepare();
      }
      for (int i = group_; i < count; i += groups_) Update(share, t, selects ? Active()[i] : i);
      if (!waits) block_.PutInputs(1 - side_, t + 1, ahead);
      team_.SyncAll();
      if (selects) EndNeurons(share, t);
      side_ = 1 - side_;
      if (selects) StartCount();
      if (waits) EndSample();
    }
    // others may still read what comes out in the same place
    team_.SyncAll();
    block_.Finish(side_);
    FinishRule();
  }

 private:
  using ThisBlock = Block<Cell, kTile, Team>;
  using Share = typename ThisBlock::Share;
  using Updates = Group<Cell, 0, kMid>;
  using Mids = Group<Cell, kMid, 0>;
  static constexpr int kStates = kStateCount<Cell>;

  // What the cell's parameters are; of its list a GPU has no copy.
  struct ParamKinds {
    bool is_single[kMaxParams];
    bool is_length[kMaxParams];
  };
  static constexpr ParamKinds Kinds() {
    ParamKinds kinds{};
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      kinds.is_single[i] = ParamsOf<Cell>::kList[i].extent == Extent::kOne;
      kinds.is_length[i] = ParamsOf<Cell>::kList[i].map == Map::kLength;
    }
    return kinds;
  }

  EDGERNN_DEVICE void ReadSingle() {
    constexpr ParamKinds kinds = Kinds();
#pragma unroll
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      single_[i] = kinds.is_single[i] ? packed_[plan_.single + i] : 0.0f;
      if (kinds.is_length[i] && single_[i] == 0.0f) single_[i] = static_cast<float>(call_.length);
    }
  }

  // a step

  template <class Set>
  EDGERNN_DEVICE void Multiply(const PackedRows& rows, const float* row,
                               float (&sums)[Set::kSlots][kTile]) const {
#pragma unroll
    for (int g = 0; g < Set::kSlots; ++g) {
#pragma unroll
      for (int r = 0; r < kTile; ++r) sums[g][r] = 0.0f;
    }
    const float* const h = plan_.rank > 0 ? chip_ + plan_.low_at : block_.State(0, side_);
    Accumulate<Set::kOfX>(lane_, row + rows.x, block_.Inputs(side_), plan_.x_columns,
                          plan_.x_columns, sums);
    Accumulate<Set::kOfH>(lane_, row + rows.h, h, plan_.h_columns, plan_.h_columns, sums);
    Accumulate<Set::kOfC>(lane_, row + rows.c, block_.State(kFactorStates<Cell> - 1, side_),
                          block_.Wide(), plan_.c_columns, sums);
    Accumulate<Set::kOfM>(lane_, row + rows.m, chip_ + plan_.m_at, plan_.m_columns, plan_.m_columns,
                          sums);
#pragma unroll
    for (int g = 0; g < Set::kCount; ++g) {
#pragma unroll
      for (int r = 0; r < kTile; ++r) sums[g][r] = team_.Sum(sums[g][r]);
    }
  }

  // The pre-activations of the gates of a group, of the row of the tile that this lane looks after.
  template <class Set>
  EDGERNN_DEVICE void Gates(const PackedRows& rows, const float* row,
                            const float (&sums)[Set::kSlots][kTile], Scalar* p) const {
    constexpr GateList all = Set::kGroup.all;
#pragma unroll
    for (int g = 0; g < Set::kCount; ++g) {
      float sum = sums[g][0];
#pragma unroll
      for (int r = 1; r < kTile; ++r) sum = lane_ == r ? sums[g][r] : sum;
      p[all.at[g]] = {sum + row[rows.bias + g]};
    }
  }

  EDGERNN_DEVICE void Params(const PackedRows& rows, const float* row, Scalar* q) const {
    constexpr ParamKinds kinds = Kinds();
#pragma unroll
    for (int i = 0; i < ParamsOf<Cell>::kCount; ++i) {
      q[i] = {kinds.is_single[i] ? single_[i] : row[rows.params + i]};
    }
  }

  // Q h, in all blocks.
  EDGERNN_DEVICE void MakeLow() const {
    const Share share = block_.ShareOf(plan_.rank);
    for (int at = group_; at < share.count; at += groups_) {
      const float* const row = block_.RowAt(plan_.low, plan_.held[2], block_.HeldAt(2), share, at);
      float sums[1][kTile] = {};
      Accumulate<1u>(lane_, row, block_.State(0, side_), block_.Wide(), plan_.low.stride, sums);
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
        const float sum = team_.Sum(sums[0][r]);
        if (lane_ == r) {
          block_.Spread(chip_ + plan_.low_at + r * plan_.h_columns + share.first + at, sum);
        }
      }
    }
    team_.SyncAll();
  }

  // m, in all blocks.
  EDGERNN_DEVICE void MakeMid() const {
    if constexpr (kHasMid<Cell>) {
      constexpr bool kStatesToo = !kMidIsInput<Cell> || kSquare<Cell>;
      const Share share = block_.ShareOf(plan_.middle);
      for (int at = group_; at < share.count; at += groups_) {
        const float* const row =
            block_.RowAt(plan_.mid, plan_.held[1], block_.HeldAt(1), share, at);
        float sums[Mids::kSlots][kTile];
        Multiply<Mids>(plan_.mid, row, sums);
        if (lane_ >= kTile) continue;
        const int j = share.first + at;
        Scalar p[kUpdateInputs<Cell>] = {}, q[kMaxParams] = {}, state[kStates] = {};
        Gates<Mids>(plan_.mid, row, sums, p);
        Params(plan_.mid, row, q);
        for (int s = 0; kStatesToo && s < kStates; ++s) {
          state[s] = {block_.State(s, side_)[lane_ * block_.Wide() + j]};
        }
        const Scalar x{kReadsInput<Cell> ? block_.Inputs(side_)[lane_ * plan_.x_columns + j]
                                         : 0.0f};
        const Scalar* const old = state;
        block_.Spread(chip_ + plan_.m_at + lane_ * plan_.m_columns + j,
                      Cell::Mid(p, q, x, old).raw);
      }
      team_.SyncAll();
    }
  }

  // The new states of neuron `at` of this block's share.
  EDGERNN_DEVICE void Update(const Share& share, std::int64_t t, int at) const {
    const PackedRows& rows = plan_.update;
    const float* const row = block_.RowAt(rows, plan_.held[0], block_.HeldAt(0), share, at);
    float sums[Updates::kSlots][kTile];
    Multiply<Updates>(rows, row, sums);
    if (lane_ >= kTile) return;
    const int j = share.first + at, place = lane_ * block_.Wide() + j;
    Scalar p[kUpdateInputs<Cell>] = {}, q[kMaxParams] = {}, state[kStates];
    Gates<Updates>(rows, row, sums, p);
    if constexpr (kSquare<Cell>) {
      p[kGateCount<Cell>] = {block_.Inputs(side_)[lane_ * plan_.x_columns + j]};
    }
    Params(rows, row, q);
#pragma unroll
    for (int s = 0; s < kStates; ++s) state[s] = {block_.State(s, side_)[place]};
    Cell::Update(p, q, state);
#pragma unroll
    for (int s = 0; s < kStates; ++s) Put(s, place, state[s].raw);
    Write(t, lane_, j, state[0].raw);
  }

  // A new state, where the next step reads it.
  EDGERNN_DEVICE void Put(int state, int place, float value) const {
    if (block_.IsShared(state)) {
      block_.Spread(block_.State(state, 1 - side_) + place, value);
    } else {
      block_.State(state, 0)[place] = value;
    }
  }

  EDGERNN_DEVICE void Write(std::int64_t t, int row, int j, float h) const {
    if (call_.y == nullptr || !block_.IsThere(row)) return;
    call_.y[(t * call_.batch + block_.Sample(row)) * plan_.hidden + j] = h;
  }

  EDGERNN_DEVICE bool Prepares() const { return plan_.rank > 0 || kHasMid<Cell>; }

  EDGERNN_DEVICE void Prepare() const {
    if (plan_.rank > 0) MakeLow();
    MakeMid();
  }

  // the rules

  // The neurons of this block that change, by their places in its share.
  EDGERNN_DEVICE int* Active() const { return reinterpret_cast<int*>(chip_ + plan_.list_at); }

  // How many neurons each block has selected at this step, as this block knows.
  EDGERNN_DEVICE int* Counts() const {
    return reinterpret_cast<int*>(chip_ + plan_.counts_at) + side_ * team_.blocks();
  }

  EDGERNN_DEVICE std::int64_t Total() const {
    std::int64_t total = 0;
    for (int block = 0; block < team_.blocks(); ++block) total += Counts()[block];
    return total;
  }

  // Lists the neurons of this block that change at step t; the others keep what they have. Returns
  // how many they are, which the other blocks are told.
  EDGERNN_DEVICE int Select(const Share& share, std::int64_t t) const {
    const PackedRows& rows = plan_.update;
    int* const selected = Counts() + team_.block();
    for (int at = group_; at < share.count; at += groups_) {
      const float* const row = block_.RowAt(rows, plan_.held[0], block_.HeldAt(0), share, at);
      const int j = share.first + at;
      const float h = block_.State(0, side_)[j];
      const auto decision = rule_.DecideNeuron(row, at, h, [&] {
        float sums[1][kTile] = {};
        Accumulate<1u>(lane_, row + rows.rule, block_.Inputs(side_), plan_.x_columns,
                       static_cast<int>(PadToFour(plan_.input)), sums);
        return team_.Sum(sums[0][0]);
      });
      if (lane_ > 0) continue;
      if (plan_.neuron_memories > 0) chip_[plan_.scores_at + at] = decision.score;
      if (decision.changes) {
        Active()[team_.Count(selected)] = at;
        continue;
      }
      for (int s = 0; s < kStates; ++s) {
        if (block_.IsShared(s)) Put(s, j, block_.State(s, side_)[j]);
      }
      Write(t, 0, j, h);
    }
    team_.Sync();
    const int count = *selected;
    for (int block = team_.thread(); block < team_.blocks(); block += team_.threads()) {
      if (block != team_.block()) *team_.Of(block, selected) = count;
    }
    return count;
  }

  EDGERNN_DEVICE void EndNeurons(const Share& share, std::int64_t t) {
    if (plan_.neuron_memories > 0) AdvanceNeurons(share);
    const std::int64_t total = Total();
    macs_ += plan_.rule_macs + (total > 0 ? plan_.step_macs + total * plan_.neuron_macs : 0);
    if (team_.block() == 0 && team_.thread() == 0 && call_.updates != nullptr) {
      call_.updates[t * call_.batch + block_.Sample(0)] = total;
    }
  }

  EDGERNN_DEVICE void AdvanceNeurons(const Share& share) const {
    const float* const after = block_.State(EvidenceState(kStates), 1 - side_);
    for (int at = team_.thread(); at < share.count; at += team_.threads()) {
      const float* const row =
          block_.RowAt(plan_.update, plan_.held[0], block_.HeldAt(0), share, at);
      rule_.AdvanceNeuron(row, at, chip_[plan_.scores_at + at], after[share.first + at]);
    }
  }

  // On the side of the counts that was read two steps ago.
  EDGERNN_DEVICE void StartCount() const {
    if (team_.thread() == 0) Counts()[team_.block()] = 0;
    team_.Sync();
  }

  EDGERNN_DEVICE float Drive() const {
    return rule_.Drive(block_.State(EvidenceState(kStates), side_), lane_, team_);
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

  // Whether the sequence waits at step t; then its output stays.
  EDGERNN_DEVICE bool SampleWaits(const Share& share, std::int64_t t) {
    const bool waits = !rule_.SampleChanges(memory_);
    if (team_.block() == 0 && team_.thread() == 0 && call_.updates != nullptr) {
      call_.updates[t * call_.batch + block_.Sample(0)] = waits ? 0 : plan_.hidden;
    }
    if (!waits) return false;
    rule_.AdvanceSample(0.0f, drive_, memory_);
    const float* const h = block_.State(0, side_) + share.first;
    for (int at = team_.thread(); at < share.count; at += team_.threads()) {
      Write(t, 0, share.first + at, h[at]);
    }
    return true;
  }

  EDGERNN_DEVICE void EndSample() {
    drive_ = Drive();
    rule_.AdvanceSample(1.0f, drive_, memory_);
    macs_ += plan_.rule_macs + plan_.step_macs + plan_.hidden * plan_.neuron_macs;
  }

  EDGERNN_DEVICE void FinishRule() const {
    if (team_.block() != 0 || team_.thread() != 0 || plan_.kind == RuleKind::kTime) return;
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
  const Team team_;
  float* const chip_;
  const ThisBlock block_;
  const RuleOnChip rule_;
  const int group_;
  const int lane_;
  const int groups_;
  int side_ = 0;
  float single_[kMaxParams];
  // of the tile's only sequence, where the rule decides
  std::int64_t macs_ = 0;
  Scalar memory_[kMaxMemories] = {};  // of a sample
  float drive_ = 0.0f;
};

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_RECURRENCE_H_
