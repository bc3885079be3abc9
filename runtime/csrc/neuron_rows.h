// SPDX-License-Identifier: Apache-2.0
// Weights packed neuron by neuron, and the dot products of single neurons.
//
// The row of a neuron holds, for its gates outside kMid: [x][gates with x], [last x][gates with
// x], [h][gates with h], [c][gates with c], [m][gates with m], where [x], [h], [c] and [m] count
// vectors of I, H (or the rank, where R is a product), H and M; [last x] is there in cells that
// read it.

#ifndef EDGERNN_NEURON_ROWS_H_
#define EDGERNN_NEURON_ROWS_H_

#include "gemm.h"

namespace edgernn::EDGERNN_ISA {

// How many inputs W multiplies.
template <class Cell>
constexpr int kInputCount = kReadsLast<Cell> ? 2 : 1;

template <class Cell>
struct RowGates {
  using All = GateSet<Cell, 0, kMid>;
  using Input = GateSet<Cell, kX, kMid>;
  using Hidden = GateSet<Cell, kH, kMid>;
  using Second = GateSet<Cell, kC, kMid>;
  using Middle = GateSet<Cell, kM, kMid>;

  // Gates are summed four at a time; so many of them are stored.
  static constexpr int kSums = (All::kCount + 3) / 4 * 4;
  // Per column, so many weights of x and the last x, and of m.
  static constexpr int kInputs = Input::kCount * kInputCount<Cell>;
  static constexpr int kMiddle = Middle::kCount;

  static std::int64_t Floats(const Sizes& sizes) {
    return Padded(sizes.input) * kInputs + Padded(RecurrentColumns(sizes)) * Hidden::kCount +
           Padded(sizes.hidden) * Second::kCount + Padded(MidSize<Cell>(sizes)) * kMiddle;
  }
};

// One term of the gates of a neuron's row: `count` of the `total` columns of a matrix from
// `column` on, for `gates` gates whose rows begin at `first`; those with ranks[column] <
// ranks[neuron] are 0.
struct RowPart {
  const float* source;
  std::int64_t first[kMaxGates];
  int gates;
  std::int64_t column;
  std::int64_t count;
  std::int64_t total;
  const float* ranks;  // or null
};

template <class Cell, unsigned kTerm, class Set>
RowPart MakeRowPart(const Sizes& sizes, const float* source, std::int64_t column,
                    std::int64_t count, std::int64_t total, const float* ranks) {
  RowPart part{source, {}, Set::kCount, column, count, total, ranks};
  for (int i = 0; i < Set::kCount; ++i) {
    part.first[i] = FirstRow<Cell, kTerm>(sizes, Set::kList.at[i]);
  }
  return part;
}

// Packs (H, floats): every neuron's parts one after the other. Kept apart, so that all cells share
// it.
[[gnu::noinline]] inline void PackParts(std::int64_t hidden, const RowPart* parts, int count,
                                        float* packed) {
  for (std::int64_t neuron = 0; neuron < hidden; ++neuron) {
    for (const RowPart* part = parts; part < parts + count; ++part) {
      const float* ranks = part->ranks;
      for (std::int64_t k = 0; k < Padded(part->count); ++k) {
        const bool read = k < part->count && (ranks == nullptr || ranks[k] >= ranks[neuron]);
        for (int g = 0; g < part->gates; ++g) {
          const float* row = part->source + (part->first[g] + neuron) * part->total;
          packed[(k / kLanes * part->gates + g) * kLanes + k % kLanes] =
              read ? row[part->column + k] : 0.0f;
        }
      }
      packed += Padded(part->count) * part->gates;
    }
  }
}

// rows (H, Floats), b (H, kSums); ranks (H,) thin R and C, or null.
template <class Cell>
void PackRows(const Sizes& sizes, const Weights& from, const float* ranks, float* rows, float* b) {
  using Gates = RowGates<Cell>;
  const std::int64_t input = sizes.input, hidden = sizes.hidden, middle = MidSize<Cell>(sizes);
  const std::int64_t columns = RecurrentColumns(sizes);
  RowPart parts[kInputCount<Cell> + 3];
  int count = 0;
  for (; count < kInputCount<Cell>; ++count) {
    parts[count] = MakeRowPart<Cell, kX, typename Gates::Input>(
        sizes, from.w, count * input, input, InputColumns<Cell>(sizes), nullptr);
  }
  parts[count++] = MakeRowPart<Cell, kH, typename Gates::Hidden>(sizes, from.r, 0, columns,
                                                                 columns, ranks);
  parts[count++] = MakeRowPart<Cell, kC, typename Gates::Second>(sizes, from.c, 0, hidden, hidden,
                                                                 ranks);
  parts[count++] = MakeRowPart<Cell, kM, typename Gates::Middle>(sizes, from.v, 0, middle, middle,
                                                                 nullptr);
  PackParts(hidden, parts, count, rows);
  for (std::int64_t j = 0; j < hidden; ++j) {
    for (int i = 0; i < Gates::kSums; ++i) {
      const int gate = Gates::All::kList.at[i];
      const bool biased = i < Gates::All::kCount && (Cell::kGates[gate].terms & kBias) != 0;
      *b++ = biased ? from.b[FirstRow<Cell, kBias>(sizes, gate) + j] : 0.0f;
    }
  }
}

// p[n][g] += a · row n for the gates g of `Set` and the columns from `begin`, which starts a
// vector, to `end`, lane by lane. The rows have this part at `offset`.
template <class Set, int N, int G>
[[gnu::always_inline]] inline void MultiplyRows(const float* a, std::int64_t begin,
                                                std::int64_t end, const float* const (&rows)[N],
                                                std::int64_t offset, Vec (&p)[N][G]) {
  if constexpr (Set::kCount > 0) {
    const float* row[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) row[n] = rows[n] + offset + begin * Set::kCount;
    for (std::int64_t k = begin; k < end; k += kLanes) {
      const Vec factor = Load(a + k);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
        for (int i = 0; i < Set::kCount; ++i) {
          Vec& sum = p[n][Set::kList.at[i]];
          sum = sum + Load(row[n] + i * kLanes) * factor;
        }
        row[n] += Set::kCount * kLanes;
      }
    }
  }
}

