// SPDX-License-Identifier: Apache-2.0
// Dot products of gathered float32 rows: weights are packed as one row per neuron, and only the
// rows of the active neurons are multiplied.
//
// The row of a neuron holds its gates without kMid: [x][gates with x], [previous x][gates with x],
// [h][gates with h], [c][gates with c], [m][gates with m]. The first index counts vectors of I, I,
// H (or the rank if R is a product), H and M. Only cells that read the previous x have that part.

#pragma once

#include "cpu/gate_group.h"

namespace edgernn::EDGERNN_ISA {

// The number of input vectors that W multiplies: x_t and, if the cell reads it, x_{t-1}.
inline int InputCount(const CellTable& cell) { return cell.reads_last ? 2 : 1; }

// The number of sums stored per neuron: that of the gates, rounded up to groups of four.
inline int StoredSums(const CellTable& cell) { return (cell.second_stage.all.count + 3) / 4 * 4; }

// The offsets of the parts of a neuron's row.
struct Float32RowLayout {
  std::int64_t h;
  std::int64_t c;
  std::int64_t m;
  std::int64_t floats;

  Float32RowLayout(const CellTable& cell, const LayerSizes& sizes) {
    const GateGroup& group = cell.second_stage;
    h = PadToLanes(sizes.input) * group.x.count * InputCount(cell);
    c = h + PadToLanes(RecurrentColumns(sizes)) * group.h.count;
    m = c + PadToLanes(sizes.hidden) * group.c.count;
    floats = m + PadToLanes(MidSize(cell, sizes)) * group.m.count;
  }
};

// The source of one part of the rows: `count` of the `total` columns of a matrix, from `column`
// on, for `gates` gates whose rows begin at `first`. A column with ranks[column] < ranks[neuron]
// becomes 0.
struct Float32RowPart {
  Values source;
  std::int64_t first[kMaxGates];
  int gates;
  std::int64_t column;
  std::int64_t count;
  std::int64_t total;
  const Values* ranks;  // or null
};

// Packs the rows (H, floats): the parts of each neuron one after the other.
[[gnu::noinline, gnu::cold]] inline void PackFloat32Parts(std::int64_t hidden,
                                                          const Float32RowPart* parts, int count,
                                                          float* packed) {
  for (std::int64_t neuron = 0; neuron < hidden; ++neuron) {
    for (const Float32RowPart* part = parts; part < parts + count; ++part) {
      const Values* const ranks = part->ranks;
      for (std::int64_t k = 0; k < PadToLanes(part->count); ++k) {
        const bool read = k < part->count && (ranks == nullptr || (*ranks)[k] >= (*ranks)[neuron]);
        for (int g = 0; g < part->gates; ++g) {
          const std::int64_t row = (part->first[g] + neuron) * part->total;
          packed[(k / kLanes * part->gates + g) * kLanes + k % kLanes] =
              read ? part->source[row + part->column + k] : 0.0f;
        }
      }
      packed += PadToLanes(part->count) * part->gates;
    }
  }
}

// Packs the rows (H, floats) of a cell. ranks (H,) thin R and C; null: no thinning.
[[gnu::noinline, gnu::cold]] inline void PackFloat32Rows(const CellTable& cell,
                                                         const LayerSizes& sizes,
                                                         const Weights& from, const Values* ranks,
                                                         float* rows) {
  const GateGroup& group = cell.second_stage;
  const std::int64_t input = sizes.input, hidden = sizes.hidden, mid_size = MidSize(cell, sizes);
  const std::int64_t columns = RecurrentColumns(sizes);
  Float32RowPart parts[5];
  int count = 0;
  const auto add = [&](unsigned term, const GateList& places, const Values& source,
                       std::int64_t column, std::int64_t read, std::int64_t total,
                       const Values* thin) {
    Float32RowPart& part = parts[count++];
    part = {source, {}, places.count, column, read, total, thin};
    for (int i = 0; i < places.count; ++i) {
      part.first[i] = FirstRow(cell, sizes, term, group.all.at[places.at[i]]);
    }
  };
  for (int i = 0; i < InputCount(cell); ++i) {
    add(kX, group.x, from.w, i * input, input, InputColumns(cell, sizes), nullptr);
  }
  add(kH, group.h, from.r, 0, columns, columns, ranks);
  add(kC, group.c, from.c, 0, hidden, hidden, ranks);
  add(kM, group.m, from.v, 0, mid_size, mid_size, nullptr);
  PackFloat32Parts(hidden, parts, count, rows);
}

// Packs the biases (H, stored sums) of all gates, or of those without x.
[[gnu::noinline, gnu::cold]] inline void PackRowBiases(const CellTable& cell,
                                                       const LayerSizes& sizes, const Weights& from,
                                                       bool without_x, float* b) {
  const GateGroup& group = cell.second_stage;
  for (std::int64_t j = 0; j < sizes.hidden; ++j) {
    for (int i = 0; i < StoredSums(cell); ++i) {
      const int gate = i < group.all.count ? group.all.at[i] : -1;
      const bool skipped = gate < 0 || (without_x && (cell.terms[gate] & kX) != 0);
      const std::int64_t first = skipped ? -1 : FirstRow(cell, sizes, sizes.bias_terms, gate);
      *b++ = first < 0 ? 0.0f : from.b[first + j];
    }
  }
}

// The gates of a shape with the term x (0), h (1), c (2) or m (3), as a type.
template <RowShape kShape, int kTerm>
struct ShapeGates {
  static constexpr GateList MakeList() {
    GateList list{};
    for (int place = 0; place < kMaxGates; ++place) {
      if ((kShape >> (4 * place + kTerm) & 1) != 0) list.at[list.count++] = place;
    }
    return list;
  }
  static constexpr GateList kList = MakeList();
  static constexpr int kCount = kList.count;
};

// The number of gates up to the last one with bits.
constexpr int CountShapeGates(RowShape shape) {
  int count = kMaxGates;
  while (count > 0 && (shape >> 4 * (count - 1) & 15) == 0) --count;
  return count;
}

// Adds a[s] · row n to p[n][s][g], lane by lane, for the gates g of `Set` and the columns from
// `begin`, which starts a vector, to `end`. The part is at `offset` in the rows.
template <class Set, int N, int S, int G>
[[gnu::always_inline]] inline void AddRowProducts(const float* const (&a)[S], std::int64_t begin,
                                                  std::int64_t end, const float* const (&rows)[N],
                                                  std::int64_t offset, Vec (&p)[N][S][G]) {
  if constexpr (Set::kCount > 0) {
    const float* row[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) row[n] = rows[n] + offset + begin * Set::kCount;
    for (std::int64_t k = begin; k < end; k += kLanes) {
      Vec factor[S];
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s) {
        factor[s] = Load(a[s] + k);
        if (S > 1) KeepInRegister(factor[s]);
      }
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
        for (int i = 0; i < Set::kCount; ++i) {
          const Vec weight = Load(row[n] + i * kLanes);
#pragma GCC unroll 16
          for (int s = 0; s < S; ++s) {
            Vec& sum = p[n][s][Set::kList.at[i]];
            sum = sum + weight * factor[s];
          }
        }
        row[n] += Set::kCount * kLanes;
      }
    }
  }
}

