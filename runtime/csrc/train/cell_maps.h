// SPDX-License-Identifier: Apache-2.0
// The point-wise maps of a built-in cell over the rows of a step, forward and backward. The
// backward maps evaluate the same equations on dual numbers.

#pragma once

#include "cpu/gemm.h"
#include "cpu/masked_lanes.h"
#include "train/dual.h"
#include "train/train_table.h"

namespace edgernn {

// Strided rows and their gradients.
struct RowsWithGrad {
  const float* at;
  std::int64_t stride;
  float* grad;
  std::int64_t grad_stride;
};

// The rows of one step; null where the map does not need them.
struct TrainPointwiseArgs {
  const TrainCell* cell;
  std::int64_t rows;
  std::int64_t size;                  // H, or M for the maps of m
  RowsWithGrad gate[kMaxGates];       // pre-activations; gradients are written
  RowsWithGrad x;                     // (rows, I); gradients are added
  RowsWithGrad state[kMaxStates];     // before the step; gradients are written, by mid_back added
  const float* params[kMaxParams];    // (padded size,); scalars broadcast to all lanes
  float* params_grad[kMaxParams];     // the same shapes; gradients are added
  float* out[kMaxStates];             // forward: the state after the step, or m
  const float* out_grad[kMaxStates];  // backward: gradients of `out`
  std::int64_t out_stride;
  bool skips;      // true if the rule has u; otherwise all neurons change
  RowsWithGrad u;  // (rows, H): update gates; the gradient is written unless null
};

}  // namespace edgernn

namespace edgernn::EDGERNN_ISA {

// Indices of the inputs that a point-wise map is differentiated by; -1: not an input of the map.
struct Inputs {
  int count;
  int gate[kMaxGates];
  int state[kMaxStates];
  int x;
  int params[kMaxParams];
};

// Lists the inputs of Cell::Mid if kForMid, otherwise of Cell::Update.
template <class Cell, bool kForMid>
constexpr Inputs ListInputs() {
  using Params = ParamsOf<Cell>;
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
    bool read = i < Params::kCount && Params::kList[i].map != Map::kLength;
    if (read && !kSquare<Cell>) {
      read = Params::kList[i].extent == extent || Params::kList[i].extent == Extent::kOne;
    }
    list.params[i] = read ? list.count++ : -1;
  }
  return list;
}

// Evaluates a map on the lanes of one row from column `at` on.
template <class Cell, bool kForMid>
struct PointMap {
  using Params = ParamsOf<Cell>;
  static constexpr Inputs kInputs = ListInputs<Cell, kForMid>();
  static constexpr int kStates = kStateCount<Cell>;
  static constexpr int kOuts = kForMid ? 1 : kStates;
  static constexpr int kParamSlots = Params::kCount > 0 ? Params::kCount : 1;

