// SPDX-License-Identifier: Apache-2.0
// The loop over time of a training call, for some rows of its batch. Independent of the cell, whose
// equations are in tables and two point-wise maps.

#ifndef EDGERNN_TRAIN_SEQUENCE_H_
#define EDGERNN_TRAIN_SEQUENCE_H_

#include "train/rule.h"
#include "train/scratch.h"

namespace edgernn::EDGERNN_ISA {

class Sequence {
 public:
  Sequence(const Prepared& prepared, const EdgernnTrainCall& call, std::int64_t first,
           std::int64_t end)
      : prepared_(prepared),
        layout_(prepared.layout),
        cell_(prepared.layout.cell),
        rule_(prepared.layout.rule),
        call_(call),
        first_(first),
        rows_(end - first) {}

  void Forward(void* base) const {
    const ThreadScratch scratch(layout_, call_, rows_, base);
    for (std::int64_t t = 0; t < call_.steps; ++t) {
      TrainPointwiseArgs points = MakePoints(t);
      for (const Source source : {kOfX, kOfH, kOfC, kOfRule}) Multiply(source, t);
      if (cell_.has_mid) {
        points.size = points.out_stride = layout_.middle;
        points.out[0] = Mid(t);
        cell_.mid(points);
        Multiply(kOfM, t);
      }
      points.size = points.out_stride = layout_.hidden;
      for (int s = 0; s < cell_.states; ++s) points.out[s] = After(s, t);
      if (rule_.HasEquations()) rule_.decide(MakeRuleArgs(t, scratch));
      cell_.update(points);
      if (rule_.Remembers()) rule_.remember(MakeRuleArgs(t, scratch));
    }
  }

  void Backward(void* base) const {
    ThreadScratch scratch(layout_, call_, rows_, base);
    scratch.total.arena.Clear();
    for (int s = 0; s < cell_.states; ++s) {
      const float* from = call_.last_grad[s];
      CopyOrClear(from == nullptr ? nullptr : At(from, 0, layout_.hidden), rows_ * layout_.hidden,
                  scratch.grad[s]);
    }
    const std::int64_t decisions = layout_.DecisionSize();
    for (int i = 0; i < Memories(); ++i) {
      const float* from = call_.last_memory_grad[i];
      CopyOrClear(from == nullptr ? nullptr : At(from, 0, decisions), rows_ * decisions,
                  scratch.memory[i]);
    }
    std::int64_t done = call_.steps;
    for (std::int64_t t = call_.steps - 1; t >= 0; --t) {
      if (call_.y_grad != nullptr) AddRows(At(call_.y_grad, t, layout_.hidden), scratch.grad[0]);
      scratch.step_arena.Clear();
      if (rule_.Remembers()) {
        TrainRuleArgs args = MakeRuleArgs(t, scratch);
        args.after.grad = scratch.grad[EvidenceState(cell_.states)];
        rule_.remember_back(args);
      }
      StepBack(t, scratch, scratch.gates + (done - 1 - t) * rows_ * scratch.gate_stride);
      scratch.total.vector_arena.Add(scratch.step_arena);
      if (done - t == scratch.chunk || t == 0) {
        AddWeightGrads(t, done, scratch);
        done = t;
      }
      for (int s = 0; s < cell_.states; ++s) {
        float* gate_grads = scratch.before[s];
        scratch.before[s] = scratch.grad[s];
        scratch.grad[s] = gate_grads;
      }
    }
    for (int s = 0; s < cell_.states; ++s) {
      if (call_.start_grad[s] == nullptr) continue;
      Copy(scratch.grad[s], rows_ * layout_.hidden, At(call_.start_grad[s], 0, layout_.hidden));
    }
    for (int i = 0; i < Memories(); ++i) {
      if (call_.memory_grad[i] == nullptr) continue;
      Copy(scratch.memory[i], rows_ * decisions, At(call_.memory_grad[i], 0, decisions));
    }
  }

