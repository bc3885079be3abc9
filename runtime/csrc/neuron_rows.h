// SPDX-License-Identifier: Apache-2.0
// Weights packed neuron by neuron, and the dot products of single neurons.
//
// The row of a neuron holds, for its gates outside kMid: [x][gates with x], [h][gates with h],
// [m][gates with m], where [x], [h] and [m] count vectors of I, H and M.

#ifndef EDGERNN_NEURON_ROWS_H_
#define EDGERNN_NEURON_ROWS_H_

#include "gemm.h"

namespace edgernn::EDGERNN_ISA {

template <class Cell>
struct RowGates {
  using All = GateSet<Cell, 0, kMid>;
  using Input = GateSet<Cell, kX, kMid>;
  using Hidden = GateSet<Cell, kH, kMid>;
  using Middle = GateSet<Cell, kM, kMid>;

  // Gates are summed four at a time; so many of them are stored.
  static constexpr int kSums = (All::kCount + 3) / 4 * 4;

  static std::int64_t Floats(const Sizes& sizes) {
    return Padded(sizes.input) * Input::kCount + Padded(sizes.hidden) * Hidden::kCount +
           Padded(MidSize<Cell>(sizes)) * Middle::kCount;
  }

  // Multiply-adds of one neuron's row.
  static std::int64_t Macs(const Sizes& sizes) {
    return sizes.input * Input::kCount + sizes.hidden * Hidden::kCount +
           MidSize<Cell>(sizes) * Middle::kCount;
  }
};

// Packs one neuron's part for the gates of `Set`; returns where it ends.
template <class Cell, unsigned kTerm, class Set>
float* PackRowPart(const Sizes& sizes, const float* source, std::int64_t neuron,
                   std::int64_t columns, float* packed) {
  for (std::int64_t k = 0; k < Padded(columns); k += kLanes) {
    for (int i = 0; i < Set::kCount; ++i) {
      const std::int64_t row = FirstRow<Cell, kTerm>(sizes, Set::kList.at[i]) + neuron;
      for (int lane = 0; lane < kLanes; ++lane) {
        *packed++ = k + lane < columns ? source[row * columns + k + lane] : 0.0f;
      }
    }
  }
  return packed;
}

// rows (H, Floats), b (H, kSums)
template <class Cell>
void PackRows(const Sizes& sizes, const Weights& from, float* rows, float* b) {
  using Gates = RowGates<Cell>;
  const std::int64_t hidden = sizes.hidden;
  for (std::int64_t j = 0; j < hidden; ++j) {
    rows = PackRowPart<Cell, kX, typename Gates::Input>(sizes, from.w, j, sizes.input, rows);
    rows = PackRowPart<Cell, kH, typename Gates::Hidden>(sizes, from.r, j, hidden, rows);
    rows =
        PackRowPart<Cell, kM, typename Gates::Middle>(sizes, from.v, j, MidSize<Cell>(sizes), rows);
    for (int i = 0; i < Gates::kSums; ++i) {
      const int gate = Gates::All::kList.at[i];
      const bool biased = i < Gates::All::kCount && (Cell::kGates[gate].terms & kBias) != 0;
      *b++ = biased ? from.b[FirstRow<Cell, kBias>(sizes, gate) + j] : 0.0f;
    }
  }
}

// p[n][g] += a · row n for the gates g of `Set`, lane by lane; moves the rows on.
template <class Set, int N, int G>
[[gnu::always_inline]] inline void MultiplyRows(const float* a, std::int64_t columns,
                                                const float* (&rows)[N], Vec (&p)[N][G]) {
  if constexpr (Set::kCount > 0) {
    for (std::int64_t k = 0; k < columns; k += kLanes) {
      const Vec factor = Load(a + k);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
        for (int i = 0; i < Set::kCount; ++i) {
          Vec& sum = p[n][Set::kList.at[i]];
          sum = sum + Load(rows[n] + i * kLanes) * factor;
        }
        rows[n] += Set::kCount * kLanes;
      }
    }
  }
}

// What the rows are multiplied with, padded to whole vectors with finite numbers.
struct Factors {
  const float* x;  // (padded I,)
  const float* h;  // (padded H,)
  const float* m;  // (padded M,), cells with m only
};

// The pre-activations of N neurons: sums[i * stride + n] for neuron n, i-th gate outside kMid.
template <class Cell, int N>
[[gnu::always_inline]] inline void MultiplyNeurons(const Sizes& sizes, const Factors& factors,
                                                   const float* rows, const float* b,
                                                   const std::int32_t* neurons, float* sums,
                                                   std::int64_t stride) {
  using Gates = RowGates<Cell>;
  const std::int64_t floats = Gates::Floats(sizes);
  Vec p[N][kGateCount<Cell>];
  const float* row[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    row[n] = rows + neurons[n] * floats;
#pragma GCC unroll 16
    for (Vec& sum : p[n]) sum = Zero();
  }
  MultiplyRows<typename Gates::Input>(factors.x, sizes.input, row, p);
  MultiplyRows<typename Gates::Hidden>(factors.h, sizes.hidden, row, p);
  MultiplyRows<typename Gates::Middle>(factors.m, MidSize<Cell>(sizes), row, p);
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < Gates::kSums; i += 4) {
      // past its end the list names gate 0, whose sum is then not used
      constexpr GateList kAll = Gates::All::kList;
      const Quad sum =
          Sum4(p[n][kAll.at[i]], p[n][kAll.at[i + 1]], p[n][kAll.at[i + 2]], p[n][kAll.at[i + 3]]) +
          *reinterpret_cast<const LooseQuad*>(b + neurons[n] * Gates::kSums + i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        if (i + j < Gates::All::kCount) sums[(i + j) * stride + n] = sum[j];
      }
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_NEURON_ROWS_H_
