// SPDX-License-Identifier: Apache-2.0
// The packed weights and the scratch memory of driver_sparse.h.

#pragma once

#include "cpu/block_step.h"
#include "cpu/gather_low_precision.h"
#include "cpu/kept_sums.h"
#include "cpu/make_selector.h"

namespace edgernn::EDGERNN_ISA {

// The packed weights of a layer. They begin with this list of their parts.
struct SparseWeights {
  // Measured: the fixed cost of W x of the gates marked kMid, in columns of a product.
  static constexpr std::int64_t kMidOverhead = 10;
  // Measured: if this percentage of the neurons has changed, adding their columns takes as long as
  // the whole product.
  static constexpr std::int64_t kKeptPercent = 50;

  void* rule;              // packed by the selector
  void* rows;              // a row per neuron, see gather_f32.h and gather_low_precision.h
  float* row_b;            // (H, stored sums)
  float* row_b_without_x;  // (H, stored sums): 0 for gates with x; only if min_projected <= H
  float* q;                // packed matrix
  GroupWeights mid;        // gates marked kMid
  KeptWeights kept;        // R of `mid`, for sums that are kept
  GroupWeights dense;      // the weights of `rows` as panels, for steps that update most neurons
  PackedParams params;
  bool reads_state;            // true if a gate multiplies h, c or m
  std::int64_t min_projected;  // number of active neurons from which W x of all neurons pays
  std::int64_t block_percent;  // percentage of active neurons from which whole blocks pay
  std::int64_t max_kept;       // most active neurons with which the sums of `mid` are kept
  std::uint64_t bytes;

  SparseWeights(const Kernel& kernel, const LayerSizes& sizes, void* base) {
    const CellTable& cell = *kernel.cell;
    Arena arena(base);
    SparseWeights* const list = arena.Allocate<SparseWeights>(1);
    rule = arena.Allocate<char>(static_cast<std::int64_t>(kernel.selector->packed_bytes(sizes)));
    rows = arena.Allocate(RowBytes(cell, sizes));
    reads_state =
        cell.second_stage.h.count + cell.second_stage.c.count + cell.second_stage.m.count > 0;
    min_projected = MinProjected(cell, sizes);
    block_percent = BlockPercent(sizes.weights);
    row_b = arena.Allocate<float>(sizes.hidden * StoredSums(cell));
    row_b_without_x =
        arena.Allocate<float>(min_projected <= sizes.hidden ? sizes.hidden * StoredSums(cell) : 0);
    q = arena.Allocate<float>(PadToLanes(sizes.rank) * sizes.hidden);
    mid.Allocate(cell, cell.first_stage, MidSize(cell, sizes), sizes, false, &arena);
    kept.Allocate(mid.r, MayKeepSums(kernel, sizes), &arena);
    max_kept = sizes.hidden * kKeptPercent / 100;
    // a step with scores never computes whole blocks
    static constexpr GateGroup kNone{};
    dense.Allocate(cell, cell.score_place < 0 ? cell.second_stage : kNone, sizes.hidden, sizes,
                   true, &arena);
    params.Allocate(cell, sizes, &arena);
    bytes = arena.used();
    if (list != nullptr) *list = *this;
  }

  static const SparseWeights& In(const void* packed) {
    return *static_cast<const SparseWeights*>(packed);
  }

  RowWeights Rows(bool starts_from_x) const {
    return {rows, starts_from_x ? row_b_without_x : row_b};
  }

  // Measured with vectors of 16 floats: the rows of a neuron take 1.09 (float32), 1.7 (bfloat16)
  // and 2.2 (int8) times as long as its part of a block; with shorter vectors 1.3, 2 and 3.3 times.
  static std::int64_t BlockPercent(NumberType weights) {
    constexpr bool kLong = kLanes == 16;
    if (weights == NumberType::kFloat32) return kLong ? 92 : 75;
    if (weights == NumberType::kBfloat16) return kLong ? 60 : 50;
    return kLong ? 45 : 30;
  }

  // The number of active neurons from which W x of all neurons, computed ahead for several steps,
  // takes less time than the rows of W of these neurons. Measured: a multiply-add takes 0.6 of the
  // time, and gathering the sums as long as 6 columns. Above H: never.
  static std::int64_t MinProjected(const CellTable& cell, const LayerSizes& sizes) {
    if (sizes.weights != NumberType::kFloat32 || cell.second_stage.x.count == 0) {
      return sizes.hidden + 1;
    }
    const std::int64_t row = PadToLanes(sizes.input) * InputCount(cell);
    const std::int64_t percent = (70 * InputColumns(cell, sizes) + 600) * 100 / (109 * row);
    return sizes.hidden * percent / 100 + 1;
  }

