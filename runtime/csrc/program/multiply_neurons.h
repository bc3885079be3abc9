// SPDX-License-Identifier: Apache-2.0
// The dot products of cpu/gather_f32.h for cells whose gates are known at run time: the sums lie in
// memory between the terms.

#ifndef EDGERNN_PROGRAM_MULTIPLY_NEURONS_H_
#define EDGERNN_PROGRAM_MULTIPLY_NEURONS_H_

#include "cpu/gather_f32.h"

namespace edgernn::EDGERNN_ISA {

// One term of the neurons' rows, which have it at `offset`: the columns of a from `begin`, which
// starts a vector, to `end`.
struct RowTerm {
  const GateList* gates;
  const float* a;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t offset;
};

// So many neurons are summed side by side.
constexpr int kRowGroup = 4;

// sums[gate * kRowGroup + neuron] += the term, lane by lane, for N neurons.
template <int N, int kGates>
[[gnu::noinline]] void AddRowTerm(const RowTerm& term, const float* const* rows, Vec* sums) {
  const float* row[N];
  Vec* to[kGates];
  Vec p[N][kGates];
#pragma GCC unroll 4
  for (int g = 0; g < kGates; ++g) to[g] = sums + term.gates->at[g] * kRowGroup;
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    row[n] = rows[n] + term.offset + term.begin * kGates;
#pragma GCC unroll 4
    for (int g = 0; g < kGates; ++g) p[n][g] = to[g][n];
  }
  for (std::int64_t k = term.begin; k < term.end; k += kLanes) {
    const Vec factor = Load(term.a + k);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int g = 0; g < kGates; ++g) p[n][g] = p[n][g] + Load(row[n] + g * kLanes) * factor;
      row[n] += kGates * kLanes;
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int g = 0; g < kGates; ++g) to[g][n] = p[n][g];
  }
}

using RowTermFunction = void (*)(const RowTerm&, const float* const* rows, Vec* sums);

// By the gates of the term.
template <int N>
constexpr RowTermFunction kRowTerms[kMaxTerm] = {&AddRowTerm<N, 1>, &AddRowTerm<N, 2>,
                                                 &AddRowTerm<N, 3>, &AddRowTerm<N, 4>};

[[gnu::noinline]] inline void MultiplyAnyNeurons(const CellTable& cell, const LayerSizes& sizes,
                                                 const NeuronSums& call) {
  const Float32RowLayout layout(cell, sizes);
  const Factors& from = *call.factors;
  const GateGroup& group = cell.update_gates;
  const std::int64_t input = PadToLanes(sizes.input);
  RowTerm terms[5];
  int count = 0;
  const auto add = [&](const GateList& gates, const float* a, std::int64_t begin, std::int64_t end,
                       std::int64_t offset) {
    if (gates.count > 0) terms[count++] = {&gates, a, begin, end, offset};
  };
  add(group.x, from.x, 0, from.x_end, 0);
  if (cell.reads_last) add(group.x, from.x + input, 0, from.x_end, input * group.x.count);
  add(group.h, from.h, call.begin, from.h_end, layout.h);
  add(group.c, from.c, call.begin, from.c_end, layout.c);
  add(group.m, from.m, 0, from.m_end, layout.m);
  const int gates = group.all.count, stored = StoredSums(cell);
  for (std::int64_t first = 0; first < call.count; first += kRowGroup) {
    const std::int64_t left = call.count - first;
    const int now = left < kRowGroup ? static_cast<int>(left) : kRowGroup;
    const std::int32_t* const neurons = call.neurons + first;
    const float* rows[kRowGroup];
    for (int n = 0; n < now; ++n) {
      rows[n] = static_cast<const float*>(call.rows) + neurons[n] * layout.floats;
    }
    Vec sums[kMaxGates * kRowGroup];
    for (int i = 0; i < gates * kRowGroup; ++i) sums[i] = Zero();
    for (const RowTerm* term = terms; term < terms + count; ++term) {
      const int of = term->gates->count - 1;
      int n = 0;
      if (kRegisters == 32 && now == 4) {
        kRowTerms<4>[of](*term, rows, sums);
        continue;
      }
      for (; n + 2 <= now; n += 2) kRowTerms<2>[of](*term, rows + n, sums + n);
      if (n < now) kRowTerms<1>[of](*term, rows + n, sums + n);
    }
    for (int g = 0; g < gates; ++g) {
      const Vec* const p = sums + g * kRowGroup;
      const Quad sum = Sum4(p[0], p[1], p[2], p[3]);
      float* const to = call.sums + g * call.stride + first;
      for (int n = 0; n < now; ++n) to[n] = sum[n] + call.b[neurons[n] * stored + g];
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_PROGRAM_MULTIPLY_NEURONS_H_
