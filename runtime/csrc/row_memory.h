// SPDX-License-Identifier: Apache-2.0
// The packed weights and the buffers of the driver of rows.h.

#ifndef EDGERNN_ROW_MEMORY_H_
#define EDGERNN_ROW_MEMORY_H_

#include "lister.h"
#include "neuron_pairs.h"

namespace edgernn::EDGERNN_ISA {

struct RowWeights {
  void* rule;    // the lister's
  void* rows;    // see neuron_rows.h and neuron_pairs.h
  float* row_b;  // (H, stored sums)
  float* q;      // a packed matrix
  GroupWeights mid;
  GroupWeights whole;  // the same as `rows`, for steps at which most neurons change
  PackedParams params;
  std::size_t bytes;

  RowWeights(const Kernel& kernel, const Sizes& sizes, void* base) {
    const CellTable& cell = *kernel.cell;
    Carver carver(base);
    rule = carver.Take<char>(static_cast<std::int64_t>(kernel.lister->packed_bytes(sizes)));
    rows = carver.Take(RowBytes(cell, sizes));
    row_b = carver.Take<float>(sizes.hidden * StoredSums(cell));
    q = carver.Take<float>(Padded(sizes.rank) * sizes.hidden);
    mid.Carve(cell, cell.mid_gates, MidSize(cell, sizes), sizes, &carver);
    whole.Carve(cell, cell.update_gates, sizes.hidden, sizes, &carver);
    params.Carve(cell, sizes, &carver);
    bytes = carver.used();
  }

  static std::size_t RowBytes(const CellTable& cell, const Sizes& sizes) {
    if (sizes.weights == NumberType::kFloat32) {
      return Bytes(sizes.hidden * RowLayout(cell, sizes).floats);
    }
    return static_cast<std::size_t>(sizes.hidden * PairLayout(cell, sizes).bytes);
  }
};

struct RowScratch {
  std::int64_t chunk;
  void* rule;                  // the lister's, for (chunk, B) rows
  float* x;                    // (padded I,), then the last x likewise
  float* pairs;                // (chunk, B, 2I): x_t and x_{t-1}, cells that read both only
  float* mid_sums;             // (blocks of M, mid gates, lanes)
  float* mid;                  // (padded M,)
  float* factor;               // (padded rank,): Q h
  GroupShorts shorts;          // of one row, of (chunk, B) of x
  ShortRows parts[kMaxParts];  // of one row each: what single neurons multiply
  float* sums;                 // (gates, padded H) of the listed neurons, or as `whole` has them
  float* picked_x;             // (padded H,): their x
  float* picked[kMaxStates];   // (padded H,) each: their states
  float* picked_param[kMaxParams];  // (padded H,) each: their parameters, if one a neuron
  float* masked[kMaxStates];        // (padded H,) each: the states as the cell sees them
  float* state[kMaxStates];         // (B, padded H) each
  float* memory;                    // (B,)
  std::int64_t* macs;               // (B,)
  std::size_t cleared;              // so many bytes are 0 at the start of a call
  float* ahead;                     // (chunk, B, blocks, gates, lanes): sums of `whole`, or null
  std::size_t bytes;

  RowScratch(const Kernel& kernel, const Sizes& sizes, std::int64_t steps, std::int64_t batch,
             void* base) {
    const CellTable& cell = *kernel.cell;
    const std::int64_t padded = Padded(sizes.hidden), middle = Padded(MidSize(cell, sizes));
    Carver carver(base);
    chunk = ChunkSteps(steps, batch);
    rule = carver.Take<char>(
        static_cast<std::int64_t>(kernel.lister->scratch_bytes(sizes, chunk * batch)));
    x = carver.Take<float>(Padded(sizes.input) * InputCount(cell));
    // nothing is ahead of one chunk
    const std::int64_t rows = steps > chunk ? chunk * batch : 1;
    pairs = carver.Take<float>(cell.reads_last ? rows * 2 * sizes.input : 0);
    const std::int64_t sums_size = padded * cell.update_gates.all.count;
    mid_sums = carver.Take<float>(middle * cell.mid_gates.all.count);
    mid = carver.Take<float>(cell.has_mid ? middle : 0);
    factor = carver.Take<float>(Padded(sizes.rank));
    shorts.Carve(cell, sizes, 1, rows, &carver);
    const std::int64_t columns[kMaxParts] = {sizes.input, sizes.input, RecurrentColumns(sizes),
                                             sizes.hidden, MidSize(cell, sizes)};
    for (int p = 0; p < kMaxParts; ++p) parts[p].Carve(sizes, 1, columns[p], &carver);
    sums = carver.Take<float>(sums_size);
    picked_x = carver.Take<float>(cell.square ? padded : 0);
    for (int s = 0; s < cell.states; ++s) picked[s] = carver.Take<float>(padded);
    for (int i = 0; i < cell.params; ++i) {
      picked_param[i] = carver.Take<float>(IsPicked(cell, i) ? padded : 0);
    }
    for (int s = 0; s < cell.states; ++s) masked[s] = carver.Take<float>(padded);
    for (int s = 0; s < cell.states; ++s) state[s] = carver.Take<float>(batch * padded);
    memory = carver.Take<float>(batch);
    macs = carver.Take<std::int64_t>(batch);
    cleared = carver.used();
    ahead = steps > chunk ? carver.Take<float>(rows * sums_size) : nullptr;
    bytes = carver.used();
  }

  // Whether each neuron has a value of its own of parameter i.
  static bool IsPicked(const CellTable& cell, int i) {
    const Extent extent = cell.extents[i];
    return extent == Extent::kHidden || (cell.square && extent == Extent::kInput);
  }
};

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_ROW_MEMORY_H_