  static std::uint64_t RowBytes(const CellTable& cell, const LayerSizes& sizes) {
    if (sizes.weights == NumberType::kFloat32) {
      return Bytes(sizes.hidden * Float32RowLayout(cell, sizes).floats);
    }
    return static_cast<std::uint64_t>(sizes.hidden * LowPrecisionRowLayout(cell, sizes).bytes);
  }
};

// A sample whose gathered products wait for those of other samples, to share the loaded rows.
struct WaitingRows {
  MatmulInputs inputs;
  float* projected;     // that of SparseStep
  std::int64_t count;   // number of active neurons
  std::int64_t blocks;  // number of blocks with active neurons
  std::int64_t sample;
};

// The largest number of samples that share the row of a neuron: one for each bit of their set.
constexpr std::int64_t kMaxSharing = 64;

struct SparseScratch {
  std::int64_t chunk;
  void* rule;             // scratch of the selector, for (chunk, B) rows
  float* x;               // (B, padded I), each followed by the previous x in cells that read it
  float* pair;            // (B, 2I): x_t and x_{t-1}, for cells that read both
  float* pairs;           // (chunk, B, 2I): x_t and x_{t-1}, for cells that read both
  float* mid_sums;        // (blocks of M, mid gates, lanes)
  float* mid;             // (B, padded M)
  float* scores;          // (padded H,): of the update gate, for rules of the kind kGate
  KeptMemory kept;        // sums of the gates marked kMid
  std::int32_t* changed;  // indices of the neurons whose state differs from the kept one
  double* factors;        // (padded H,): what the changed neurons' columns are multiplied by
  float* qh;              // (B, padded rank): Q h
  QuantizedInputs quantized;       // inputs of the dense path: (chunk, B) rows for x, else one
  QuantizedRows parts[kMaxParts];  // inputs of gathered products, one row each
  // pre-activations, (gates, padded H) of the active neurons or (blocks, gates, lanes) of all
  float* sums;
  float* step_projected;  // (blocks, gates, lanes): bias and W x of all neurons, of one step
  float* gathered_start;  // (padded H,): bias and W x of the active neurons, of one gate
  BlockBuffers blocks;
  BlockSample* samples;   // (B,)
  std::int32_t* waiting;  // (B,): indices of the samples
  LaneBits* lanes;        // (B, blocks): their active neurons
  // samples whose gathered products wait, (B,) each: [0] with W x in them, [1] without
  WaitingRows* waiting_rows[2];
  std::uint64_t* sharing;  // (H,): a bit for each waiting sample in which the neuron is active
  float* shared_sums;      // (kMaxSharing, gates, SharedStride): their pre-activations
  std::int32_t* neurons;   // indices of the active neurons
  LaneBits* all_lanes;     // the bits of all neurons
  // x, states and parameters of the active neurons, (padded H,) each; parameters with one value per
  // neuron only
  float* gathered_x;
  float* gathered[kMaxStates];
  float* gathered_param[kMaxParams];
  float* masked[kMaxStates];    // (padded H,) each: the states times the rule's mask
  float* state[kMaxStates];     // (B, padded H) each
  float* next[kMaxStates];      // (B, padded H) each: new states of active blocks
  float** state_of;             // (B, kMaxStates): rows of `state`
  float** next_of;              // (B, kMaxStates): rows of `next`
  float* memory[kMaxMemories];  // (B, padded size) each, the memories of the rule
  std::int64_t* macs;           // (B,)
  // number of bytes that are zeroed at the start of a call: memory that is read before it is
  // written, such as padding; the memory after it starts with arbitrary values
  std::uint64_t zeroed_bytes;
  // bias and W x for the steps of a chunk, or null
  float* projected;      // (chunk, B, blocks, gates, lanes), of all neurons
  float* mid_projected;  // (chunk, B, blocks of M, mid gates, lanes)
  std::uint64_t bytes;

