// SPDX-License-Identifier: Apache-2.0
// The training driver: the loop over time, forward and backward, for some rows of a batch. A cell
// is a table and two point-wise maps. norm_sequence.h inserts functions between products and gates.

#pragma once

#include <utility>

#include "train/rule_functions.h"
#include "train/scratch.h"

namespace edgernn::EDGERNN_ISA {

class Sequence {
 public:
  Sequence(const PackedWeights& packed, const EdgernnTrainCall& call, std::int64_t first,
           std::int64_t end)
      : packed_(packed),
        layout_(packed.layout),
        cell_(packed.layout.cell),
        rule_(packed.layout.rule),
        call_(call),
        first_(first),
        rows_(end - first) {}

  void Forward(void* base) const {
    const ThreadScratch scratch(layout_, call_, rows_, base);
    for (std::int64_t t = 0; t < call_.steps; ++t) {
      TrainPointwiseArgs args = MakePointwiseArgs(t);
      if (Sends()) rule_.decide(MakeRuleArgs(t, scratch));
      StartGates(t);
      for (const Operand operand : {kOperandX, kOperandH, kOperandC, kOperandRule})
        Multiply(operand, t);
      if (cell_.has_mid) {
        args.size = args.out_stride = layout_.middle;
        args.out[0] = Mid(t);
        cell_.mid(args);
        Multiply(kOperandM, t);
      }
      args.size = args.out_stride = layout_.hidden;
      for (int s = 0; s < cell_.states; ++s) args.out[s] = After(s, t);
      if (rule_.decide != nullptr && !Sends()) Decide(t, scratch);
      cell_.update(args);
      FinishStates(t);
      if (rule_.Remembers()) rule_.remember(MakeRuleArgs(t, scratch));
    }
  }

  void Backward(void* base) const {
    ThreadScratch scratch(layout_, call_, rows_, base);
    scratch.total.arena.Clear();
    for (int s = 0; s < cell_.states; ++s)
      LoadGrads(call_.last_grad[s], layout_.hidden, scratch.grad[s]);
    const std::int64_t decisions = layout_.DecisionSize();
    for (int i = 0; i < Memories(); ++i)
      LoadGrads(call_.last_memory_grad[i], decisions, scratch.memory[i]);
    std::int64_t done = call_.steps, size = rows_ * layout_.hidden;
    for (std::int64_t t = call_.steps - 1; t >= 0; --t) {
      if (call_.y_grad != nullptr) Add(At(call_.y_grad, t, layout_.hidden), size, scratch.grad[0]);
      scratch.step_arena.Clear();
      if (rule_.Remembers()) {
        TrainRuleArgs rule_args = MakeRuleArgs(t, scratch);
        rule_args.after.grad = scratch.grad[EvidenceState(cell_.states)];
        rule_.remember_back(rule_args);
      }
      StepBack(t, scratch, scratch.gates + (done - 1 - t) * rows_ * scratch.gate_stride);
      scratch.total.vector_arena.Add(scratch.step_arena);
      if (done - t == scratch.chunk || t == 0) {
        AddWeightGrads(t, done, scratch);
        done = t;
      }
      for (int s = 0; s < cell_.states; ++s) std::swap(scratch.before[s], scratch.grad[s]);
    }
    for (int s = 0; s < cell_.states; ++s)
      StoreGrads(scratch.grad[s], layout_.hidden, call_.start_grad[s]);
    for (int i = 0; i < Memories(); ++i)
      StoreGrads(scratch.memory[i], decisions, call_.memory_grad[i]);
  }

 protected:
  // Hook before the products of step t are added to its gates.
  virtual void StartGates(std::int64_t) const {}

  // Hook after the update of step t.
  virtual void FinishStates(std::int64_t) const {}

  // Hooks before and after the update of step t is differentiated.
  virtual void FinishStatesBack(std::int64_t, const ThreadScratch&) const {}
  virtual void FinishGatesBack(OutputRows) const {}

  // The gradients of a term's product at step t from those of the gates, and the gradients of all
  // steps of a chunk; both are laid out as the gates.
  virtual ConstRows ProductGrads(Operand, std::int64_t, ConstRows gates,
                                 const ThreadScratch&) const {
    return gates;
  }
  virtual const float* ChunkGrads(Operand, const ThreadScratch& scratch) const {
    return scratch.gates;
  }

