// SPDX-License-Identifier: Apache-2.0
// The buffers of a training call: what all threads read, and what each has for itself.

#ifndef EDGERNN_TRAIN_SCRATCH_H_
#define EDGERNN_TRAIN_SCRATCH_H_

#include "train/layout.h"

namespace edgernn::EDGERNN_ISA {

inline void Copy(const float* from, std::int64_t count, float* to) {
  std::memcpy(to, from, Bytes(count));
}

// The weights packed for one direction, and the vectors padded.
struct Prepared {
  Layout layout;
  float* bias;             // (padded P,), 0 where a gate has none
  float* own[kMaxParams];  // (padded size,), scalars as a vector of equal lanes
  float* rule_d;           // (padded H,)
  float* skip_w;           // (padded H,)
  std::size_t bytes;

  Prepared(const TrainCell& cell, const EdgernnTrainCall& call, bool back, void* base)
      : layout(cell, call) {
    Carver carver(base);
    layout.Carve(back, &carver);
    bias = carver.Take<float>(Padded(layout.gates));
    for (int i = 0; i < cell.params; ++i) {
      own[i] = carver.Take<float>(Padded(layout.OwnSize(i, call.input)));
    }
    rule_d = carver.Take<float>(call.rule_d == nullptr ? 0 : Padded(call.hidden));
    skip_w = carver.Take<float>(call.skip_w == nullptr ? 0 : Padded(call.hidden));
    bytes = carver.used();
  }

  void Fill(const EdgernnTrainCall& call, bool back) const {
    layout.PackWeights(back);
    std::memset(bias, 0, Bytes(layout.gates));
    for (int g = 0; g < layout.cell.gates; ++g) {
      if (layout.bias_row[g] < 0) continue;
      Copy(call.b + layout.bias_row[g], layout.size[g], bias + layout.at[g]);
    }
    if (call.rule_b != nullptr) Copy(call.rule_b, layout.hidden, bias + layout.rule_at);
    for (int i = 0; i < layout.cell.params; ++i) {
      const float* from = call.own[i];
      if (layout.cell.extents[i] != Extent::kOne) {
        PadVector(from, layout.OwnSize(i, call.input), own[i]);
        continue;
      }
      const bool whole = layout.cell.maps[i] == Map::kLength && *from == 0.0f;
      Store(own[i], EDGERNN_ISA::Fill(whole ? static_cast<float>(call.steps) : *from));
    }
    if (call.rule_d != nullptr) PadVector(call.rule_d, call.hidden, rule_d);
    if (call.skip_w != nullptr) PadVector(call.skip_w, call.hidden, skip_w);
  }

  static void PadVector(const float* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; i += kLanes) Store(to + i, Lanes(count - i).Load(from + i));
  }
};

// Hands out parts of a buffer in whole vectors, so that all of it can be added to another.
struct Parts {
  float* base;
  std::int64_t count = 0;

  explicit Parts(float* buffer) : base(buffer) {}

  float* Take(std::int64_t size) {
    float* at = base == nullptr ? nullptr : base + count;
    count += Padded(size);
    return at;
  }

  void Clear() const { std::memset(base, 0, Bytes(count)); }

  void Add(const Parts& more) const {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      Store(base + i, Load(base + i) + Load(more.base + i));
    }
  }
};

// The gradients of vectors that the point-wise maps read.
struct PointSums {
  float* own[kMaxParams];  // as Prepared has them
  float* rule_d;
  float* skip_w;
  float* skip_b;

  PointSums(const Layout& layout, const EdgernnTrainCall& call, Parts* parts) {
    for (int i = 0; i < layout.cell.params; ++i) {
      own[i] = parts->Take(layout.OwnSize(i, call.input));
    }
    rule_d = parts->Take(call.rule_d == nullptr ? 0 : call.hidden);
    skip_w = parts->Take(call.skip_w == nullptr ? 0 : call.hidden);
    skip_b = parts->Take(call.skip_w == nullptr ? 0 : 1);
  }
};