  // V is Vec or Dual. make(vector, input) converts a vector to V, as that input. `old` receives the
  // states before the step.
  template <class V, class Make>
  [[gnu::always_inline]] static void Run(const TrainPointwiseArgs& call, std::int64_t row,
                                         std::int64_t at, Lanes lanes, Make make, V* out,
                                         Vec* old) {
    V p[kUpdateInputs<Cell>], q[kParamSlots], state[kStates];
    const auto read = [&](const RowsWithGrad& from, int input) {
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
    for (int i = 0; i < Params::kCount; ++i) {
      const bool one = Params::kList[i].extent == Extent::kOne;
      const bool present = kInputs.params[i] >= 0 || one;
      q[i] = make(present ? Load(call.params[i] + (one ? 0 : at)) : Zero(), kInputs.params[i]);
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

// u updated + (1 - u) old; bit-exact where u is 0 or 1.
[[gnu::always_inline]] inline Vec Blend(Vec u, Vec updated, Vec old) {
  const Vec change = updated - old;
  const Vec::Raw mixed =
      u.raw < 0.5f ? (old + u * change).raw : (updated - (1.0f - u) * change).raw;
  return {u.raw == 0.0f ? old.raw : u.raw == 1.0f ? updated.raw : mixed};
}

template <class Cell, bool kForMid>
[[gnu::flatten]] void MapForward(const TrainPointwiseArgs& call) {
  using Point = PointMap<Cell, kForMid>;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    for (std::int64_t at = 0; at < call.size; at += kLanes) {
      const Lanes lanes(call.size - at);
      Vec out[Point::kOuts], old[Point::kStates];
      const auto make = [](Vec a, int) { return a; };
      Point::template Run<Vec>(call, row, at, lanes, make, out, old);
      if (!kForMid && call.skips) {
        const Vec u = lanes.Load(call.u.at + row * call.u.stride + at);
        for (int s = 0; s < Point::kOuts; ++s) out[s] = Blend(u, out[s], old[s]);
      }
      for (int s = 0; s < Point::kOuts; ++s) {
        lanes.Store(call.out[s] + row * call.out_stride + at, out[s]);
      }
    }
  }
}

template <class Cell, bool kForMid>
[[gnu::flatten]] void MapBackward(const TrainPointwiseArgs& call) {
  using Point = PointMap<Cell, kForMid>;
  static constexpr Inputs kInputs = Point::kInputs;
  constexpr int kCount = kInputs.count;
  using V = Dual<kCount>;
  for (std::int64_t row = 0; row < call.rows; ++row) {
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
      if (!kForMid && call.skips) {
        const Vec u = lanes.Load(call.u.at + row * call.u.stride + at);
        Vec u_grad = Zero();
        for (int s = 0; s < Point::kOuts; ++s) {
          u_grad = u_grad + grad[s] * (out[s].value - old[s]);
          kept[s] = grad[s] * (1.0f - u);
          grad[s] = grad[s] * u;
        }
        if (call.u.grad != nullptr) {
          lanes.Store(call.u.grad + row * call.u.grad_stride + at, u_grad);
        }
      }
      // the gradient of an input, by the chain rule over all outputs
      const auto accumulate = [&](int input, Vec sum) {
#pragma GCC unroll 8
        for (int s = 0; s < Point::kOuts; ++s) {
          if (out[s].DependsOn(input)) sum = sum + grad[s] * out[s].d[input];
        }
        return sum;
      };
#pragma GCC unroll 8
      for (int g = 0; g < kGateCount<Cell>; ++g) {
        if (kInputs.gate[g] < 0) continue;
        const RowsWithGrad& to = call.gate[g];
        lanes.Store(to.grad + row * to.grad_stride + at, accumulate(kInputs.gate[g], Zero()));
      }
#pragma GCC unroll 8
      for (int s = 0; s < Point::kStates; ++s) {
        if (kInputs.state[s] < 0) continue;
        float* to = call.state[s].grad + row * call.state[s].grad_stride + at;
        const Vec sum = accumulate(kInputs.state[s], kForMid ? lanes.Load(to) : kept[s]);
        lanes.Store(to, sum);
      }
      if (kInputs.x >= 0 && call.x.grad != nullptr) {
        float* to = call.x.grad + row * call.x.grad_stride + at;
        lanes.Store(to, accumulate(kInputs.x, lanes.Load(to)));
      }
#pragma GCC unroll 8
      for (int i = 0; i < kMaxParams; ++i) {
        if (kInputs.params[i] < 0) continue;
        const bool one = Point::Params::kList[i].extent == Extent::kOne;
        float* to = call.params_grad[i] + (one ? 0 : at);
        lanes.Store(to, accumulate(kInputs.params[i], lanes.Load(to)));
      }
    }
  }
}

template <class Cell>
constexpr TrainCell MakeTrainCell() {
  TrainCell cell{};
  static_cast<CellTable&>(cell) = MakeCellTable<Cell>();
  cell.update = &MapForward<Cell, false>;
  cell.update_back = &MapBackward<Cell, false>;
  if constexpr (kHasMid<Cell>) {
    cell.mid = &MapForward<Cell, true>;
    cell.mid_back = &MapBackward<Cell, true>;
  }
  return cell;
}

}  // namespace edgernn::EDGERNN_ISA