  // Propagates the gradients of the states after step t to the states before it and to the gates
  // (rows, P).
  void StepBack(std::int64_t t, const ThreadScratch& scratch, float* gates) const {
    TrainPointwiseArgs args = MakePointwiseArgs(t);
    const std::int64_t stride = scratch.gate_stride;
    for (int g = 0; g < cell_.gates; ++g) {
      args.gate[g].grad = gates + layout_.at[g];
      args.gate[g].grad_stride = stride;
    }
    if (call_.x_grad != nullptr) {
      args.x.grad = At(call_.x_grad, t, layout_.inputs);
      args.x.grad_stride = layout_.inputs;
      std::memset(args.x.grad, 0, Bytes(rows_ * layout_.inputs));
    }
    for (int s = 0; s < cell_.states; ++s) {
      args.state[s].grad = scratch.before[s];
      args.state[s].grad_stride = layout_.hidden;
      args.out_grad[s] = scratch.grad[s];
    }
    for (int i = 0; i < cell_.params; ++i) args.params_grad[i] = scratch.step.params[i];
    args.size = args.out_stride = layout_.hidden;
    if (rule_.has_equations) {
      args.u.grad = scratch.u;
      args.u.grad_stride = layout_.hidden;
    }
    FinishStatesBack(t, scratch);
    cell_.update_back(args);
    FinishGatesBack({gates, stride});
    if (rule_.has_equations) {
      TrainRuleArgs rule_args = MakeRuleArgs(t, scratch);
      rule_args.e.grad = gates + layout_.rule_at;
      rule_args.e.grad_stride = stride;
      DecideBack(rule_args, scratch);
    }
    const ConstRows gate_grads = {gates, stride};
    if (cell_.has_mid) {
      std::memset(scratch.mid, 0, Bytes(rows_ * layout_.middle));
      const ConstRows product_grads = ProductGrads(kOperandM, t, gate_grads, scratch);
      MultiplyBack(kOperandM, product_grads, {scratch.mid, layout_.middle});
      args.size = args.out_stride = layout_.middle;
      args.out_grad[0] = scratch.mid;
      cell_.mid_back(args);
    }
    for (int s = 0; s < 2 && s < cell_.states; ++s) {
      const Operand operand = s == 0 ? kOperandH : kOperandC;
      FactorBack(operand, t, gate_grads, scratch, {scratch.before[s], layout_.hidden});
    }
    FactorBack(kOperandX, t, gate_grads, scratch, {args.x.grad, layout_.inputs});
    if (call_.x_grad == nullptr) return;
    MultiplyBack(kOperandRule, gate_grads, {args.x.grad, layout_.inputs});
  }

  // Adds the gradient of a product's factor to `grad`, unless it is null. Values that products read
  // in place of x and h have gradients of their own, if the call asks for them.
  void FactorBack(Operand operand, std::int64_t t, ConstRows gates, const ThreadScratch& scratch,
                  OutputRows grad) const {
    const ConstRows product_grads = ProductGrads(operand, t, gates, scratch);
    float* const sent = operand <= kOperandH ? call_.sent_grad[operand] : nullptr;
    float* const rows = sent == nullptr ? grad.at : At(sent, t, grad.stride);
    if (sent != nullptr) std::memset(rows, 0, Bytes(rows_ * grad.stride));
    if (rows != nullptr) MultiplyBack(operand, product_grads, {rows, grad.stride});
    if (sent == nullptr) return;
    float* const kept = call_.memory_grad[operand];
    if (kept == nullptr && grad.at != nullptr) Add(rows, rows_ * grad.stride, grad.at);
    if (kept == nullptr) return;
    const TrainRuleArgs step = MakeRuleArgs(t, scratch);
    ColumnEquations::DecideBack(step, operand, rows, At(kept, 0, grad.stride), grad);
  }

  // Computes u of step t.
  void Decide(std::int64_t t, const ThreadScratch& scratch) const {
    TrainRuleArgs rule_args = MakeRuleArgs(t, scratch);
    if (!layout_.HasGroups()) return rule_.decide(rule_args);
    float* const u = rule_args.u;
    AverageGroups(scratch, &rule_args);
    rule_.decide(rule_args);
    for (std::int64_t row = 0; row < rows_; ++row) {
      layout_.GroupsOfRow().Spread(rule_args.u + row * layout_.groups, u + row * layout_.hidden);
    }
  }

