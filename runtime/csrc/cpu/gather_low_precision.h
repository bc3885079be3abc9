// SPDX-License-Identifier: Apache-2.0
// Dot products of gathered rows as in gather_f32.h, with bfloat16 and int8 weights.
//
// A part of a row is [vector of VectorColumns columns][gate][column]. bfloat16 columns are stored
// in 32-bit words: the lower halves hold the first half of a vector's columns. A row of int8 begins
// with the scales of the gates of all parts.

#pragma once

#include <type_traits>

#include "cpu/gather_f32.h"

namespace edgernn::EDGERNN_ISA {

// One part of a neuron's row.
struct LowPrecisionPart {
  const GateList* gates;
  std::int64_t columns;
  std::int64_t at;     // offset in the row, in bytes
  std::int64_t scale;  // index of the first gate's scale
};

constexpr int kMaxParts = 5;

struct LowPrecisionRowLayout {
  LowPrecisionPart parts[kMaxParts];  // x, previous x, h, c, m
  std::int64_t bytes;

  LowPrecisionRowLayout(const CellTable& cell, const LayerSizes& sizes) {
    const GateGroup& group = cell.second_stage;
    const std::int64_t size = sizes.weights == NumberType::kInt8 ? 1 : 2;
    const std::int64_t columns[kMaxParts] = {sizes.input, sizes.input, RecurrentColumns(sizes),
                                             sizes.hidden, MidSize(cell, sizes)};
    const GateList* const gates[kMaxParts] = {&group.x, &group.x, &group.h, &group.c, &group.m};
    std::int64_t scales = 0;
    for (int i = 0; i < kMaxParts; ++i) {
      const bool present = i != 1 || cell.reads_last;
      parts[i] = {present ? gates[i] : nullptr, columns[i], 0, scales};
      if (present) scales += gates[i]->count;
    }
    bytes = size == 1 ? Aligned(scales * 4) : 0;
    for (LowPrecisionPart& part : parts) {
      if (part.gates == nullptr) continue;
      part.at = bytes;
      bytes += Aligned(PaddedColumns(sizes, part.columns) * part.gates->count * size);
    }
  }

