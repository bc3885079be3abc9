// SPDX-License-Identifier: Apache-2.0
// One time step of one sample, under a rule that selects neurons.

#pragma once

#include "cpu/driver_sparse_memory.h"
#include "cpu/state_copy.h"

namespace edgernn::EDGERNN_ISA {

// How a step computes the pre-activations of the active neurons.
enum class SparsePath {
  kRows,       // the rows of the active neurons
  kProjected,  // W x of all neurons as in a dense layer, the other rows of the active neurons
  kBlocks,     // blocks with active neurons, whole
};

// One time step of one sample.
struct SparseStep {
  const CellKernel& cell;
  const LayerSizes& sizes;
  const SparseWeights& weights;
  const float* const* params;
  const SparseScratch& scratch;
  const ActiveSet& active;
  std::int64_t sample;
  float* projected;             // bias and W x of all neurons (blocks, gates, lanes), or null
  float* mid_projected;         // those of the gates marked kMid (blocks, gates, lanes), or null
  float* const* state;          // (padded H,) each
  const std::int32_t* neurons;  // (count,), indices of the active neurons; or null
  float* x;                     // (padded I,), followed by the previous x in cells that read it
  float* mid;                   // (padded M,)
  float* sums;                  // (gates, sums_stride): pre-activations of the active neurons
  std::int64_t sums_stride;
  // (padded H,) each: `state`, or masked copies if the rule has masks
  float* cell_state[kMaxStates] = {};
  MatmulInputs inputs{};

  SparseStep(const CellKernel& cell, const LayerSizes& sizes, const SparseWeights& weights,
             const float* const* params, const SparseScratch& scratch, const ActiveSet& active,
             std::int64_t sample, float* projected, float* mid_projected, float* const* state)
      : cell(cell),
        sizes(sizes),
        weights(weights),
        params(params),
        scratch(scratch),
        active(active),
        sample(sample),
        projected(projected),
        mid_projected(mid_projected),
        state(state),
        neurons(active.neurons),
        x(scratch.x + sample * PadToLanes(sizes.input) * InputCount(cell)),
        mid(scratch.mid + sample * PadToLanes(MidSize(cell, sizes))),
        sums(scratch.sums),
        sums_stride(PadToLanes(sizes.hidden)) {
    for (int s = 0; s < cell.states; ++s) cell_state[s] = state[s];
  }

  // Copies x into padded scratch, applies the rule's masks and computes Q h. Returns the
  // multiply-adds.
  std::int64_t LoadInputs(const float* now, const float* last) {
    inputs = MakeMatmulInputs(cell, sizes, x, state, mid);
    std::memcpy(x, now, Bytes(sizes.input));
    if (cell.reads_last) std::memcpy(x + PadToLanes(sizes.input), last, Bytes(sizes.input));
    if (active.x_mask != nullptr) ApplyMasks();
    if (sizes.rank == 0) return 0;
    const std::int64_t macs = sizes.rank * inputs.h_end;
    float* const qh = scratch.qh + sample * PadToLanes(sizes.rank);
    MultiplyQ(sizes, weights.q, inputs.h, 1, inputs.h_end, qh);
    ClearPadding(qh, sizes.rank);
    inputs.h = qh;
    inputs.h_end = sizes.rank;
    return macs;
  }

  // Applies the rule's masks to x and the states.
  void ApplyMasks() {
    inputs.x_end = active.x_end;
    inputs.h_end = inputs.c_end = active.state_end;
    for (int part = 0; part < InputCount(cell); ++part) {
      float* to = x + part * PadToLanes(sizes.input);
      Mask(to, active.x_mask, active.x_end, PadToLanes(sizes.input), to);
    }
    for (int s = 0; s < cell.states; ++s) {
      cell_state[s] = scratch.masked[s];
      Mask(state[s], active.state_mask, active.state_end, PadToLanes(sizes.hidden), cell_state[s]);
    }
    inputs.h = cell_state[0];
    inputs.c = cell_state[cell.factor_states - 1];
    if (cell.mid_vanishes) inputs.m_end = active.state_end;
  }

  // Makes the kept sums those of the current states. Returns the number of columns that were added,
  // or -1 if the product is to be computed in full. The choice depends on the current step alone:
  // the sums and that product differ in their last bits.
  std::int64_t UpdateKept() const {
    if (active.count > weights.max_kept || !*weights.kept.exact) return -1;
    return scratch.kept.At(sample).Update(weights.kept, inputs.h, scratch.changed, scratch.factors);
  }