// The gradients that all rows of a batch share, summed over those of one thread.
struct SharedSums {
  Parts parts;
  PointSums points;
  Parts point_parts;         // those of `points`, which come first
  float* weights[kSources];  // as the call has them
  float* gates;              // (P,), and from that the biases

  SharedSums(const Layout& layout, const EdgernnTrainCall& call, float* base)
      : parts(base), points(layout, call, &parts), point_parts(parts) {
    for (int i = 0; i < kSources; ++i) {
      weights[i] = parts.Take(layout.terms[i].rows * layout.terms[i].depth);
    }
    gates = parts.Take(layout.gates);
  }

  // Writes what the call asks for.
  void Write(const Layout& layout, const EdgernnTrainCall& call) const {
    for (int i = 0; i < kSources; ++i) {
      const Term& term = layout.terms[i];
      Give(weights[i], term.rows * term.depth, term.grad);
    }
    for (int g = 0; g < layout.cell.gates && call.b_grad != nullptr; ++g) {
      if (layout.bias_row[g] < 0) continue;
      Give(gates + layout.at[g], layout.size[g], call.b_grad + layout.bias_row[g]);
    }
    Give(gates + layout.rule_at, layout.hidden, call.rule_b_grad);
    Give(points.rule_d, layout.hidden, call.rule_d_grad);
    Give(points.skip_w, layout.hidden, call.skip_w_grad);
    Give(points.skip_b, 1, call.skip_b_grad);
    for (int i = 0; i < layout.cell.params; ++i) {
      const bool one = layout.cell.extents[i] == Extent::kOne;
      // a scalar has been read by all lanes
      for (int lane = 1; one && lane < kLanes; ++lane) points.own[i][0] += points.own[i][lane];
      Give(points.own[i], layout.OwnSize(i, call.input), call.own_grad[i]);
    }
  }

  // Unless nobody asks for it.
  static void Give(const float* from, std::int64_t count, float* to) {
    if (to != nullptr) Copy(from, count, to);
  }
};

// What one thread has for so many rows.
struct RowScratch {
  SharedSums total;
  Parts step_parts;
  PointSums step;      // of one step: sums of sums round less
  std::int64_t chunk;  // so many steps are gathered in `gates`
  std::int64_t gate_stride;
  float* gates;               // (chunk * rows, gate_stride): the gradients of the gates
  float* panel;               // (chunk * rows, kPanel)
  float* grad[kMaxStates];    // (rows, H) each: of the states after a step
  float* before[kMaxStates];  // (rows, H) each: of those before it
  float* mid;                 // (rows, M)
  float* pressure;            // (rows,): the gradient of what it is before a step
  float* by_decision;         // (rows,)
  std::size_t bytes;

  RowScratch(const Layout& layout, const EdgernnTrainCall& call, std::int64_t rows, void* base)
      : total(layout, call, static_cast<float*>(base)),
        step_parts(base == nullptr ? nullptr : total.parts.base + total.parts.count),
        step(layout, call, &step_parts) {
    // enough rows to make a product of, few enough to stay in the cache
    constexpr std::int64_t kRows = 192;
    chunk = rows < kRows ? kRows / rows : 1;
    // as much for fewer rows, so that the largest part of a batch needs the most
    const std::int64_t gathered = rows < kRows ? kRows : rows;
    // a power of two between rows would bring all of them to a few lines of the cache
    gate_stride = Padded(layout.gates) + kLanes;
    Carver carver(base);
    carver.Take<float>(total.parts.count + step_parts.count);
    gates = carver.Take<float>(gathered * gate_stride);
    panel = carver.Take<float>(gathered * kPanel);
    for (int s = 0; s < layout.cell.states; ++s) {
      grad[s] = carver.Take<float>(rows * layout.hidden);
      before[s] = carver.Take<float>(rows * layout.hidden);
    }
    mid = carver.Take<float>(layout.cell.has_mid ? rows * layout.middle : 0);
    pressure = carver.Take<float>(call.skip_w == nullptr ? 0 : rows);
    by_decision = carver.Take<float>(call.skip_w == nullptr ? 0 : rows);
    bytes = carver.used();
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_SCRATCH_H_