  static std::int64_t Aligned(std::int64_t count) { return (count + 63) / 64 * 64; }
};

// The columns of the weights that a part is packed from.
struct LowPrecisionSource {
  const Values* values;
  unsigned term;
  std::int64_t column;
  std::int64_t total;
};

// Packs the rows (H, bytes) of a cell. ranks (H,) thin R and C; null: no thinning.
[[gnu::noinline, gnu::cold]] inline void PackLowPrecisionRows(const CellTable& cell,
                                                              const LayerSizes& sizes,
                                                              const Weights& from,
                                                              const Values* ranks, void* rows) {
  const LowPrecisionRowLayout layout(cell, sizes);
  const bool bytes = sizes.weights == NumberType::kInt8;
  const std::int64_t input = sizes.input, inputs = InputColumns(cell, sizes);
  const std::int64_t wide = VectorColumns(sizes);
  const LowPrecisionSource sources[kMaxParts] = {
      {&from.w, kX, 0, inputs},
      {&from.w, kX, input, inputs},
      {&from.r, kH, 0, RecurrentColumns(sizes)},
      {&from.c, kC, 0, sizes.hidden},
      {&from.v, kM, 0, MidSize(cell, sizes)},
  };
  for (std::int64_t neuron = 0; neuron < sizes.hidden; ++neuron) {
    char* const row = static_cast<char*>(rows) + neuron * layout.bytes;
    std::memset(row, 0, static_cast<std::size_t>(layout.bytes));
    for (int p = 0; p < kMaxParts; ++p) {
      const LowPrecisionPart& part = layout.parts[p];
      const LowPrecisionSource& source = sources[p];
      for (int g = 0; part.gates != nullptr && g < part.gates->count; ++g) {
        const int gate = cell.second_stage.all.at[part.gates->at[g]];
        const std::int64_t start =
            (FirstRow(cell, sizes, source.term, gate) + neuron) * source.total;
        float* const scale = reinterpret_cast<float*>(row) + part.scale + g;
        if (bytes) *scale = Int8Scale(*source.values, start, source.total);
        const bool thins = ranks != nullptr && (source.term & (kH | kC)) != 0;
        for (std::int64_t k = 0; k < part.columns; ++k) {
          if (thins && !((*ranks)[k] >= (*ranks)[neuron])) continue;
          const float value = (*source.values)[start + source.column + k];
          const std::int64_t vector = (k / wide * part.gates->count + g) * wide, place = k % wide;
          if (bytes) {
            reinterpret_cast<std::int8_t*>(row + part.at)[vector + place] = ToInt8(value, *scale);
          } else {
            reinterpret_cast<std::uint16_t*>(
                row + part.at)[vector + 2 * (place % kLanes) + place / kLanes] = ToBfloat16(value);
          }
        }
      }
    }
  }
}

// The input of a part, from column `begin`, which starts a vector, to `end`.
struct LowPrecisionInput {
  const float* a;                 // for bfloat16 weights
  const std::int16_t* quantized;  // for int8 weights
  float scale;                    // scale of `quantized`
  std::int64_t begin;
  std::int64_t end;
};

// The sums over the lanes of one to four gates. Integer sums are exact.
[[gnu::always_inline]] inline Quad SumGates(const Vec* p) { return Sum4(p[0], p[1], p[2], p[3]); }

[[gnu::always_inline]] inline Quad SumGates(const Vec::Bits* p) {
  return __builtin_convertvector(AddLanes<std::int32_t>(p[0], p[1], p[2], p[3]), Quad);
}

// Adds input · row to the sums of the part's gates, for N neurons from neurons[first] on.
template <NumberType kType, bool kDots, int kCount, int N>
[[gnu::always_inline]] inline void AddLowPrecisionRows(const LowPrecisionPart& part,
                                                       const LowPrecisionInput& input,
                                                       const GatherArgs& args, std::int64_t bytes,
                                                       std::int64_t first) {
  constexpr bool kBytes = kType == NumberType::kInt8;
  using Sum = std::conditional_t<kBytes, Vec::Bits, Vec>;
  const char* rows[N];
  // entries after the last gate stay zero
  Sum p[N][4];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    rows[n] = static_cast<const char*>(args.weights.rows) + args.neurons[first + n] * bytes;
#pragma GCC unroll 16
    for (Sum& sum : p[n]) sum = Sum{};
  }
  if constexpr (kBytes) {
    using Bytes = Int8Product<kDots>;
    constexpr int kWide = kLanes * Bytes::kColumns;
#pragma GCC unroll 2
    for (int pass = 0; pass < Bytes::kPasses; ++pass) {
      if (pass > 0) {
#pragma GCC unroll 8
        for (int i = 0; i < 4 * N; ++i) (&p[0][0])[i] <<= 8;
      }
      for (std::int64_t k = input.begin; k < input.end; k += kWide) {
        const auto a = Bytes::LoadFactor(input.quantized + k, pass);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          const auto* row = reinterpret_cast<const std::int8_t*>(rows[n] + part.at) + k * kCount;
#pragma GCC unroll 16
          for (int g = 0; g < kCount; ++g) {
            p[n][g] = Bytes::Add(p[n][g], Bytes::Load(row + g * kWide), a);
          }
        }
      }
    }
  } else {
    for (std::int64_t k = input.begin; k < input.end; k += kShorts) {
      const Vec low = Load(input.a + k);
      // a is padded to one vector, not to two
      const Vec high = k + kLanes < input.end ? Load(input.a + k + kLanes) : Zero();
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        const char* row = rows[n] + part.at + k * kCount * 2;
#pragma GCC unroll 16
        for (int g = 0; g < kCount; ++g) {
          const Bfloat16Pair weights = LoadBfloat16Pair(row + g * kShorts * 2);
          p[n][g] = p[n][g] + weights.first * low + weights.second * high;
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    Quad result = SumGates(p[n]);
    if constexpr (kBytes) {
      // may read beyond the part's scales, but not beyond the row
      const float* const scales = reinterpret_cast<const float*>(rows[n]) + part.scale;
      result *= *reinterpret_cast<const LooseQuad*>(scales) * input.scale;
    }
#pragma GCC unroll 16
    for (int g = 0; g < kCount; ++g) {
      args.sums[part.gates->at[g] * args.stride + first + n] += result[g];
    }
  }
}

// Calls AddLowPrecisionRows for all neurons.
template <NumberType kType, bool kDots, int kCount>
[[gnu::noinline]] void AddLowPrecisionPart(const LowPrecisionPart& part,
                                           const LowPrecisionInput& input, const GatherArgs& args,
                                           std::int64_t bytes) {
  std::int64_t i = 0;
  for (; i + 2 <= args.count; i += 2) {
    AddLowPrecisionRows<kType, kDots, kCount, 2>(part, input, args, bytes, i);
  }
  if (i < args.count) AddLowPrecisionRows<kType, kDots, kCount, 1>(part, input, args, bytes, i);
}

using LowPrecisionFunction = void (*)(const LowPrecisionPart&, const LowPrecisionInput&,
                                      const GatherArgs&, std::int64_t);

// Indexed by the number of gates less 1.
template <NumberType kType, bool kDots = false>
constexpr LowPrecisionFunction kLowPrecisionFunctions[kMaxTerm] = {
    &AddLowPrecisionPart<kType, kDots, 1>, &AddLowPrecisionPart<kType, kDots, 2>,
    &AddLowPrecisionPart<kType, kDots, 3>, &AddLowPrecisionPart<kType, kDots, 4>};

inline const LowPrecisionFunction* ChooseLowPrecisionFunctions(const LayerSizes& sizes) {
  if (sizes.weights == NumberType::kBfloat16) return kLowPrecisionFunctions<NumberType::kBfloat16>;
  if (UsesDots(sizes)) return kLowPrecisionFunctions<NumberType::kInt8, kHasDots>;
  return kLowPrecisionFunctions<NumberType::kInt8>;
}

// Computes what MultiplyNeurons does. `quantized` has the order of the layout's parts.
[[gnu::noinline]] inline void MultiplyLowPrecisionNeurons(const CellTable& cell,
                                                          const LayerSizes& sizes,
                                                          const GatherArgs& args,
                                                          const QuantizedRows* quantized) {
  const LowPrecisionRowLayout layout(cell, sizes);
  const MatmulInputs& from = *args.inputs;
  const bool bytes = sizes.weights == NumberType::kInt8;
  const std::int64_t begin = args.begin & -VectorColumns(sizes);
  LowPrecisionInput inputs[kMaxParts] = {
      {from.x, nullptr, 0.0f, 0, from.x_end},
      {from.x + PadToLanes(sizes.input), nullptr, 0.0f, 0, from.x_end},
      {from.h, nullptr, 0.0f, begin, from.h_end},
      {from.c, nullptr, 0.0f, begin, from.c_end},
      {from.m, nullptr, 0.0f, 0, from.m_end},
  };
  const int gates = cell.second_stage.all.count, stored = StoredSums(cell);
  for (int g = 0; g < gates; ++g) {
    float* const sums = args.sums + g * args.stride;
    for (std::int64_t i = 0; i < args.count; ++i)
      sums[i] = args.weights.b[args.neurons[i] * stored + g];
  }
  const LowPrecisionFunction* const functions = ChooseLowPrecisionFunctions(sizes);
  for (int p = 0; p < kMaxParts; ++p) {
    const LowPrecisionPart& part = layout.parts[p];
    if (part.gates == nullptr || part.gates->count == 0) continue;
    if (bytes) {
      inputs[p].quantized = quantized[p].at;
      inputs[p].scale = quantized[p].scales[0];
    }
    functions[part.gates->count - 1](part, inputs[p], args, layout.bytes);
  }
}

}  // namespace edgernn::EDGERNN_ISA
