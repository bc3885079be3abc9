// SPDX-License-Identifier: Apache-2.0
// The loop over time with recurrent batch normalisation: every product, and the cell state before
// the output, is normalised with the mean and variance of its columns over the rows of the batch.
//
//   n = (p - mean) / sqrt(var + eps)                gate += gain n
//   dp = gain / sqrt(var + eps) (dn - mean(dn) - n mean(dn n))     dn: of gain n

#ifndef EDGERNN_TRAIN_NORM_SEQUENCE_H_
#define EDGERNN_TRAIN_NORM_SEQUENCE_H_

#include "train/norms.h"
#include "train/sequence.h"

namespace edgernn::EDGERNN_ISA {

// What a thread has besides ThreadScratch.
struct NormScratch {
  float* zeros;            // (padded P,)
  float* inverse;          // (padded columns,) each: 1 / sqrt(var + eps)
  float* sum;              // of gradients over rows
  float* product_sum;      // of gradients times normalised values
  float* grads[kSources];  // as ThreadScratch::gates: the gradients of the products
  float* output;           // (rows, H): the gradient of the output gate
  float* state;            // (rows, H): the gradient of the normalised state
  std::size_t bytes;

  NormScratch(const GateLayout& layout, const EdgernnTrainCall& call, void* base) {
    const std::int64_t rows = call.batch;
    const ThreadScratch thread(layout, call, rows, nullptr);
    Arena arena(base);
    arena.Allocate<char>(static_cast<std::int64_t>(thread.bytes));
    std::int64_t widest = PadToLanes(layout.hidden);
    if (layout.gates > widest) widest = PadToLanes(layout.gates);
    zeros = arena.Allocate<float>(widest);
    inverse = arena.Allocate<float>(widest);
    sum = arena.Allocate<float>(widest);
    product_sum = arena.Allocate<float>(widest);
    for (int source = 0; source < kSources; ++source) {
      const bool there = layout.terms[source].count > 0;
      grads[source] = arena.Allocate<float>(there ? thread.chunk * rows * thread.gate_stride : 0);
    }
    output = arena.Allocate<float>(rows * layout.hidden);
    state = arena.Allocate<float>(rows * layout.hidden);
    bytes = arena.used();
  }
};

// out[column] = the sum of term(row, column, lanes) over rows, for vectors of columns.
template <class Term>
[[gnu::always_inline]] inline void SumRows(std::int64_t rows, std::int64_t columns, Term term,
                                           float* out) {
  constexpr int kBlocks = 4;
  for (std::int64_t first = 0; first < columns; first += kBlocks * kLanes) {
    Vec sum[kBlocks];
#pragma GCC unroll 4
    for (Vec& s : sum) s = Zero();
    for (std::int64_t row = 0; row < rows; ++row) {
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) {
        const std::int64_t at = first + j * kLanes;
        if (at < columns) sum[j] = sum[j] + term(row, at, Lanes(columns - at));
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      const std::int64_t at = first + j * kLanes;
      if (at < columns) Lanes(columns - at).Store(out + at, sum[j]);
    }
  }
}

class NormSequence final : public Sequence {
 public:
  NormSequence(const Prepared& prepared, const EdgernnTrainCall& call, void* base)
      : Sequence(prepared, call, 0, call.batch),
        norms_(*call.norms),
        scratch_(prepared.layout, call, base),
        share_(1.0f / static_cast<float>(call.batch)) {
    std::memset(scratch_.zeros, 0, Bytes(prepared.layout.gates));
  }

  // Sets the gradients that backward adds to.
  void ClearGrads() const {
    for (int source = 0; source < 4; ++source) {
      Clear(norms_.products[source], layout_.terms[source].rows);
    }
    Clear(norms_.state, layout_.hidden);
  }

 protected:
  void StartGates(std::int64_t t) const override {
    for (std::int64_t row = 0; row < rows_; ++row) {
      Copy(prepared_.bias, layout_.gates, Gates(t) + row * layout_.gates);
    }
  }