  // Copies the scores of some blocks from their sums.
  void CopyScores(const PointwiseArgs& args) const {
    for (std::int64_t i = 0; i < args.count; ++i) {
      const Vec sum = Load(args.sums + i * args.stride + cell.score_place * kLanes);
      Store(scratch.scores + args.first + i * kLanes, sum * cell.update_gate.sign);
    }
  }

  // Computes the first m_end elements of m, and the scores of the update gate if it is summed with
  // the gates marked kMid. Returns the multiply-adds.
  std::int64_t ComputeMid() {
    const GateGroup& group = cell.first_stage;
    const std::int64_t size = inputs.m_end, blocks = Blocks(size);
    float* sums = mid_projected;
    std::int64_t macs = 0;
    if (sums == nullptr) {
      sums = scratch.mid_sums;
      weights.mid.Project(inputs.x, 1, inputs.x_end, scratch.quantized, sums);
      macs = size * inputs.x_end * group.x.count;
    }
    const std::int64_t columns = UpdateKept();
    PointwiseArgs args{};
    args.cell = &cell;
    args.gate_stride = kLanes;
    args.stride = group.all.count * kLanes;
    args.x = inputs.x;
    args.params = params;
    args.state = cell_state;
    args.to = &mid;
    const auto finish = [&](std::int64_t block, std::int64_t count, const float* from) {
      args.first = block * kLanes;
      args.count = count;
      args.sums = from;
      if (cell.has_mid) cell.mid(args);
      if (cell.score_place >= 0) CopyScores(args);
    };
    if (columns >= 0) {
      scratch.kept.At(sample).AddTo(weights.mid, sums);
      finish(0, blocks, sums);
    } else {
      GroupProducts products(weights.mid, false);
      RunGroup(
          cell, inputs, 1, blocks, scratch.quantized, sums,
          [&](std::int64_t, std::int64_t, std::int64_t block, std::int64_t count, Sums tile) {
            finish(block, count, tile.at);
          },
          &products);
    }
    if (cell.has_mid) ClearPadding(mid, size);
    return macs + size * (columns >= 0 ? columns : inputs.h_end) * group.h.count;
  }

  // Computes the pre-activations of the active neurons, stored contiguously; without W x and the
  // biases beside it if `starts_from_x`.
  void Multiply(bool starts_from_x) const {
    if (sizes.weights == NumberType::kInt8) Quantize();
    for (std::int64_t first = 0, end = active.count; first < active.count; first = end) {
      const std::int64_t begin = Begin(first);
      // neighbouring neurons usually start at the same column
      if (active.starts != nullptr) {
        for (end = first + 1; end < active.count && Begin(end) == begin;) ++end;
      }
      GatherArgs args{};
      args.inputs = &inputs;
      args.begin = begin;
      args.weights = weights.Rows(starts_from_x);
      args.neurons = neurons + first;
      args.count = end - first;
      args.sums = sums + first;
      args.stride = sums_stride;
      if (sizes.weights == NumberType::kFloat32) {
        cell.multiply(cell, sizes, args);
      } else {
        MultiplyLowPrecisionNeurons(cell, sizes, args, scratch.parts);
      }
    }
  }

  // Quantizes the inputs of the gathered products with int8 weights.
  void Quantize() const {
    const GateGroup& group = cell.second_stage;
    const auto read = [&](int part, const GateList& gates, const float* from, std::int64_t end,
                          std::int64_t depth) {
      if (gates.count > 0) scratch.parts[part].Read(from, 0, 1, end, depth);
    };
    read(0, group.x, inputs.x, inputs.x_end, sizes.input);
    if (cell.reads_last) {
      read(1, group.x, inputs.x + PadToLanes(sizes.input), inputs.x_end, sizes.input);
    }
    read(2, group.h, inputs.h, inputs.h_end, RecurrentColumns(sizes));
    read(3, group.c, inputs.c, inputs.c_end, sizes.hidden);
    read(4, group.m, inputs.m, inputs.m_end, MidSize(cell, sizes));
  }

