// SPDX-License-Identifier: Apache-2.0
// The loop over time of a training call, for some rows of its batch. It knows no cell: what differs
// between cells is in tables and in two point-wise maps.

#ifndef EDGERNN_TRAIN_SEQUENCE_H_
#define EDGERNN_TRAIN_SEQUENCE_H_

#include "train/points.h"
#include "train/scratch.h"

namespace edgernn::EDGERNN_ISA {

class Sequence {
 public:
  Sequence(const Prepared& prepared, const EdgernnTrainCall& call, std::int64_t first,
           std::int64_t end)
      : prepared_(prepared),
        layout_(prepared.layout),
        cell_(prepared.layout.cell),
        call_(call),
        first_(first),
        rows_(end - first) {}

  void Forward() const {
    for (std::int64_t t = 0; t < call_.steps; ++t) {
      PointCall points = MakePoints(t);
      for (const Source source : {kOfX, kOfH, kOfC, kOfRule}) Multiply(source, t);
      if (cell_.has_mid) {
        points.size = points.out_stride = layout_.middle;
        points.out[0] = Mid(t);
        cell_.mid(points);
        Multiply(kOfM, t);
      }
      points.size = points.out_stride = layout_.hidden;
      for (int s = 0; s < cell_.states; ++s) points.out[s] = After(s, t);
      cell_.update(points);
      if (call_.skip_w != nullptr) Press(t);
    }
  }

  void Backward(void* base) const {
    RowScratch scratch(layout_, call_, rows_, base);
    scratch.total.parts.Clear();
    for (int s = 0; s < cell_.states; ++s) {
      const float* from = call_.last_grad[s];
      CopyRows(from == nullptr ? nullptr : At(from, 0, layout_.hidden), scratch.grad[s]);
    }
    if (call_.skip_w != nullptr) {
      const float* from = call_.pressures_grad;
      for (std::int64_t i = 0; i < rows_; ++i) {
        scratch.pressure[i] = from == nullptr ? 0.0f : from[first_ + i];
      }
    }
    std::int64_t done = call_.steps;
    for (std::int64_t t = call_.steps - 1; t >= 0; --t) {
      if (call_.y_grad != nullptr) AddRows(At(call_.y_grad, t, layout_.hidden), scratch.grad[0]);
      scratch.step_parts.Clear();
      if (call_.skip_w != nullptr) PressBack(t, scratch);
      StepBack(t, scratch, scratch.gates + (done - 1 - t) * rows_ * scratch.gate_stride);
      scratch.total.point_parts.Add(scratch.step_parts);
      if (done - t == scratch.chunk || t == 0) {
        AddWeightGrads(t, done, scratch);
        done = t;
      }
      for (int s = 0; s < cell_.states; ++s) {
        float* made = scratch.before[s];
        scratch.before[s] = scratch.grad[s];
        scratch.grad[s] = made;
      }
    }
    for (int s = 0; s < cell_.states; ++s) {
      if (call_.start_grad[s] == nullptr) continue;
      CopyRows(scratch.grad[s], At(call_.start_grad[s], 0, layout_.hidden));
    }
    if (call_.pressure_grad != nullptr) {
      Copy(scratch.pressure, rows_, At(call_.pressure_grad, 0, 1));
    }
  }

 private:
  // From the gradients of the states after step t to those before it, and of the gates, (rows, P).
  void StepBack(std::int64_t t, const RowScratch& scratch, float* gates) const {
    PointCall points = MakePoints(t);
    const std::int64_t stride = scratch.gate_stride;
    for (int g = 0; g < cell_.gates; ++g) {
      points.gate[g].grad = gates + layout_.at[g];
      points.gate[g].grad_stride = stride;
    }
    points.rule_e.grad = gates + layout_.rule_at;
    points.rule_e.grad_stride = stride;
    points.rule_d_grad = scratch.step.rule_d;
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
    for (int i = 0; i < cell_.params; ++i) points.own_grad[i] = scratch.step.own[i];
    points.size = points.out_stride = layout_.hidden;
    points.by_decision = scratch.by_decision;
    cell_.update_back(points);
    for (std::int64_t i = 0; call_.skip_w != nullptr && i < rows_; ++i) {
      scratch.pressure[i] += scratch.by_decision[i] + call_.decision_weight;
    }
    const Lines made = {gates, stride};
    if (cell_.has_mid) {
      std::memset(scratch.mid, 0, Bytes(rows_ * layout_.middle));
      MultiplyBack(kOfM, made, {scratch.mid, layout_.middle});
      points.size = points.out_stride = layout_.middle;
      points.out_grad[0] = scratch.mid;
      cell_.mid_back(points);
    }
    MultiplyBack(kOfH, made, {scratch.before[0], layout_.hidden});
    if (cell_.states > 1) MultiplyBack(kOfC, made, {scratch.before[1], layout_.hidden});
    if (call_.x_grad != nullptr) {
      MultiplyBack(kOfX, made, {points.x.grad, layout_.inputs});
      MultiplyBack(kOfRule, made, {points.x.grad, layout_.inputs});
    }
  }