// Computes the pre-activations of N neurons of S samples: to[s][gate * stride + n]. The number of
// neurons and samples does not change the bits of a sum.
template <RowShape kShape, int N, int S>
[[gnu::always_inline]] inline void MultiplySomeNeurons(
    const MatmulInputs* const (&inputs)[S], std::int64_t input, const Float32RowLayout& layout,
    const RowWeights& weights, const std::int32_t* neurons, std::int64_t begin, std::int64_t stride,
    float* const (&to)[S]) {
  using InputGates = ShapeGates<kShape, 0>;
  constexpr int kGates = CountShapeGates(kShape), kStored = (kGates + 3) / 4 * 4;
  // entries after the last gate are zero and unused
  Vec p[N][S][kStored];
  const float* row[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    row[n] = static_cast<const float*>(weights.rows) + neurons[n] * layout.floats;
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) {
#pragma GCC unroll 16
      for (Vec& sum : p[n][s]) sum = Zero();
    }
  }
  const MatmulInputs& first = *inputs[0];
  const auto operands = [&](const float* MatmulInputs::* of, std::int64_t offset, auto add)
                            __attribute__((always_inline)) {
                              const float* a[S];
#pragma GCC unroll 16
                              for (int s = 0; s < S; ++s) a[s] = inputs[s]->*of + offset;
                              add(a);
                            };