  // Adds a normalised term to the gates of step t.
  void Multiply(Source source, std::int64_t t) const override {
    const Term& term = layout_.terms[source];
    if (term.count == 0) return;
    const EdgernnTrainNorm& norm = norms_.products[source];
    const Lines factor = FactorOf(source, t);
    float* product = Normalised(source, t);
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      MultiplyAdd({factor.at, factor.stride, 1}, rows_, term.depth, s.packed, {scratch_.zeros, 0},
                  {product + s.row, term.rows}, s.columns);
    }
    const float* mean = norm.mean + t * term.rows;
    Measure(norm, {product, term.rows}, term.rows, t);
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      for (std::int64_t row = 0; row < rows_; ++row) {
        float* from = product + row * term.rows + s.row;
        float* gate = Gates(t) + row * layout_.gates + s.at;
        for (std::int64_t at = 0; at < s.columns; at += kLanes) {
          const Lanes lanes(s.columns - at);
          const Vec centred = lanes.Load(from + at) - lanes.Load(mean + s.row + at);
          const Vec value = centred * lanes.Load(scratch_.inverse + s.row + at);
          lanes.Store(from + at, value);
          const Vec gain = lanes.Load(norm.gain + s.row + at);
          lanes.Store(gate + at, lanes.Load(gate + at) + gain * value);
        }
      }
    }
  }

  // Makes the output anew from the normalised state.
  void FinishStates(std::int64_t t) const override {
    if (norms_.state.gain == nullptr) return;
    Measure(norms_.state, {After(1, t), layout_.hidden}, layout_.hidden, t);
    ForEachOutput(t, [&](std::int64_t, std::int64_t, Lanes lanes, const Output& output) {
      lanes.Store(output.h, output.gate * output.squashed);
    });
  }

  // Takes the gradient of the output to the cell state and keeps that of the output gate.
  void FinishStatesBack(std::int64_t t, const ThreadScratch& scratch) const override {
    const EdgernnTrainNorm& norm = norms_.state;
    if (norm.gain == nullptr) return;
    const std::int64_t hidden = layout_.hidden;
    Invert(norm, hidden, t);
    float* of_h = scratch.grad[0];
    ForEachOutput(t, [&](std::int64_t row, std::int64_t at, Lanes lanes, const Output& output) {
      const std::int64_t place = row * hidden + at;
      const Vec grad = lanes.Load(of_h + place);
      const Vec slope = output.gate * (1.0f - output.gate);
      lanes.Store(scratch_.output + place, grad * output.squashed * slope);
      const Vec curve = 1.0f - output.squashed * output.squashed;
      lanes.Store(scratch_.state + place, grad * output.gate * curve);
      lanes.Store(of_h + place, Zero());
    });
    const float* mean = norm.mean + t * hidden;
    const auto value = [&](std::int64_t row, std::int64_t at, Lanes lanes) {
      const Vec centred = lanes.Load(After(1, t) + row * hidden + at) - lanes.Load(mean + at);
      return centred * lanes.Load(scratch_.inverse + at);
    };
    const Result to = {scratch.grad[1], hidden};
    NormaliseBack({scratch_.state, hidden}, value, norm.gain, hidden, true, to);
    AddTo(scratch_.product_sum, hidden, norm.gain_grad);
    AddTo(scratch_.sum, hidden, norm.shift_grad);
  }

  void FinishGatesBack(Result gates) const override {
    if (norms_.state.gain == nullptr) return;
    const std::int64_t first = layout_.at[norms_.output_gate];
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* to = gates.at + row * gates.stride + first;
      const float* from = scratch_.output + row * layout_.hidden;
      for (std::int64_t at = 0; at < layout_.hidden; at += kLanes) {
        const Lanes lanes(layout_.hidden - at);
        lanes.Store(to + at, lanes.Load(to + at) + lanes.Load(from + at));
      }
    }
  }

  Lines ProductGrads(Source source, std::int64_t t, Lines gates,
                     const ThreadScratch& scratch) const override {
    const Term& term = layout_.terms[source];
    if (term.count == 0) return gates;
    const EdgernnTrainNorm& norm = norms_.products[source];
    const Result result = {scratch_.grads[source] + (gates.at - scratch.gates), gates.stride};
    Invert(norm, term.rows, t);
    const float* values = Normalised(source, t);
    for (int i = 0; i < term.count; ++i) {
      const Segment& s = term.segments[i];
      const auto value = [&](std::int64_t row, std::int64_t at, Lanes lanes) {
        return lanes.Load(values + row * term.rows + s.row + at);
      };
      NormaliseBack({gates.at + s.at, gates.stride}, value, norm.gain + s.row, s.columns, false,
                    {result.at + s.at, result.stride}, s.row);
      if (norm.gain_grad != nullptr) {
        AddTo(scratch_.product_sum, s.columns, norm.gain_grad + s.row);
      }
    }
    return {result.at, result.stride};
  }

  const float* ChunkGrads(Source source, const ThreadScratch&) const override {
    return scratch_.grads[source];
  }

 private:
  // Neurons of the output: h = gate squashed, squashed = tanh(N(c)).
  struct Output {
    float* h;
    Vec gate;
    Vec squashed;
  };

  // Calls run(row, first neuron, lanes, output) for all outputs of step t.
  template <class Run>
  [[gnu::always_inline]] void ForEachOutput(std::int64_t t, Run run) const {
    const EdgernnTrainNorm& norm = norms_.state;
    const std::int64_t hidden = layout_.hidden;
    const float* mean = norm.mean + t * hidden;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const float* gates = Gates(t) + row * layout_.gates + layout_.at[norms_.output_gate];
      for (std::int64_t at = 0; at < hidden; at += kLanes) {
        const Lanes lanes(hidden - at);
        const Vec centred = lanes.Load(After(1, t) + row * hidden + at) - lanes.Load(mean + at);
        const Vec value = centred * lanes.Load(scratch_.inverse + at);
        const Vec read = lanes.Load(norm.gain + at) * value + lanes.Load(norm.shift + at);
        const Output output = {After(0, t) + row * hidden + at, Sigmoid(lanes.Load(gates + at)),
                               Tanh(read)};
        run(row, at, lanes, output);
      }
    }
  }

  // The statistics of step t, if they are those of the batch, and what values are multiplied by.
  void Measure(const EdgernnTrainNorm& norm, Lines from, std::int64_t columns,
               std::int64_t t) const {
    if (norms_.learns != 0) {
      float* mean = norm.mean + t * columns;
      float* var = norm.var + t * columns;
      const auto value = [&](std::int64_t row, std::int64_t at, Lanes lanes) {
        return lanes.Load(from.at + row * from.stride + at);
      };
      SumRows(rows_, columns, value, mean);
      Scale(columns, mean);
      const auto square = [&](std::int64_t row, std::int64_t at, Lanes lanes) {
        const Vec centred = value(row, at, lanes) - lanes.Load(mean + at);
        return centred * centred;
      };
      SumRows(rows_, columns, square, var);
      Scale(columns, var);
    }
    Invert(norm, columns, t);
  }

  void Scale(std::int64_t columns, float* sums) const {
    for (std::int64_t at = 0; at < columns; ++at) sums[at] *= share_;
  }

  void Invert(const EdgernnTrainNorm& norm, std::int64_t columns, std::int64_t t) const {
    const float* var = norm.var + t * columns;
    for (std::int64_t at = 0; at < columns; ++at) {
      scratch_.inverse[at] = 1.0f / __builtin_sqrtf(var[at] + norms_.eps);
    }
  }

  // The gradients of columns before they were normalised, from those after it, with the gain among
  // them; value(row, column, lanes) is what they were normalised to, and `first` their place in
  // `inverse`. Leaves the sums of both products in the scratch.
  template <class Value>
  [[gnu::always_inline]] void NormaliseBack(Lines grads, Value value, const float* gain,
                                            std::int64_t columns, bool adds, Result to,
                                            std::int64_t first = 0) const {
    const auto grad = [&](std::int64_t row, std::int64_t at, Lanes lanes) {
      return lanes.Load(grads.at + row * grads.stride + at);
    };
    const auto product = [&](std::int64_t row, std::int64_t at, Lanes lanes) {
      return grad(row, at, lanes) * value(row, at, lanes);
    };
    SumRows(rows_, columns, grad, scratch_.sum);
    SumRows(rows_, columns, product, scratch_.product_sum);
    const float share = norms_.learns != 0 ? share_ : 0.0f;
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t at = 0; at < columns; at += kLanes) {
        const Lanes lanes(columns - at);
        const Vec mean = lanes.Load(scratch_.sum + at) * share;
        const Vec along = lanes.Load(scratch_.product_sum + at) * share;
        const Vec scale = lanes.Load(gain + at) * lanes.Load(scratch_.inverse + first + at);
        Vec result = scale * (grad(row, at, lanes) - mean - value(row, at, lanes) * along);
        float* place = to.at + row * to.stride + at;
        if (adds) result = result + lanes.Load(place);
        lanes.Store(place, result);
      }
    }
  }

  static void AddTo(const float* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count && to != nullptr; ++i) to[i] += from[i];
  }

  static void Clear(const EdgernnTrainNorm& norm, std::int64_t count) {
    if (norm.gain_grad != nullptr) std::memset(norm.gain_grad, 0, Bytes(count));
    if (norm.shift_grad != nullptr) std::memset(norm.shift_grad, 0, Bytes(count));
  }

  float* Normalised(Source source, std::int64_t t) const {
    const std::int64_t columns = layout_.terms[source].rows;
    return norms_.products[source].normalised + (call_.keep ? t * call_.batch * columns : 0);
  }

  const EdgernnTrainNorms& norms_;
  const NormScratch scratch_;
  const float share_;  // of a row in a mean
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_NORM_SEQUENCE_H_