  // Adds the gradients of a step's decisions to those of the states before it.
  void DecideBack(TrainRuleArgs rule_args, const ThreadScratch& scratch) const {
    if (!layout_.HasGroups()) {
      rule_args.h.grad = call_.detaches_state ? nullptr : scratch.before[0];
      return rule_.decide_back(rule_args);
    }
    const GroupRows groups = layout_.GroupsOfRow();
    AverageGroups(scratch, &rule_args);
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* const sums = scratch.group_u + row * layout_.groups;
      groups.Sum(scratch.u + row * layout_.hidden, sums);
      groups.AddForNeurons(rule_args.DecisionWeight(row), sums);
    }
    rule_args.decision_weights = nullptr;
    rule_args.h.grad = call_.detaches_state ? nullptr : scratch.means_grad;
    std::memset(scratch.means_grad, 0, Bytes(rows_ * layout_.groups));
    rule_.decide_back(rule_args);
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* const grads = scratch.means_grad + row * layout_.groups;
      groups.Divide(grads);
      groups.Spread(grads, scratch.u + row * layout_.hidden);
    }
    Add(scratch.u, rows_ * layout_.hidden, scratch.before[0]);
  }

  // Replaces the states of neurons by their means over groups, and decisions by those of groups.
  void AverageGroups(const ThreadScratch& scratch, TrainRuleArgs* rule_args) const {
    const GroupRows groups = layout_.GroupsOfRow();
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* const means = scratch.means + row * layout_.groups;
      groups.Sum(rule_args->h.at + row * layout_.hidden, means);
      groups.Divide(means);
    }
    rule_args->h = {scratch.means, layout_.groups, nullptr, layout_.groups};
    rule_args->u = scratch.group_u;
    rule_args->u_grad = scratch.group_u;
  }

  // Copies rows of `columns` gradients from or to a tensor of the call, which may be null.
  void LoadGrads(const float* from, std::int64_t columns, float* to) const {
    CopyOrClear(from == nullptr ? nullptr : At(from, 0, columns), rows_ * columns, to);
  }
  void StoreGrads(const float* from, std::int64_t columns, float* to) const {
    if (to != nullptr) Copy(from, rows_ * columns, At(to, 0, columns));
  }

  // The number of memories that the rule's equations read.
  int Memories() const { return rule_.Remembers() ? rule_.equation_memories : 0; }

  // True if products read memories in place of x and h.
  bool Sends() const { return rule_.kind == RuleKind::kColumn; }

  // The arguments of the rule at step t, without the gradients of gates and states.
  TrainRuleArgs MakeRuleArgs(std::int64_t t, const ThreadScratch& scratch) const {
    TrainRuleArgs rule_args{};
    rule_args.rows = rows_;
    rule_args.hidden = layout_.hidden;
    rule_args.groups = layout_.groups;
    rule_args.slope = call_.slope;
    const float* decision_weights = call_.decision_weights;
    if (decision_weights != nullptr) rule_args.decision_weights = At(decision_weights, t, 1);
    for (int i = 0; i < kMaxRuleParams; ++i) {
      rule_args.params[i] = packed_.rule[i];
      rule_args.params_grad[i] = scratch.step.rule[i];
    }
    rule_args.u = At(call_.u, t, layout_.hidden);
    rule_args.u_grad = scratch.u;
    rule_args.inputs = layout_.inputs;
    rule_args.sign = cell_.update_gate.sign;
    rule_args.scores = scratch.scores;
    if (Sends()) {
      rule_args.e = {At(call_.x, t, layout_.inputs), layout_.inputs, nullptr, 0};
    } else {
      const bool gate = rule_.kind == RuleKind::kGate;
      const std::int64_t at = gate ? layout_.at[cell_.update_gate.gate] : layout_.rule_at;
      rule_args.e = {Gates(t) + at, layout_.gates, nullptr, 0};
    }
    rule_args.h = {Before(0, t), layout_.hidden, nullptr, layout_.hidden};
    const int evidence_state = EvidenceState(cell_.states);
    rule_args.after = {After(evidence_state, t), layout_.hidden, nullptr, layout_.hidden};
    for (int i = 0; i < (Sends() ? 2 : Memories()); ++i) {
      const std::int64_t size = layout_.MemorySize(i);
      rule_args.memory[i] =
          t == 0 ? At(call_.memory[i], 0, size) : At(call_.memories[i], t - 1, size);
      rule_args.memory_after[i] = At(call_.memories[i], t, size);
      rule_args.memory_grad[i] = scratch.memory[i];
    }
    rule_args.decision_grad = scratch.decision;
    rule_args.score_grad = scratch.score;
    rule_args.evidence = scratch.evidence;
    return rule_args;
  }

  // Accumulates the gradients of weights and biases over the steps [first, end), in one product to
  // read and write the sums less often.
  void AddWeightGrads(std::int64_t first, std::int64_t end, const ThreadScratch& scratch) const {
    const std::int64_t stride = scratch.gate_stride, depth = (end - first) * rows_;
    for (int operand = 0; operand < kOperands; ++operand) {
      const Term& term = layout_.terms[operand];
      if (term.count == 0 || term.grad == nullptr) continue;
      const float* gate_grads = ChunkGrads(static_cast<Operand>(operand), scratch);
      for (std::int64_t from = 0; from < term.depth; from += kPanel) {
        const std::int64_t remaining = term.depth - from;
        const std::int64_t columns = remaining < kPanel ? remaining : kPanel;
        // a chunk starts with its last step
        float* packed = scratch.panel;
        for (std::int64_t t = end - 1; t >= first; --t) {
          const ConstRows factor = FactorOf(static_cast<Operand>(operand), t).Skip(0, from);
          Pack(factor.at, factor.stride, columns, rows_, packed);
          packed += rows_ * PadToLanes(columns);
        }
        for (int i = 0; i < term.count; ++i) {
          const Segment& s = term.segments[i];
          float* to = scratch.total.weights[operand] + s.row * term.depth + from;
          MultiplyAdd({gate_grads + s.at, 1, stride}, s.columns, depth, scratch.panel,
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

  // The first row of this driver at step t, in memory with `columns` columns.
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

  float* Gates(std::int64_t t) const {
    return At(call_.p, call_.keep && call_.norms == nullptr ? t : 0, layout_.gates);
  }
  float* Mid(std::int64_t t) const { return At(call_.m, call_.keep ? t : 0, layout_.middle); }

  // The rows that a term's weights multiply.
  ConstRows FactorOf(Operand operand, std::int64_t t) const {
    switch (operand) {
      case kOperandH:
        if (Sends()) return {At(call_.memories[1], t, layout_.hidden), layout_.hidden};
        return {Before(0, t), layout_.hidden};
      case kOperandC:
        return {Before(1, t), layout_.hidden};
      case kOperandM:
        return {Mid(t), layout_.middle};
      default:
        return {At(Sends() ? call_.memories[0] : call_.x, t, layout_.inputs), layout_.inputs};
    }
  }

  TrainPointwiseArgs MakePointwiseArgs(std::int64_t t) const {
    TrainPointwiseArgs args{};
    args.cell = &cell_;
    args.rows = rows_;
    for (int g = 0; g < cell_.gates; ++g) {
      args.gate[g] = {Gates(t) + layout_.at[g], layout_.gates, nullptr, 0};
    }
    args.x = {At(call_.x, t, layout_.inputs), layout_.inputs, nullptr, 0};
    for (int s = 0; s < cell_.states; ++s) {
      args.state[s] = {Before(s, t), layout_.hidden, nullptr, 0};
    }
    for (int i = 0; i < cell_.params; ++i) args.params[i] = packed_.params[i];
    args.skips = rule_.can_skip && !Sends();
    if (args.skips) {
      float* grad = call_.u_grad;
      args.u = {At(call_.u, t, layout_.hidden), layout_.hidden,
                grad == nullptr ? nullptr : At(grad, t, layout_.hidden), layout_.hidden};
    }
    return args;
  }

  // Adds a term's product to the gates of step t.
  virtual void Multiply(Operand operand, std::int64_t t) const {
    const Term& term = layout_.terms[operand];
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      const ConstRows factor = FactorOf(operand, t);
      const OutputRows to = {Gates(t) + s.at, layout_.gates};
      const ConstRows start =
          s.first ? ConstRows{packed_.bias + s.at, 0} : ConstRows{to.at, to.stride};
      MultiplyAdd({factor.at, factor.stride, 1}, rows_, term.depth, s.packed, start, to, s.columns);
    }
  }

  // Accumulates the gradient of a term's right-hand operand from those of the gates.
  void MultiplyBack(Operand operand, ConstRows gates, OutputRows grad) const {
    const Term& term = layout_.terms[operand];
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      MultiplyAdd({gates.at + s.at, gates.stride, 1}, rows_, s.columns, s.packed,
                  {grad.at, grad.stride}, grad, term.depth);
    }
  }

  const PackedWeights& packed_;
  const GateLayout& layout_;
  const TrainCell& cell_;
  const TrainRule& rule_;
  const EdgernnTrainCall& call_;
  const std::int64_t first_;
  const std::int64_t rows_;
};

}  // namespace edgernn::EDGERNN_ISA
