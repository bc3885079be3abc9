// SPDX-License-Identifier: Apache-2.0
// The packed weights and the buffers of driver_sparse.h.

#ifndef EDGERNN_CPU_DRIVER_SPARSE_MEMORY_H_
#define EDGERNN_CPU_DRIVER_SPARSE_MEMORY_H_

#include "cpu/gather_low_precision.h"
#include "rules/selector.h"

namespace edgernn::EDGERNN_ISA {

struct SparseWeights {
  void* rule;    // the selector's
  void* rows;    // see gather_f32.h and gather_low_precision.h
  float* row_b;  // (H, stored sums)
  float* q;      // a packed matrix
  GroupWeights mid;
  GroupWeights whole;  // the same as `rows`, for steps at which most neurons change
  PackedParams params;
  std::size_t bytes;

  SparseWeights(const Kernel& kernel, const LayerSizes& sizes, void* base) {
    const CellTable& cell = *kernel.cell;
    Arena arena(base);
    rule = arena.Allocate<char>(static_cast<std::int64_t>(kernel.selector->packed_bytes(sizes)));
    rows = arena.Allocate(RowBytes(cell, sizes));
    row_b = arena.Allocate<float>(sizes.hidden * StoredSums(cell));
    q = arena.Allocate<float>(PadToLanes(sizes.rank) * sizes.hidden);
    mid.Allocate(cell, cell.mid_gates, MidSize(cell, sizes), sizes, &arena);
    whole.Allocate(cell, cell.update_gates, sizes.hidden, sizes, &arena);
    params.Allocate(cell, sizes, &arena);
    bytes = arena.used();
  }

  static std::size_t RowBytes(const CellTable& cell, const LayerSizes& sizes) {
    if (sizes.weights == NumberType::kFloat32) {
      return Bytes(sizes.hidden * Float32RowLayout(cell, sizes).floats);
    }
    return static_cast<std::size_t>(sizes.hidden * LowPrecisionRowLayout(cell, sizes).bytes);
  }
};

struct SparseScratch {
  std::int64_t chunk;
  void* rule;                      // the selector's, for (chunk, B) rows
  float* x;                        // (padded I,), then the last x likewise
  float* pairs;                    // (chunk, B, 2I): x_t and x_{t-1}, cells that read both only
  float* mid_sums;                 // (blocks of M, mid gates, lanes)
  float* mid;                      // (padded M,)
  float* factor;                   // (padded rank,): Q h
  QuantizedFactors quantized;      // of one row, of (chunk, B) of x
  QuantizedRows parts[kMaxParts];  // of one row each: what single neurons multiply
  float* sums;                // (gates, padded H) of the active neurons, or as `whole` has them
  float* picked_x;            // (padded H,): their x
  float* picked[kMaxStates];  // (padded H,) each: their states
  float* picked_param[kMaxParams];  // (padded H,) each: their parameters, if one a neuron
  float* masked[kMaxStates];        // (padded H,) each: the states as the cell sees them
  float* state[kMaxStates];         // (B, padded H) each
  float* memory[kMaxMemories];      // (B, padded size) each: those of the rule
  std::int64_t* macs;               // (B,)
  std::size_t cleared;              // so many bytes are 0 at the start of a call
  float* ahead;                     // (chunk, B, blocks, gates, lanes): sums of `whole`, or null
  std::size_t bytes;

  SparseScratch(const Kernel& kernel, const LayerSizes& sizes, std::int64_t steps,
                std::int64_t batch, void* base) {
    const CellTable& cell = *kernel.cell;
    const std::int64_t padded = PadToLanes(sizes.hidden), middle = PadToLanes(MidSize(cell, sizes));
    Arena arena(base);
    chunk = ChunkSteps(steps, batch);
    rule = arena.Allocate<char>(
        static_cast<std::int64_t>(kernel.selector->scratch_bytes(sizes, chunk * batch)));
    x = arena.Allocate<float>(PadToLanes(sizes.input) * InputCount(cell));
    // nothing is ahead of one chunk
    const std::int64_t rows = steps > chunk ? chunk * batch : 1;
    pairs = arena.Allocate<float>(cell.reads_last ? rows * 2 * sizes.input : 0);
    const std::int64_t sums_size = padded * cell.update_gates.all.count;
    mid_sums = arena.Allocate<float>(middle * cell.mid_gates.all.count);
    mid = arena.Allocate<float>(cell.has_mid ? middle : 0);
    factor = arena.Allocate<float>(PadToLanes(sizes.rank));
    quantized.Allocate(cell, sizes, 1, rows, &arena);
    const std::int64_t columns[kMaxParts] = {sizes.input, sizes.input, RecurrentColumns(sizes),
                                             sizes.hidden, MidSize(cell, sizes)};
    for (int p = 0; p < kMaxParts; ++p) parts[p].Allocate(sizes, 1, columns[p], &arena);
    sums = arena.Allocate<float>(sums_size);
    picked_x = arena.Allocate<float>(cell.square ? padded : 0);
    for (int s = 0; s < cell.states; ++s) picked[s] = arena.Allocate<float>(padded);
    for (int i = 0; i < cell.params; ++i) {
      picked_param[i] = arena.Allocate<float>(IsPicked(cell, i) ? padded : 0);
    }
    for (int s = 0; s < cell.states; ++s) masked[s] = arena.Allocate<float>(padded);
    for (int s = 0; s < cell.states; ++s) state[s] = arena.Allocate<float>(batch * padded);
    for (int i = 0; i < kernel.rule->memory_count; ++i) {
      const std::int64_t width = Width(kernel.rule->memories[i].extent, sizes);
      memory[i] = arena.Allocate<float>(batch * PadToLanes(width));
    }
    macs = arena.Allocate<std::int64_t>(batch);
    cleared = arena.used();
    ahead = steps > chunk ? arena.Allocate<float>(rows * sums_size) : nullptr;
    bytes = arena.used();
  }

  // Whether each neuron has a value of its own of parameter i.
  static bool IsPicked(const CellTable& cell, int i) {
    const Extent extent = cell.extents[i];
    return extent == Extent::kHidden || (cell.square && extent == Extent::kInput);
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_CPU_DRIVER_SPARSE_MEMORY_H_