// What the rows are multiplied with, padded to whole vectors with finite numbers: as many columns
// of each as are read.
struct Factors {
  const float* x;  // (padded I,), then the last x likewise in cells that read it
  const float* h;  // (padded H,), or Q h (padded rank,)
  const float* c;  // (padded H,), cells whose second state is multiplied only
  const float* m;  // (padded M,), cells with m only
  std::int64_t x_end;
  std::int64_t h_end;
  std::int64_t c_end;
  std::int64_t m_end;
};

// The pre-activations of N neurons: sums[i * stride + n] for neuron n, i-th gate outside kMid.
// They read the states from column `begin` on, the start of a vector.
template <class Cell, int N>
[[gnu::always_inline]] inline void MultiplyNeurons(const Sizes& sizes, const Factors& factors,
                                                   std::int64_t begin, const float* rows,
                                                   const float* b, const std::int32_t* neurons,
                                                   float* sums, std::int64_t stride) {
  using Gates = RowGates<Cell>;
  const std::int64_t floats = Gates::Floats(sizes);
  const std::int64_t input = Padded(sizes.input), hidden = Padded(sizes.hidden);
  const std::int64_t h_at = input * Gates::kInputs;
  const std::int64_t c_at = h_at + Padded(RecurrentColumns(sizes)) * Gates::Hidden::kCount;
  const std::int64_t m_at = c_at + hidden * Gates::Second::kCount;
  Vec p[N][kGateCount<Cell>];
  const float* row[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    row[n] = rows + neurons[n] * floats;
#pragma GCC unroll 16
    for (Vec& sum : p[n]) sum = Zero();
  }
#pragma GCC unroll 2
  for (int part = 0; part < kInputCount<Cell>; ++part) {
    MultiplyRows<typename Gates::Input>(factors.x + part * input, 0, factors.x_end, row,
                                        part * input * Gates::Input::kCount, p);
  }
  MultiplyRows<typename Gates::Hidden>(factors.h, begin, factors.h_end, row, h_at, p);
  MultiplyRows<typename Gates::Second>(factors.c, begin, factors.c_end, row, c_at, p);
  MultiplyRows<typename Gates::Middle>(factors.m, 0, factors.m_end, row, m_at, p);
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

// The same for a list of neurons. Kept apart: the loops need every register.
template <class Cell>
[[gnu::noinline]] void MultiplyList(const Sizes& sizes, const Factors& factors, std::int64_t begin,
                                    const float* rows, const float* b, const std::int32_t* neurons,
                                    std::int64_t count, float* sums, std::int64_t stride) {
  const Factors read = factors;
  std::int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    MultiplyNeurons<Cell, 2>(sizes, read, begin, rows, b, neurons + i, sums + i, stride);
  }
  if (i < count) {
    MultiplyNeurons<Cell, 1>(sizes, read, begin, rows, b, neurons + i, sums + i, stride);
  }
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_NEURON_ROWS_H_
