// SPDX-License-Identifier: Apache-2.0
// The point-wise maps of a cell over the rows of a step, forward and backward. The backward ones
// run the cell's own equations on dual numbers.

#ifndef EDGERNN_TRAIN_POINTS_H_
#define EDGERNN_TRAIN_POINTS_H_

#include "gemm.h"
#include "train/dual.h"
#include "train/lanes.h"
#include "train/train.h"

namespace edgernn {

// Rows of numbers, `stride` apart, and of their gradients, `grad_stride` apart.
struct Points {
  const float* at;
  std::int64_t stride;
  float* grad;
  std::int64_t grad_stride;
};

// The rows of one step. What a map does not need is null.
struct PointCall {
  std::int64_t rows;
  std::int64_t size;                 // H, or M for the maps of m
  Points gate[kMaxGates];            // pre-activations; gradients are written
  Points x;                          // (rows, I); gradients are added
  Points state[kMaxStates];          // before the step; gradients are written, by mid_back added
  const float* own[kMaxParams];      // (padded size,), scalars as a vector of equal lanes
  float* own_grad[kMaxParams];       // likewise, added
  float* out[kMaxStates];            // forward: the state after the step, or m
  const float* out_grad[kMaxStates];  // backward: its gradients
  std::int64_t out_stride;
  // the rule `selective`, where rule_e.at is given
  Points rule_e;         // (rows, H); gradients are written
  const float* rule_d;   // (padded H,)
  float* rule_d_grad;    // (padded H,), added
  float slope;
  float decision_weight;
  float likelihood_weight;
  std::uint8_t* decisions;  // (rows, H)
  // the rule `skip`, where it is given
  const float* pressure;  // (rows,), before the step
  float* by_decision;     // (rows,), written: the gradient by what a row decides
  // a rule that decides from the step alone, where it is given
  Points share;  // (rows, H); gradients are written
};

}  // namespace edgernn

namespace edgernn::EDGERNN_ISA {

// The inputs of a point-wise map that it may be differentiated by, numbered; -1: not one of them.
struct Inputs {
  int count;
  int gate[kMaxGates];
  int state[kMaxStates];
  int x;
  int own[kMaxParams];
};

// Of Cell::Mid or, without kForMid, of Cell::Update.
template <class Cell, bool kForMid>
constexpr Inputs ListInputs() {
  using Own = ParamsOf<Cell>;
  Inputs list{};
  for (int g = 0; g < kMaxGates; ++g) {
    const bool read = g < kGateCount<Cell> && ((Cell::kGates[g].terms & kMid) != 0) == kForMid;
    list.gate[g] = read ? list.count++ : -1;
  }
  const bool states = !kForMid || !kMidIsInput<Cell> || kSquare<Cell>;
  for (int s = 0; s < kMaxStates; ++s) {
    list.state[s] = states && s < kStateCount<Cell> ? list.count++ : -1;
  }
  list.x = (kForMid ? kReadsInput<Cell> : kSquare<Cell>) ? list.count++ : -1;
  const Extent extent = kForMid ? MidExtentOf<Cell>::kExtent : Extent::kHidden;
  for (int i = 0; i < kMaxParams; ++i) {
    bool read = i < Own::kCount && Own::kList[i].map != Map::kLength;
    if (read && !kSquare<Cell>) {
      read = Own::kList[i].extent == extent || Own::kList[i].extent == Extent::kOne;
    }
    list.own[i] = read ? list.count++ : -1;
  }
  return list;
}

// What a map is given, and what comes of it, at the lanes of one row from column `at` on.
template <class Cell, bool kForMid>
struct PointMap {
  using Own = ParamsOf<Cell>;
  static constexpr Inputs kInputs = ListInputs<Cell, kForMid>();
  static constexpr int kStates = kStateCount<Cell>;
  static constexpr int kOuts = kForMid ? 1 : kStates;
  static constexpr int kOwn = Own::kCount > 0 ? Own::kCount : 1;