  SparseScratch(const Kernel& kernel, const LayerSizes& sizes, std::int64_t steps,
                std::int64_t batch, void* base)
      : kept(kernel, sizes, batch, nullptr) {
    const CellTable& cell = *kernel.cell;
    const std::int64_t padded = PadToLanes(sizes.hidden),
                       mid_size = PadToLanes(MidSize(cell, sizes));
    Arena arena(base);
    chunk = ChunkSteps(steps, batch);
    rule = arena.Allocate<char>(
        static_cast<std::int64_t>(kernel.selector->scratch_bytes(sizes, chunk * batch)));
    x = arena.Allocate<float>(batch * PadToLanes(sizes.input) * InputCount(cell));
    mid = arena.Allocate<float>(cell.has_mid ? batch * mid_size : 0);
    void* const kept_base = arena.Allocate(kept.bytes);
    if (base != nullptr) kept = KeptMemory(kernel, sizes, batch, kept_base);
    // a call of one chunk projects nothing in advance
    const std::int64_t rows = steps > chunk ? chunk * batch : 1;
    quantized.Allocate(cell, sizes, 1, rows, &arena);
    const std::int64_t columns[kMaxParts] = {sizes.input, sizes.input, RecurrentColumns(sizes),
                                             sizes.hidden, MidSize(cell, sizes)};
    for (int p = 0; p < kMaxParts; ++p) parts[p].Allocate(sizes, 1, columns[p], &arena);
    macs = arena.Allocate<std::int64_t>(batch);
    zeroed_bytes = arena.used();
    pair = arena.Allocate<float>(cell.reads_last ? batch * 2 * sizes.input : 0);
    pairs = arena.Allocate<float>(cell.reads_last ? rows * 2 * sizes.input : 0);
    const std::int64_t sums_size = padded * cell.second_stage.all.count;
    mid_sums = arena.Allocate<float>(mid_size * cell.first_stage.all.count);
    scores = arena.Allocate<float>(cell.score_place < 0 ? 0 : padded);
    const bool keeps = kept.bytes > 0;
    changed = keeps ? AllocateList(sizes.hidden, &arena) : nullptr;
    factors = arena.Allocate<double>(keeps ? padded : 0);
    qh = arena.Allocate<float>(batch * PadToLanes(sizes.rank));
    sums = arena.Allocate<float>(sums_size);
    step_projected = arena.Allocate<float>(sums_size);
    const std::int64_t list_size = padded + kLanes;  // with the slack that CompressLanes needs
    gathered_start = arena.Allocate<float>(list_size);
    blocks.Allocate(cell, batch, &arena);
    samples = arena.Allocate<BlockSample>(batch);
    waiting = arena.Allocate<std::int32_t>(batch);
    lanes = arena.Allocate<LaneBits>(batch * Blocks(sizes.hidden));
    const std::int64_t sharing_samples = batch < kMaxSharing ? batch : kMaxSharing;
    const bool shares = batch > 1;
    for (WaitingRows*& rows : waiting_rows) rows = arena.Allocate<WaitingRows>(shares ? batch : 0);
    sharing = arena.Allocate<std::uint64_t>(shares ? sizes.hidden : 0);
    shared_sums = arena.Allocate<float>(
        shares ? sharing_samples * cell.second_stage.all.count * SharedStride(sizes) : 0);
    neurons = AllocateList(sizes.hidden, &arena);
    all_lanes = AllocateLanes(sizes.hidden, &arena);
    gathered_x = arena.Allocate<float>(cell.square ? list_size : 0);
    for (int s = 0; s < cell.states; ++s) gathered[s] = arena.Allocate<float>(list_size);
    for (int i = 0; i < cell.params; ++i) {
      gathered_param[i] = arena.Allocate<float>(BlockBuffers::HasNeurons(cell, i) ? list_size : 0);
    }
    for (int s = 0; s < cell.states; ++s) masked[s] = arena.Allocate<float>(padded);
    for (int s = 0; s < cell.states; ++s) state[s] = arena.Allocate<float>(batch * padded);
    for (int s = 0; s < cell.states; ++s) next[s] = arena.Allocate<float>(batch * padded);
    state_of = arena.Allocate<float*>(batch * kMaxStates);
    next_of = arena.Allocate<float*>(batch * kMaxStates);
    for (int i = 0; i < kernel.rule->memory_count; ++i) {
      const std::int64_t width = Width(kernel.rule->memories[i].extent, sizes);
      memory[i] = arena.Allocate<float>(batch * PadToLanes(width));
    }
    projected = steps > chunk ? arena.Allocate<float>(rows * sums_size) : nullptr;
    const bool projects_mid =
        steps > chunk && cell.first_stage.x.count > 0 && !kernel.selector->masks;
    const std::int64_t mid_sums_size = mid_size * cell.first_stage.all.count;
    mid_projected = projects_mid ? arena.Allocate<float>(rows * mid_sums_size) : nullptr;
    bytes = arena.used();
  }

  // The stride of a gate in `shared_sums`: the size of the sums and one cache line more, so that
  // the sums of one neuron in many samples do not all map to the same few sets of the first-level
  // cache.
  static std::int64_t SharedStride(const LayerSizes& sizes) {
    return PadToLanes(sizes.hidden) + 16;
  }

  // Copies the bits of a sample's active neurons.
  const LaneBits* KeepLanes(std::int64_t sample, std::int64_t count, const LaneBits* from) const {
    LaneBits* const to = lanes + sample * count;
    for (std::int64_t k = 0; k < count; ++k) to[k] = from[k];
    return to;
  }
};

}  // namespace edgernn::EDGERNN_ISA