#pragma GCC unroll 2
  for (int part = 0; part < ((kShape & kLastInputShape) != 0 ? 2 : 1); ++part) {
    operands(&MatmulInputs::x, part * input, [&](const auto& a) __attribute__((always_inline)) {
      AddRowProducts<InputGates>(a, 0, first.x_end, row, part * input * InputGates::kCount, p);
    });
  }
  operands(&MatmulInputs::h, 0, [&](const auto& a) __attribute__((always_inline)) {
    AddRowProducts<ShapeGates<kShape, 1>>(a, begin, first.h_end, row, layout.h, p);
  });
  operands(&MatmulInputs::c, 0, [&](const auto& a) __attribute__((always_inline)) {
    AddRowProducts<ShapeGates<kShape, 2>>(a, begin, first.c_end, row, layout.c, p);
  });
  operands(&MatmulInputs::m, 0, [&](const auto& a) __attribute__((always_inline)) {
    AddRowProducts<ShapeGates<kShape, 3>>(a, 0, first.m_end, row, layout.m, p);
  });
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kStored; i += 4) {
      const Quad b = *reinterpret_cast<const LooseQuad*>(weights.b + neurons[n] * kStored + i);
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s) {
        const Vec(&sums)[kStored] = p[n][s];
        const Quad sum = Sum4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]) + b;
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          if (i + j < kGates) to[s][(i + j) * stride + n] = sum[j];
        }
      }
    }
  }
}

// The same for one neuron of one sample, which both functions below share.
template <RowShape kShape>
[[gnu::noinline]] void MultiplyOneNeuron(const MatmulInputs* inputs, std::int64_t input,
                                         const Float32RowLayout& layout, const RowWeights& weights,
                                         std::int32_t neuron, std::int64_t begin,
                                         std::int64_t stride, float* to) {
  MultiplySomeNeurons<kShape, 1>({inputs}, input, layout, weights, &neuron, begin, stride, {to});
}

template <RowShape kShape>
void MultiplyNeurons(const CellTable& cell, const LayerSizes& sizes, const GatherArgs& args) {
  const Float32RowLayout layout(cell, sizes);
  const MatmulInputs inputs = *args.inputs;
  const MatmulInputs* const all[1] = {&inputs};
  const std::int64_t input = PadToLanes(sizes.input);
  std::int64_t i = 0;
  for (; i + 2 <= args.count; i += 2) {
    MultiplySomeNeurons<kShape, 2>(all, input, layout, args.weights, args.neurons + i, args.begin,
                                   args.stride, {args.sums + i});
  }
  if (i < args.count) {
    MultiplyOneNeuron<kShape>(&inputs, input, layout, args.weights, args.neurons[i], args.begin,
                              args.stride, args.sums + i);
  }
}

// Computes the pre-activations of one neuron of the S samples at `samples`, after those of their
// earlier neurons.
template <RowShape kShape, int S>
[[gnu::always_inline]] inline void MultiplySharedNeuron(std::int64_t input,
                                                        const Float32RowLayout& layout,
                                                        const SharedGatherArgs& args,
                                                        std::int32_t neuron, const int* samples) {
  const MatmulInputs* inputs[S];
  float* to[S];
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
    inputs[s] = args.inputs[samples[s]];
    to[s] = args.sums[samples[s]]++;
  }
  MultiplySomeNeurons<kShape, 1>(inputs, input, layout, args.weights, &neuron, 0, args.stride, to);
}

template <RowShape kShape>
void MultiplySharedNeurons(const CellTable& cell, const LayerSizes& sizes,
                           const SharedGatherArgs& args) {
  // the largest number of samples whose sums fit in registers
  constexpr int kShared = CountShapeGates(kShape) * 4 <= kTileSums ? 4 : 2;
  const Float32RowLayout layout(cell, sizes);
  const std::int64_t input = PadToLanes(sizes.input);
  for (std::int32_t neuron = 0; neuron < sizes.hidden; ++neuron) {
    int samples[64], count = 0;
    for (std::uint64_t left = args.samples[neuron]; left != 0; left &= left - 1) {
      samples[count++] = __builtin_ctzll(left);
    }
    int i = 0;
    for (; i + kShared <= count; i += kShared) {
      MultiplySharedNeuron<kShape, kShared>(input, layout, args, neuron, samples + i);
    }
    // only with 32 long registers: other kernels would add 20 kB to the library
    if constexpr (kShared == 4 && kRegisters == 32) {
      if (i + 2 <= count) {
        MultiplySharedNeuron<kShape, 2>(input, layout, args, neuron, samples + i);
        i += 2;
      }
    }
    for (; i < count; ++i) {
      MultiplyOneNeuron<kShape>(args.inputs[samples[i]], input, layout, args.weights, neuron, 0,
                                args.stride, args.sums[samples[i]]++);
    }
  }
}

}  // namespace edgernn::EDGERNN_ISA