  // V is Vec or a dual number; `make` makes it from a vector and the number of the input.
  template <class V, class Make>
  [[gnu::always_inline]] static void Run(const PointCall& call, std::int64_t row, std::int64_t at,
                                         Lanes lanes, Make make, V* out, Vec* old) {
    V p[kGivenCount<Cell>], q[kOwn], state[kStates];
    const auto read = [&](const Points& from, int input) {
      return make(lanes.Load(from.at + row * from.stride + at), input);
    };
#pragma GCC unroll 8
    for (int g = 0; g < kGateCount<Cell>; ++g) {
      p[g] = kInputs.gate[g] >= 0 ? read(call.gate[g], kInputs.gate[g]) : make(Zero(), -1);
    }
    V x = kInputs.x >= 0 ? read(call.x, kInputs.x) : make(Zero(), -1);
    if constexpr (kSquare<Cell>) p[kGateCount<Cell>] = x;
#pragma GCC unroll 8
    for (int s = 0; s < kStates; ++s) {
      old[s] = Zero();
      if (kInputs.state[s] >= 0) {
        old[s] = lanes.Load(call.state[s].at + row * call.state[s].stride + at);
      }
      state[s] = make(old[s], kInputs.state[s]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Own::kCount; ++i) {
      const bool one = Own::kList[i].extent == Extent::kOne;
      const bool given = kInputs.own[i] >= 0 || one;
      q[i] = make(given ? Load(call.own[i] + (one ? 0 : at)) : Zero(), kInputs.own[i]);
    }
    if constexpr (kForMid) {
      out[0] = Cell::Mid(p, q, x, state);
    } else {
      Cell::Update(p, q, state);
#pragma GCC unroll 8
      for (int s = 0; s < kStates; ++s) out[s] = state[s];
    }
  }
};

// v of the rule `selective`: a neuron changes where it is above 0.
[[gnu::always_inline]] inline Vec Pressure(const PointCall& call, std::int64_t row, std::int64_t at,
                                           Lanes lanes, Vec h) {
  return lanes.Load(call.rule_e.at + row * call.rule_e.stride + at) + Load(call.rule_d + at) * h;
}

[[gnu::always_inline]] inline float Sum(Vec a) { return Sum4(a, a, a, a)[0]; }

// Whether a row changes under the rule `skip`.
[[gnu::always_inline]] inline bool Changes(const PointCall& call, std::int64_t row) {
  return call.pressure[row] >= 0.5f;
}

// u of a rule that decides from the step alone.
[[gnu::always_inline]] inline Vec Share(const PointCall& call, std::int64_t row, std::int64_t at,
                                        Lanes lanes) {
  return lanes.Load(call.share.at + row * call.share.stride + at);
}

// u made + (1 - u) old, which is one of the two to the bit where u is 1 or 0.
[[gnu::always_inline]] inline Vec Blend(Vec u, Vec made, Vec old) {
  const Vec change = made - old;
  return {u.raw < 0.5f ? (old + u * change).raw : (made - (1.0f - u) * change).raw};
}

template <class Cell, bool kForMid>
[[gnu::flatten]] void MapForward(const PointCall& call) {
  using Point = PointMap<Cell, kForMid>;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    for (std::int64_t at = 0; at < call.size; at += kLanes) {
      const Lanes lanes(call.size - at);
      Vec out[Point::kOuts], old[Point::kStates];
      const auto make = [](Vec a, int) { return a; };
      Point::template Run<Vec>(call, row, at, lanes, make, out, old);
      if (!kForMid && call.rule_e.at != nullptr) {
        const Vec v = Pressure(call, row, at, lanes, old[0]);
        for (int s = 0; s < Point::kOuts; ++s) {
          out[s].raw = v.raw > 0.0f ? out[s].raw : old[s].raw;
        }
        typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
        const Bytes ones = __builtin_convertvector(v.raw > 0.0f, Bytes) & 1;
        std::uint8_t* decisions = call.decisions + row * call.size + at;
        if (call.size - at >= kLanes) {
          std::memcpy(decisions, &ones, sizeof(ones));
        } else {
          std::memcpy(decisions, &ones, static_cast<std::size_t>(call.size - at));
        }
      }
      if (!kForMid && call.pressure != nullptr && !Changes(call, row)) {
        for (int s = 0; s < Point::kOuts; ++s) out[s] = old[s];
      }
      if (!kForMid && call.share.at != nullptr) {
        const Vec u = Share(call, row, at, lanes);
        for (int s = 0; s < Point::kOuts; ++s) out[s] = Blend(u, out[s], old[s]);
      }
      for (int s = 0; s < Point::kOuts; ++s) {
        lanes.Store(call.out[s] + row * call.out_stride + at, out[s]);
      }
    }
  }
}

template <class Cell, bool kForMid>
[[gnu::flatten]] void MapBackward(const PointCall& call) {
  using Point = PointMap<Cell, kForMid>;
  static constexpr Inputs kInputs = Point::kInputs;
  constexpr int kCount = kInputs.count;
  using V = Dual<kCount>;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    Vec by_row = Zero();
    for (std::int64_t at = 0; at < call.size; at += kLanes) {
      const Lanes lanes(call.size - at);
      V out[Point::kOuts];
      Vec old[Point::kStates], grad[Point::kOuts], kept[Point::kStates];
      const auto make = [](Vec a, int input) {
        return input < 0 ? Constant<kCount>(a) : Input<kCount>(a, input);
      };
      Point::template Run<V>(call, row, at, lanes, make, out, old);
      for (int s = 0; s < Point::kOuts; ++s) {
        grad[s] = lanes.Load(call.out_grad[s] + row * call.out_stride + at);
      }
      for (Vec& k : kept) k = Zero();
      if (!kForMid && call.rule_e.at != nullptr) {
        const Vec::Raw v = Pressure(call, row, at, lanes, old[0]).raw;
        const Vec::Raw none{}, size = v * call.slope < 0.0f ? -v * call.slope : v * call.slope;
        // by the decision, as if it were the likelihood clamp((slope v + 1) / 2, 0, 1)
        Vec by_decision = Fill(call.decision_weight);
        for (int s = 0; s < Point::kOuts; ++s) {
          by_decision = by_decision + grad[s] * (out[s].value - old[s]);
          kept[s].raw = v > 0.0f ? none : grad[s].raw;
          grad[s].raw = v > 0.0f ? grad[s].raw : none;
        }
        const Vec half = Fill(call.slope * 0.5f);
        const Vec e_grad = Vec{size < 1.0f ? (by_decision * half).raw : none} +
                           Vec{size <= 1.0f ? (half * call.likelihood_weight).raw : none};
        lanes.Store(call.rule_e.grad + row * call.rule_e.grad_stride + at, e_grad);
        float* d_grad = call.rule_d_grad + at;
        Store(d_grad, Load(d_grad) + e_grad * old[0]);
        kept[0] = kept[0] + e_grad * Load(call.rule_d + at);
      }
      if (!kForMid && call.pressure != nullptr) {
        const bool changes = Changes(call, row);
        for (int s = 0; s < Point::kOuts; ++s) {
          by_row = by_row + grad[s] * (out[s].value - old[s]);
          kept[s] = changes ? Zero() : grad[s];
          grad[s] = changes ? grad[s] : Zero();
        }
      }
      if (!kForMid && call.share.at != nullptr) {
        const Vec u = Share(call, row, at, lanes);
        Vec by_share = Zero();
        for (int s = 0; s < Point::kOuts; ++s) {
          by_share = by_share + grad[s] * (out[s].value - old[s]);
          kept[s] = grad[s] * (1.0f - u);
          grad[s] = grad[s] * u;
        }
        if (call.share.grad != nullptr) {
          lanes.Store(call.share.grad + row * call.share.grad_stride + at, by_share);
        }
      }
      // the gradient by an input of the map, from those by what came of it
      const auto gather = [&](int input, Vec sum) {
#pragma GCC unroll 8
        for (int s = 0; s < Point::kOuts; ++s) {
          if (out[s].DependsOn(input)) sum = sum + grad[s] * out[s].d[input];
        }
        return sum;
      };
#pragma GCC unroll 8
      for (int g = 0; g < kGateCount<Cell>; ++g) {
        if (kInputs.gate[g] < 0) continue;
        const Points& to = call.gate[g];
        lanes.Store(to.grad + row * to.grad_stride + at, gather(kInputs.gate[g], Zero()));
      }
#pragma GCC unroll 8
      for (int s = 0; s < Point::kStates; ++s) {
        if (kInputs.state[s] < 0) continue;
        float* to = call.state[s].grad + row * call.state[s].grad_stride + at;
        const Vec sum = gather(kInputs.state[s], kForMid ? lanes.Load(to) : kept[s]);
        lanes.Store(to, sum);
      }
      if (kInputs.x >= 0 && call.x.grad != nullptr) {
        float* to = call.x.grad + row * call.x.grad_stride + at;
        lanes.Store(to, gather(kInputs.x, lanes.Load(to)));
      }
#pragma GCC unroll 8
      for (int i = 0; i < kMaxParams; ++i) {
        if (kInputs.own[i] < 0) continue;
        const bool one = Point::Own::kList[i].extent == Extent::kOne;
        float* to = call.own_grad[i] + (one ? 0 : at);
        lanes.Store(to, gather(kInputs.own[i], lanes.Load(to)));
      }
    }
    if (!kForMid && call.pressure != nullptr) call.by_decision[row] = Sum(by_row);
  }
}

template <class Cell>
constexpr TrainCell MakeTrainCell() {
  TrainCell made{MakeCellTable<Cell>(), nullptr, nullptr, nullptr, nullptr};
  made.update = &MapForward<Cell, false>;
  made.update_back = &MapBackward<Cell, false>;
  if constexpr (kHasMid<Cell>) {
    made.mid = &MapForward<Cell, true>;
    made.mid_back = &MapBackward<Cell, true>;
  }
  return made;
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_POINTS_H_