  // The fastest path. It must not depend on the batch or the length of the call: a sample has the
  // same results in any.
  SparsePath ChoosePath() const {
    const bool only_rows = active.starts != nullptr || active.x_mask != nullptr;
    if (only_rows || cell.score_place >= 0) return SparsePath::kRows;
    const bool projects = active.count >= weights.min_projected;
    if (projects && !weights.reads_state) return SparsePath::kBlocks;
    if (100 * active.count > weights.block_percent * kLanes * CountBlocks()) {
      return SparsePath::kBlocks;
    }
    return projects ? SparsePath::kProjected : SparsePath::kRows;
  }

  // The number of blocks with active neurons; all, if the rule lists neurons.
  std::int64_t CountBlocks() const {
    return active.lanes == nullptr ? Blocks(sizes.hidden) : active.blocks;
  }

  // The columns that W multiplies: x, or [x, previous x] in cells that read it.
  const float* InputRow() const {
    if (!cell.reads_last) return inputs.x;
    float* const pair = scratch.pair + sample * 2 * sizes.input;
    std::memcpy(pair, x, Bytes(sizes.input));
    std::memcpy(pair + sizes.input, x + PadToLanes(sizes.input), Bytes(sizes.input));
    return pair;
  }

  // Computes bias and W x of all neurons, if that was not done for several steps at once. Returns
  // the multiply-adds.
  std::int64_t Project() {
    if (projected != nullptr) return 0;
    projected = scratch.step_projected;
    weights.dense.Project(InputRow(), 1, InputColumns(cell, sizes), scratch.quantized, projected);
    return weights.dense.InputMacs(cell, sizes);
  }

  // Describes the sample's part of a step of blocks. Returns the multiply-adds.
  std::int64_t MakeBlockSample(float* const* next, BlockSample* to) const {
    const float* const input = projected == nullptr ? InputRow() : inputs.x;
    const LaneBits* const lanes = active.lanes == nullptr ? scratch.all_lanes : active.lanes;
    *to = {lanes, {input, inputs.h, inputs.c, inputs.m}, inputs.x, projected, state, next};
    return weights.dense.BlockMacs(cell, sizes, lanes, projected == nullptr);
  }

  // Writes the new states of the listed neurons, at their places in `next`, to `state`.
  void KeepListed(float* const* next) const {
    if (active.count == sizes.hidden) return Scatter(next);
    for (int s = 0; s < cell.states; ++s) {
      for (std::int64_t i = 0; i < active.count; ++i) scratch.gathered[s][i] = next[s][neurons[i]];
    }
    Scatter(scratch.gathered);
  }

  // The first column of the states that the i-th active neuron reads, rounded down to a vector.
  std::int64_t Begin(std::int64_t i) const {
    return active.starts == nullptr ? 0 : active.starts[neurons[i]] & -kLanes;
  }

  // Writes the values of the active neurons in `from` (blocks, lanes), whose blocks are `stride`
  // apart, one after the other.
  void Gather(const float* from, std::int64_t stride, float* to) const {
    if (kCompresses && active.lanes != nullptr) {
      return CompressLanes(from, stride, active.lanes, Blocks(sizes.hidden), to);
    }
    if (stride == kLanes) {
      for (std::int64_t i = 0; i < active.count; ++i) to[i] = from[neurons[i]];
      return;
    }
    for (std::int64_t i = 0; i < active.count; ++i) {
      to[i] = from[neurons[i] / kLanes * stride + neurons[i] % kLanes];
    }
  }

  // Adds bias and W x to the pre-activations of the active neurons.
  void AddProjected() const {
    const GateGroup& group = cell.second_stage;
    for (int i = 0; i < group.x.count; ++i) {
      const int gate = group.x.at[i];
      Gather(projected + gate * kLanes, group.all.count * kLanes, scratch.gathered_start);
      float* const to = sums + gate * sums_stride;
      for (std::int64_t j = 0; j < active.count; j += kLanes) {
        Store(to + j, Load(to + j) + Load(scratch.gathered_start + j));
      }
    }
  }