 private:
  // From the gradients of the states after step t to those before it, and of the gates, (rows, P).
  void StepBack(std::int64_t t, const ThreadScratch& scratch, float* gates) const {
    TrainPointwiseArgs points = MakePoints(t);
    const std::int64_t stride = scratch.gate_stride;
    for (int g = 0; g < cell_.gates; ++g) {
      points.gate[g].grad = gates + layout_.at[g];
      points.gate[g].grad_stride = stride;
    }
    if (call_.x_grad != nullptr) {
      points.x.grad = At(call_.x_grad, t, layout_.inputs);
      points.x.grad_stride = layout_.inputs;
      std::memset(points.x.grad, 0, Bytes(rows_ * layout_.inputs));
    }
    for (int s = 0; s < cell_.states; ++s) {
      points.state[s].grad = scratch.before[s];
      points.state[s].grad_stride = layout_.hidden;
      points.out_grad[s] = scratch.grad[s];
    }
    for (int i = 0; i < cell_.params; ++i) points.params_grad[i] = scratch.step.params[i];
    points.size = points.out_stride = layout_.hidden;
    const bool decides = rule_.HasEquations();
    if (decides) {
      points.u.grad = scratch.u;
      points.u.grad_stride = layout_.hidden;
    }
    cell_.update_back(points);
    if (decides) {
      TrainRuleArgs args = MakeRuleArgs(t, scratch);
      args.e.grad = gates + layout_.rule_at;
      args.e.grad_stride = stride;
      args.h.grad = scratch.before[0];
      rule_.decide_back(args);
    }
    const Lines gate_grads = {gates, stride};
    if (cell_.has_mid) {
      std::memset(scratch.mid, 0, Bytes(rows_ * layout_.middle));
      MultiplyBack(kOfM, gate_grads, {scratch.mid, layout_.middle});
      points.size = points.out_stride = layout_.middle;
      points.out_grad[0] = scratch.mid;
      cell_.mid_back(points);
    }
    MultiplyBack(kOfH, gate_grads, {scratch.before[0], layout_.hidden});
    if (cell_.states > 1) MultiplyBack(kOfC, gate_grads, {scratch.before[1], layout_.hidden});
    if (call_.x_grad != nullptr) {
      MultiplyBack(kOfX, gate_grads, {points.x.grad, layout_.inputs});
      MultiplyBack(kOfRule, gate_grads, {points.x.grad, layout_.inputs});
    }
  }

  // How many memories the rule's equations read.
  int Memories() const { return rule_.Remembers() ? rule_.memory_count : 0; }

  // What the rule reads and writes at step t, but for the gradients of gates and states.
  TrainRuleArgs MakeRuleArgs(std::int64_t t, const ThreadScratch& scratch) const {
    TrainRuleArgs args{};
    args.rows = rows_;
    args.hidden = layout_.hidden;
    args.slope = call_.slope;
    args.decision_weight = call_.decision_weight;
    for (int i = 0; i < kMaxRuleParams; ++i) {
      args.params[i] = prepared_.rule[i];
      args.params_grad[i] = scratch.step.rule[i];
    }
    args.u = At(call_.u, t, layout_.hidden);
    args.u_grad = scratch.u;
    args.e = {Gates(t) + layout_.rule_at, layout_.gates, nullptr, 0};
    args.h = {Before(0, t), layout_.hidden, nullptr, layout_.hidden};
    const int evidence_state = EvidenceState(cell_.states);
    args.after = {After(evidence_state, t), layout_.hidden, nullptr, layout_.hidden};
    const std::int64_t decisions = layout_.DecisionSize();
    for (int i = 0; i < Memories(); ++i) {
      args.memory[i] =
          t == 0 ? At(call_.memory[i], 0, decisions) : At(call_.memories[i], t - 1, decisions);
      args.memory_after[i] = At(call_.memories[i], t, decisions);
      args.memory_grad[i] = scratch.memory[i];
    }
    args.decision_grad = scratch.decision;
    args.score_grad = scratch.score;
    args.evidence = scratch.evidence;
    return args;
  }

  // What the steps from `first` to `end` give to the gradients of weights and biases. Several steps
  // make one product, so that the sums are read and written less often.
  void AddWeightGrads(std::int64_t first, std::int64_t end, const ThreadScratch& scratch) const {
    const std::int64_t stride = scratch.gate_stride, depth = (end - first) * rows_;
    for (int source = 0; source < kSources; ++source) {
      const Term& term = layout_.terms[source];
      if (term.count == 0 || term.grad == nullptr) continue;
      for (std::int64_t from = 0; from < term.depth; from += kPanel) {
        const std::int64_t left = term.depth - from;
        const std::int64_t columns = left < kPanel ? left : kPanel;
        // the chunk has the last step first
        float* packed = scratch.panel;
        for (std::int64_t t = end - 1; t >= first; --t) {
          const Lines factor = FactorOf(static_cast<Source>(source), t).Skip(0, from);
          Pack(factor.at, factor.stride, columns, rows_, packed);
          packed += rows_ * PadToLanes(columns);
        }
        for (int i = 0; i < term.count; ++i) {
          const Segment& s = term.segments[i];
          float* to = scratch.total.weights[source] + s.row * term.depth + from;
          MultiplyAdd({scratch.gates + s.at, 1, stride}, s.columns, depth, scratch.panel,
                      {to, term.depth}, {to, term.depth}, columns);
        }
      }
    }
    for (std::int64_t at = 0; at < layout_.gates; at += kLanes) {
      Vec sum = Zero();
      for (std::int64_t k = 0; k < depth; ++k) sum = sum + Load(scratch.gates + k * stride + at);
      float* to = scratch.total.gates + at;
      Store(to, Load(to) + sum);
    }
  }