  const float* PressureBefore(std::int64_t t) const {
    return t == 0 ? At(call_.pressure, 0, 1) : At(call_.pressures, t - 1, 1);
  }

  // The state that the rule `skip` reads after step t: c of a cell that has one.
  const float* Read(std::int64_t t) const { return After(cell_.states > 1 ? 1 : 0, t); }

  // How much a state (H,) makes the pressure grow.
  float Growth(const float* state) const {
    Vec sum = Zero();
    for (std::int64_t j = 0; j < layout_.hidden; j += kLanes) {
      sum = sum + Load(prepared_.skip_w + j) * Lanes(layout_.hidden - j).Load(state + j);
    }
    return Sigmoid(EDGERNN_ISA::Fill(Sum(sum) + *call_.skip_b)).raw[0];
  }

  // The rule `skip` after step t.
  void Press(std::int64_t t) const {
    const float* before = PressureBefore(t);
    float* after = At(call_.pressures, t, 1);
    for (std::int64_t i = 0; i < rows_; ++i) {
      const float growth = Growth(Read(t) + i * layout_.hidden);
      const float room = 1.0f - before[i];
      after[i] = before[i] >= 0.5f ? growth : before[i] + (growth < room ? growth : room);
    }
  }

  // From the gradient of the pressure after step t to that of the state, and of the pressure before
  // it but for what comes by way of the state.
  void PressBack(std::int64_t t, const RowScratch& scratch) const {
    const float* before = PressureBefore(t);
    for (std::int64_t i = 0; i < rows_; ++i) {
      const float* state = Read(t) + i * layout_.hidden;
      const float growth = Growth(state), room = 1.0f - before[i];
      const float grown = before[i] + (growth < room ? growth : room);
      const float grad = scratch.pressure[i];
      // of two equal numbers the smaller one is half either
      const float share = before[i] >= 0.5f || growth < room ? 1.0f : growth == room ? 0.5f : 0.0f;
      const float sum_grad = grad * share * growth * (1.0f - growth);
      scratch.pressure[i] = grad * (growth - grown) + (before[i] >= 0.5f ? 0.0f : grad * share);
      float* state_grad = scratch.grad[cell_.states > 1 ? 1 : 0] + i * layout_.hidden;
      for (std::int64_t j = 0; j < layout_.hidden; j += kLanes) {
        const Lanes lanes(layout_.hidden - j);
        const Vec w = Load(prepared_.skip_w + j), s = lanes.Load(state + j);
        lanes.Store(state_grad + j, lanes.Load(state_grad + j) + w * sum_grad);
        Store(scratch.step.skip_w + j, Load(scratch.step.skip_w + j) + s * sum_grad);
      }
      *scratch.step.skip_b += sum_grad;
    }
  }

  // What the steps from `first` to `end` give to the gradients of weights and biases. Several steps
  // make one product, so that the sums are read and written less often.
  void AddWeightGrads(std::int64_t first, std::int64_t end, const RowScratch& scratch) const {
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
          packed += rows_ * Padded(columns);
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

  PointCall MakePoints(std::int64_t t) const {
    PointCall points{};
    points.rows = rows_;
    for (int g = 0; g < cell_.gates; ++g) {
      points.gate[g] = {Gates(t) + layout_.at[g], layout_.gates, nullptr, 0};
    }
    points.x = {At(call_.x, t, layout_.inputs), layout_.inputs, nullptr, 0};
    for (int s = 0; s < cell_.states; ++s) {
      points.state[s] = {Before(s, t), layout_.hidden, nullptr, 0};
    }
    for (int i = 0; i < cell_.params; ++i) points.own[i] = prepared_.own[i];
    if (call_.skip_w != nullptr) points.pressure = PressureBefore(t);
    if (call_.share != nullptr) {
      float* grad = call_.share_grad;
      points.share = {At(call_.share, t, layout_.hidden), layout_.hidden,
                      grad == nullptr ? nullptr : At(grad, t, layout_.hidden), layout_.hidden};
    }
    if (call_.rule_d != nullptr) {
      points.rule_e = {Gates(t) + layout_.rule_at, layout_.gates, nullptr, 0};
      points.rule_d = prepared_.rule_d;
      points.slope = call_.slope;
      points.decision_weight = call_.decision_weight;
      points.likelihood_weight = call_.likelihood_weight;
      if (call_.decisions != nullptr) points.decisions = At(call_.decisions, t, layout_.hidden);
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
  void CopyRows(const float* from, float* to) const {
    if (from == nullptr) {
      std::memset(to, 0, Bytes(rows_ * layout_.hidden));
    } else {
      std::memcpy(to, from, Bytes(rows_ * layout_.hidden));
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
  const Layout& layout_;
  const TrainCell& cell_;
  const EdgernnTrainCall& call_;
  const std::int64_t first_;
  const std::int64_t rows_;
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_SEQUENCE_H_