  // Computes the new states of the active neurons, stored contiguously.
  void Update() const {
    const std::int64_t count = active.count;
    const auto gather = [&](const float* from, float* to) { Gather(from, kLanes, to); };
    for (int s = 0; s < cell.states; ++s) gather(cell_state[s], scratch.gathered[s]);
    const float* neuron_params[kMaxParams];
    for (int i = 0; i < cell.params; ++i) {
      neuron_params[i] = params[i];
      if (!BlockBuffers::HasNeurons(cell, i)) continue;
      gather(params[i], scratch.gathered_param[i]);
      neuron_params[i] = scratch.gathered_param[i];
    }
    if (cell.square) gather(inputs.x, scratch.gathered_x);
    PointwiseArgs args{};
    args.cell = &cell;
    args.count = Blocks(count);
    args.sums = sums;
    args.gate_stride = sums_stride;
    args.stride = kLanes;
    args.x = scratch.gathered_x;
    args.params = neuron_params;
    args.state = scratch.gathered;
    args.to = scratch.gathered;
    cell.update(args);
  }

  // Writes the new states of the active neurons, stored one after the other, to `state`, blended if
  // the rule says so.
  void Scatter(const float* const* new_state) const {
    const std::int64_t count = active.count;
    for (int s = 0; s < cell.states; ++s) {
      const float* const now = new_state[s];
      float* const to = state[s];
      if (active.blend != nullptr) {
        Blend(now, to);
      } else if (count == sizes.hidden) {
        std::memcpy(to, now, Bytes(count));
      } else if (kCompresses && active.lanes != nullptr && count > 4 * Blocks(sizes.hidden)) {
        ExpandLanes(now, active.lanes, Blocks(sizes.hidden), to);
      } else {
        for (std::int64_t i = 0; i < count; ++i) to[neurons[i]] = now[i];
      }
    }
  }

  void Blend(const float* now, float* to) const {
    const float* const blend = active.blend;
    if (active.count == sizes.hidden) {
      for (std::int64_t i = 0; i < sizes.hidden; ++i) {
        to[i] = blend[i] * now[i] + (1.0f - blend[i]) * to[i];
      }
      return;
    }
    for (std::int64_t i = 0; i < active.count; ++i) {
      float& old = to[neurons[i]];
      old = blend[i] * now[i] + (1.0f - blend[i]) * old;
    }
  }

  // Lists the active neurons.
  void ListNeurons() {
    std::int64_t count = 0;
    for (std::int64_t block = 0; block < Blocks(sizes.hidden); ++block) {
      count += AppendLanes(active.lanes[block], static_cast<std::int32_t>(block * kLanes),
                           scratch.neurons + count);
    }
    neurons = scratch.neurons;
  }

  // Computes the inputs of the products from x and the previous x, (I,) each. Returns the
  // multiply-adds.
  std::int64_t Prepare(const float* now, const float* last) {
    const std::int64_t macs = LoadInputs(now, last);
    return macs + (cell.has_mid || cell.score_place >= 0 ? ComputeMid() : 0);
  }

  // Copies the sums of the update gate, of which the scores have the sign, to those of the active
  // neurons.
  void CopyUpdateGate() const {
    int place = 0;
    while (cell.second_stage.all.at[place] != cell.update_gate.gate) ++place;
    Gather(scratch.scores, kLanes, scratch.gathered_start);
    float* const to = sums + place * sums_stride;
    for (std::int64_t j = 0; j < active.count; j += kLanes) {
      Store(to + j, Load(scratch.gathered_start + j) * cell.update_gate.sign);
    }
  }

  // Computes the active neurons one by one, starting from `projected` if `starts_from_x`. Returns
  // the multiply-adds.
  std::int64_t RunRows(bool starts_from_x) {
    if (active.neurons == nullptr) ListNeurons();
    if (starts_from_x) inputs.x_end = 0;
    Multiply(starts_from_x);
    FinishRows(starts_from_x);
    return RowMacs();
  }

  // Computes the new states from the sums of the active neurons, which are listed.
  void FinishRows(bool starts_from_x) const {
    if (starts_from_x) AddProjected();
    if (cell.score_place >= 0) CopyUpdateGate();
    Update();
    Scatter(scratch.gathered);
  }

  // The multiply-adds of the gathered products.
  std::int64_t RowMacs() const {
    const GateGroup& group = cell.second_stage;
    const std::int64_t count = active.count;
    return (count * inputs.h_end - active.unread) * group.h.count +
           (count * inputs.c_end - active.unread) * group.c.count +
           count * (inputs.x_end * group.x.count * InputCount(cell) + inputs.m_end * group.m.count);
  }
};

}  // namespace edgernn::EDGERNN_ISA
