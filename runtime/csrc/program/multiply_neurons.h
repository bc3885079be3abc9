// SPDX-License-Identifier: Apache-2.0
// The dot products of cpu/gather_f32.h for cells whose gates are known at run time only. The sums
// are kept in memory between terms.

#pragma once

#include "cpu/gather_f32.h"

namespace edgernn::EDGERNN_ISA {

// One term of the neurons' rows, at `offset`: the columns of a from `begin`, which starts a vector,
// to `end`.
struct RowTerm {
  const GateList* gates;
  const float* a;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t offset;
};

// Number of neurons that are summed at once.
constexpr int kRowGroup = 4;

// Adds a term to sums[gate * kRowGroup + neuron], lane by lane, for N neurons.
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

// Indexed by the number of gates less 1.
template <int N>
constexpr RowTermFunction kRowTerms[kMaxTerm] = {&AddRowTerm<N, 1>, &AddRowTerm<N, 2>,
                                                 &AddRowTerm<N, 3>, &AddRowTerm<N, 4>};

[[gnu::noinline]] inline void MultiplyAnyNeurons(const CellTable& cell, const LayerSizes& sizes,
                                                 const GatherArgs& args) {
  const Float32RowLayout layout(cell, sizes);
  const MatmulInputs& from = *args.inputs;
  const GateGroup& group = cell.second_stage;
  const std::int64_t input = PadToLanes(sizes.input);
  RowTerm terms[5];
  int count = 0;
  const auto add = [&](const GateList& gates, const float* a, std::int64_t begin, std::int64_t end,
                       std::int64_t offset) {
    if (gates.count > 0) terms[count++] = {&gates, a, begin, end, offset};
  };
  add(group.x, from.x, 0, from.x_end, 0);
  if (cell.reads_last) add(group.x, from.x + input, 0, from.x_end, input * group.x.count);
  add(group.h, from.h, args.begin, from.h_end, layout.h);
  add(group.c, from.c, args.begin, from.c_end, layout.c);
  add(group.m, from.m, 0, from.m_end, layout.m);
  const int gates = group.all.count, stored = StoredSums(cell);
  for (std::int64_t first = 0; first < args.count; first += kRowGroup) {
    const std::int64_t left = args.count - first;
    const int group_size = left < kRowGroup ? static_cast<int>(left) : kRowGroup;
    const std::int32_t* const neurons = args.neurons + first;
    const float* rows[kRowGroup];
    for (int n = 0; n < group_size; ++n) {
      rows[n] = static_cast<const float*>(args.weights.rows) + neurons[n] * layout.floats;
    }
    Vec sums[kMaxGates * kRowGroup];
    for (int i = 0; i < gates * kRowGroup; ++i) sums[i] = Zero();
    for (const RowTerm* term = terms; term < terms + count; ++term) {
      const int index = term->gates->count - 1;
      int n = 0;
      if (kRegisters == 32 && group_size == 4) {
        kRowTerms<4>[index](*term, rows, sums);
        continue;
      }
      for (; n + 2 <= group_size; n += 2) kRowTerms<2>[index](*term, rows + n, sums + n);
      if (n < group_size) kRowTerms<1>[index](*term, rows + n, sums + n);
    }
    for (int g = 0; g < gates; ++g) {
      const Vec* const p = sums + g * kRowGroup;
      const Quad sum = Sum4(p[0], p[1], p[2], p[3]);
      float* const to = args.sums + g * args.stride + first;
      for (int n = 0; n < group_size; ++n) to[n] = sum[n] + args.weights.b[neurons[n] * stored + g];
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA
