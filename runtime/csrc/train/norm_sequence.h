// SPDX-License-Identifier: Apache-2.0
// The loop over time with recurrent batch normalisation: every product, and the cell state before
// the output, is normalised by the mean and variance of its columns over the batch.

#pragma once

#include "train/batch_norm.h"
#include "train/norms.h"
#include "train/sequence.h"

namespace edgernn::EDGERNN_ISA {

// The additional workspace of a thread, after ThreadScratch.
struct NormScratch {
  float* zeros;             // (padded P,)
  float* grads[kOperands];  // gradients of the products, laid out as ThreadScratch::gates
  float* output;            // (rows, H): gradient of the output gate
  float* state;             // (rows, H): gradient of the normalised state
  std::size_t bytes;

  NormScratch(const GateLayout& layout, const EdgernnTrainCall& call, void* base) {
    const std::int64_t rows = call.batch;
    const ThreadScratch thread(layout, call, rows, nullptr);
    Arena arena(base);
    arena.Allocate<char>(static_cast<std::int64_t>(thread.bytes));
    zeros = arena.Allocate<float>(PadToLanes(layout.gates));
    for (int operand = 0; operand < kOperands; ++operand) {
      const bool exists = layout.terms[operand].count > 0;
      grads[operand] = arena.Allocate<float>(exists ? thread.chunk * rows * thread.gate_stride : 0);
    }
    output = arena.Allocate<float>(rows * layout.hidden);
    state = arena.Allocate<float>(rows * layout.hidden);
    bytes = arena.used();
  }
};

class NormSequence final : public Sequence {
 public:
  NormSequence(const PackedWeights& packed, const EdgernnTrainCall& call, void* base)
      : Sequence(packed, call, 0, call.batch),
        norms_(*call.norms),
        scratch_(packed.layout, call, base) {
    std::memset(scratch_.zeros, 0, Bytes(packed.layout.gates));
  }

  // Zeroes the gradients that backward accumulates.
  void ClearGrads() const {
    for (int operand = 0; operand < 4; ++operand) {
      Clear(norms_.products[operand], layout_.terms[operand].rows);
    }
    Clear(norms_.state, layout_.hidden);
  }

 protected:
  void StartGates(std::int64_t t) const override {
    for (std::int64_t row = 0; row < rows_; ++row) {
      Copy(packed_.bias, layout_.gates, Gates(t) + row * layout_.gates);
    }
  }

  // Adds a normalised product to the gates of step t.
  void Multiply(Operand operand, std::int64_t t) const override {
    const Term& term = layout_.terms[operand];
    if (term.count == 0) return;
    const EdgernnTrainNorm& norm = norms_.products[operand];
    const ConstRows factor = FactorOf(operand, t);
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      float* product = Normalised(operand, t) + s.row;
      float* gates = Gates(t) + s.at;
      MultiplyAdd({factor.at, factor.stride, 1}, rows_, term.depth, s.packed, {scratch_.zeros, 0},
                  {product, term.rows}, s.columns);
      const Moments moments = MomentsOf(norm, term.rows, t, s.row);
      ForEachBlock(s.columns, [&](const auto& block) {
        const auto scale = ComputeScale(block, {product, term.rows}, rows_, moments);
        for (std::int64_t row = 0; row < rows_; ++row) {
          float* values = product + row * term.rows;
          float* to = gates + row * layout_.gates;
#pragma GCC unroll 4
          for (int j = 0; j < block.kVectors; ++j) {
            const Vec value = scale.Normalise(j, block.Load(values, j));
            block.Store(values, j, value);
            block.Store(to, j, block.Load(to, j) + block.Load(norm.gain + s.row, j) * value);
          }
        }
      });
    }
  }

  // Recomputes the output from the normalised state.
  void FinishStates(std::int64_t t) const override {
    const EdgernnTrainNorm& norm = norms_.state;
    if (norm.gain == nullptr) return;
    const std::int64_t hidden = layout_.hidden;
    const Moments moments = MomentsOf(norm, hidden, t, 0);
    ForEachBlock(hidden, [&](const auto& block) {
      const auto scale = ComputeScale(block, {After(1, t), hidden}, rows_, moments);
      ForEachOutput(block, scale, t, [&](std::int64_t row, int j, Vec gate, Vec squashed) {
        block.Store(After(0, t) + row * hidden, j, gate * squashed);
      });
    });
  }

  // Recomputes the gates, propagates the output's gradient to the cell state and stores that of the
  // output gate.
  void FinishStatesBack(std::int64_t t, const ThreadScratch& scratch) const override {
    RestoreGates(t);
    const EdgernnTrainNorm& norm = norms_.state;
    if (norm.gain == nullptr) return;
    const std::int64_t hidden = layout_.hidden;
    const Moments moments = MomentsOf(norm, hidden, t, 0);
    const NormGrads sums = {norm.gain_grad, norm.shift_grad};
    float* output_grads = scratch.grad[0];
    ForEachBlock(hidden, [&](const auto& block) {
      const auto scale = LoadScale(block, moments);
      ForEachOutput(block, scale, t, [&](std::int64_t row, int j, Vec gate, Vec squashed) {
        const Vec grad = block.Load(output_grads + row * hidden, j);
        const Vec gate_grad = grad * squashed * (gate * (1.0f - gate));
        block.Store(scratch_.output + row * hidden, j, gate_grad);
        const Vec state_grad = grad * gate * (1.0f - squashed * squashed);
        block.Store(scratch_.state + row * hidden, j, state_grad);
        block.Store(output_grads + row * hidden, j, Zero());
      });
      const auto normalised = [&](std::int64_t row, int j) {
        return scale.Normalise(j, block.Load(After(1, t) + row * hidden, j));
      };
      NormaliseBack<true>(block, {scratch_.state, hidden}, normalised, norm.gain, scale, rows_,
                          moments, sums, {scratch.grad[1], hidden});
    });
  }

  void FinishGatesBack(OutputRows gates) const override {
    if (norms_.state.gain == nullptr) return;
    float* first = gates.at + layout_.at[norms_.output_gate];
    ForEachBlock(layout_.hidden, [&](const auto& block) {
      for (std::int64_t row = 0; row < rows_; ++row) {
        float* to = first + row * gates.stride;
        const float* from = scratch_.output + row * layout_.hidden;
#pragma GCC unroll 4
        for (int j = 0; j < block.kVectors; ++j) {
          block.Store(to, j, block.Load(to, j) + block.Load(from, j));
        }
      }
    });
  }

  ConstRows ProductGrads(Operand operand, std::int64_t t, ConstRows gates,
                         const ThreadScratch& scratch) const override {
    const Term& term = layout_.terms[operand];
    if (term.count == 0) return gates;
    const EdgernnTrainNorm& norm = norms_.products[operand];
    const OutputRows result = {scratch_.grads[operand] + (gates.at - scratch.gates), gates.stride};
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      const float* values = Normalised(operand, t) + s.row;
      const Moments moments = MomentsOf(norm, term.rows, t, s.row);
      const NormGrads sums = {norm.gain_grad == nullptr ? nullptr : norm.gain_grad + s.row,
                              nullptr};
      ForEachBlock(s.columns, [&](const auto& block) {
        const auto normalised = [&](std::int64_t row, int j) {
          return block.Load(values + row * term.rows, j);
        };
        NormaliseBack<false>(block, {gates.at + s.at, gates.stride}, normalised, norm.gain + s.row,
                             LoadScale(block, moments), rows_, moments, sums,
                             {result.at + s.at, result.stride});
      });
    }
    return {result.at, result.stride};
  }

  const float* ChunkGrads(Operand operand, const ThreadScratch&) const override {
    return scratch_.grads[operand];
  }

 private:
  // Recomputes the gates of step t from the normalised products: cheaper than storing all steps.
  void RestoreGates(std::int64_t t) const {
    StartGates(t);
    for (const Operand operand : {kOperandX, kOperandH, kOperandC, kOperandM}) {
      const Term& term = layout_.terms[operand];
      for (int i = 0; i < term.count; ++i) {
        const Segment& s = term.segments[i];
        const float* gain = norms_.products[operand].gain + s.row;
        for (std::int64_t row = 0; row < rows_; ++row) {
          const float* from = Normalised(operand, t) + row * term.rows + s.row;
          float* to = Gates(t) + row * layout_.gates + s.at;
          ForEachBlock(s.columns, [&](const auto& block) {
#pragma GCC unroll 4
            for (int j = 0; j < block.kVectors; ++j) {
              block.Store(to, j, block.Load(to, j) + block.Load(gain, j) * block.Load(from, j));
            }
          });
        }
      }
    }
  }

  // Calls run(row, vector, gate, tanh(N(c))) for each vector of the outputs h = gate tanh(N(c)).
  template <class Block, class Scale, class Run>
  [[gnu::always_inline]] void ForEachOutput(const Block& block, const Scale& scale, std::int64_t t,
                                            const Run& run) const {
    const EdgernnTrainNorm& norm = norms_.state;
    const float* gates = Gates(t) + layout_.at[norms_.output_gate];
    for (std::int64_t row = 0; row < rows_; ++row) {
      const float* c = After(1, t) + row * layout_.hidden;
      for (int j = 0; j < block.kVectors; ++j) {
        const Vec value = scale.Normalise(j, block.Load(c, j));
        const Vec read = block.Load(norm.gain, j) * value + block.Load(norm.shift, j);
        run(row, j, Sigmoid(block.Load(gates + row * layout_.gates, j)), Tanh(read));
      }
    }
  }

  Moments MomentsOf(const EdgernnTrainNorm& norm, std::int64_t columns, std::int64_t t,
                    std::int64_t first) const {
    const std::int64_t at = t * columns + first;
    return {norm.mean + at, norm.var + at, norms_.eps, 1.0f / static_cast<float>(rows_),
            norms_.learns != 0};
  }

  static void Clear(const EdgernnTrainNorm& norm, std::int64_t count) {
    if (norm.gain_grad != nullptr) std::memset(norm.gain_grad, 0, Bytes(count));
    if (norm.shift_grad != nullptr) std::memset(norm.shift_grad, 0, Bytes(count));
  }

  float* Normalised(Operand operand, std::int64_t t) const {
    const std::int64_t columns = layout_.terms[operand].rows;
    return norms_.products[operand].normalised + (call_.keep ? t * call_.batch * columns : 0);
  }

  const EdgernnTrainNorms& norms_;
  const NormScratch scratch_;
};

}  // namespace edgernn::EDGERNN_ISA