  // The first of our rows of a step, in memory of so many columns.
  template <class T>
  T* At(T* base, std::int64_t t, std::int64_t columns) const {
    return base + (t * call_.batch + first_) * columns;
  }

  float* After(int s, std::int64_t t) const {
    return At(call_.state[s], s == 0 || call_.keep ? t : 0, layout_.hidden);
  }

  const float* Before(int s, std::int64_t t) const {
    return t == 0 ? At(call_.start[s], 0, layout_.hidden) : After(s, t - 1);
  }

  float* Gates(std::int64_t t) const { return At(call_.p, call_.keep ? t : 0, layout_.gates); }
  float* Mid(std::int64_t t) const { return At(call_.m, call_.keep ? t : 0, layout_.middle); }

  // What a term's weights multiply.
  Lines FactorOf(Source source, std::int64_t t) const {
    switch (source) {
      case kOfH:
        return {Before(0, t), layout_.hidden};
      case kOfC:
        return {Before(1, t), layout_.hidden};
      case kOfM:
        return {Mid(t), layout_.middle};
      default:
        return {At(call_.x, t, layout_.inputs), layout_.inputs};
    }
  }

  TrainPointwiseArgs MakePoints(std::int64_t t) const {
    TrainPointwiseArgs points{};
    points.cell = &cell_;
    points.rows = rows_;
    for (int g = 0; g < cell_.gates; ++g) {
      points.gate[g] = {Gates(t) + layout_.at[g], layout_.gates, nullptr, 0};
    }
    points.x = {At(call_.x, t, layout_.inputs), layout_.inputs, nullptr, 0};
    for (int s = 0; s < cell_.states; ++s) {
      points.state[s] = {Before(s, t), layout_.hidden, nullptr, 0};
    }
    for (int i = 0; i < cell_.params; ++i) points.params[i] = prepared_.params[i];
    points.skips = rule_.can_skip;
    if (points.skips) {
      float* grad = call_.u_grad;
      points.u = {At(call_.u, t, layout_.hidden), layout_.hidden,
                  grad == nullptr ? nullptr : At(grad, t, layout_.hidden), layout_.hidden};
    }
    return points;
  }

  // Adds a term to the gates of step t.
  void Multiply(Source source, std::int64_t t) const {
    const Term& term = layout_.terms[source];
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      const Lines factor = FactorOf(source, t);
      const Result to = {Gates(t) + s.at, layout_.gates};
      const Lines start = s.first ? Lines{prepared_.bias + s.at, 0} : Lines{to.at, to.stride};
      MultiplyAdd({factor.at, factor.stride, 1}, rows_, term.depth, s.packed, start, to, s.columns);
    }
  }

  // Adds the gradient of what a term's weights multiply, from those of the gates.
  void MultiplyBack(Source source, Lines gates, Result grad) const {
    const Term& term = layout_.terms[source];
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      MultiplyAdd({gates.at + s.at, gates.stride, 1}, rows_, s.columns, s.packed,
                  {grad.at, grad.stride}, grad, term.depth);
    }
  }

  // Null is zeros.
  static void CopyOrClear(const float* from, std::int64_t count, float* to) {
    if (from == nullptr) {
      std::memset(to, 0, Bytes(count));
    } else {
      Copy(from, count, to);
    }
  }

  void AddRows(const float* from, float* to) const {
    const std::int64_t count = rows_ * layout_.hidden;
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const Lanes lanes(count - i);
      lanes.Store(to + i, lanes.Load(to + i) + lanes.Load(from + i));
    }
  }

  const Prepared& prepared_;
  const GateLayout& layout_;
  const TrainCell& cell_;
  const TrainRule& rule_;
  const EdgernnTrainCall& call_;
  const std::int64_t first_;
  const std::int64_t rows_;
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_SEQUENCE_H_
