// SPDX-License-Identifier: Apache-2.0
// A step of the blocks (kLanes neighbouring neurons) in which any neuron is active, of one sample
// or of several at once, which share the loaded weights.

#pragma once

#include "cpu/block_tiles.h"
#include "cpu/gate_group.h"

namespace edgernn::EDGERNN_ISA {

// A sample of the step.
struct BlockSample {
  const LaneBits* lanes;  // (blocks,): the active neurons
  const float*
      operands[GroupProducts::kOperands];  // x, h, c and m; x is [x_t, x_{t-1}] if both are read
  const float* x;                          // (padded I,), only for square cells
  float* starts;                           // (blocks, gates, lanes): started sums, or null
  float* const* state;                     // (padded H,) each
  float* const* next;                      // (padded H,) each: new states of the active blocks
};

// Buffers for kItems pairs of a sample and a block, whose new states are computed at once.
struct BlockBuffers {
  static constexpr int kItems = 16;

  float* sums;                // (kItems, gates, lanes)
  float* x;                   // (kItems, lanes), for square cells
  float* state[kMaxStates];   // (kItems, lanes) each
  float* params[kMaxParams];  // (kItems, lanes) each, of parameters with a value per neuron
  std::int32_t* samples;      // (B,): the samples in which a block is active

  void Allocate(const CellTable& cell, std::int64_t batch, Arena* arena) {
    sums = arena->Allocate<float>(kItems * cell.second_stage.all.count * kLanes);
    x = arena->Allocate<float>(cell.square ? kItems * kLanes : 0);
    for (int s = 0; s < cell.states; ++s) state[s] = arena->Allocate<float>(kItems * kLanes);
    for (int i = 0; i < cell.params; ++i) {
      params[i] = arena->Allocate<float>(HasNeurons(cell, i) ? kItems * kLanes : 0);
    }
    samples = arena->Allocate<std::int32_t>(batch);
  }

  // True if parameter i has one value per neuron.
  static bool HasNeurons(const CellTable& cell, int i) {
    const Extent extent = cell.extents[i];
    return extent == Extent::kHidden || (cell.square && extent == Extent::kInput);
  }
};

struct BlockStep {
  const CellKernel& cell;
  const GroupWeights& weights;
  const float* const* params;
  const BlockBuffers& buffers;
  const BlockSample* samples;
  std::int64_t sample_count;

  struct Item {
    std::int64_t block;
    std::int32_t sample;
  };

  // Computes the new states. `group` has the products of the only sample; if there are several,
  // which needs float32 weights, it has those of any one of them.
  void Run(const GroupProducts& group) const {
    if (sample_count == 1) {
      RunSample(group);
    } else {
      RunSamples(group);
    }
  }

 private:
  // Computes the new states of one sample, several neighbouring blocks at once.
  void RunSample(const GroupProducts& group) const {
    const LaneBits* const lanes = samples->lanes;
    const bool floats = weights.w.type == NumberType::kFloat32;
    if (floats && samples->starts != nullptr && AllActive(lanes, 0, weights.blocks())) {
      return RunAllBlocks(group);
    }
    const int largest = floats ? 1 << FitNeighbours(group) : 1;
    Item items[BlockBuffers::kItems];
    int filled = 0;
    for (std::int64_t block = 0; block < weights.blocks();) {
      if (lanes[block] == 0) {
        ++block;
        continue;
      }
      int count = 1, log_count = 0;
      while (2 * count <= largest && AllActive(lanes, block, 2 * count)) {
        count *= 2;
        ++log_count;
      }
      if (filled + count > BlockBuffers::kItems) {
        Update(group, items, filled);
        filled = 0;
      }
      float* const sums = buffers.sums + filled * group.gates;
      if (floats) {
        AddBlocks(group, block, log_count, sums);
      } else {
        float* const start =
            samples->starts == nullptr ? sums : samples->starts + block * group.gates;
        group.AddTile(0, block, {1, 0}, {start, 0}, {sums, 0});
      }
      for (int i = 0; i < count; ++i) items[filled++] = {block++, 0};
    }
    if (filled > 0) Update(group, items, filled);
  }

  // Computes the new states of all blocks of one sample, whose sums overwrite the started ones.
  void RunAllBlocks(const GroupProducts& group) const {
    const std::int64_t blocks = weights.blocks();
    int log_count = FitNeighbours(group);
    for (std::int64_t block = 0; block < blocks; block += 1 << log_count) {
      while (block + (1 << log_count) > blocks) --log_count;
      AddBlocks(group, block, log_count, samples->starts + block * group.gates);
    }
    PointwiseArgs args = MakeArgs(group, blocks);
    args.sums = samples->starts;
    UpdateNeighbours(*samples, 0, &args);
  }

  // log2 of the largest number of neighbouring blocks whose sums fit in registers in all products.
  static int FitNeighbours(const GroupProducts& group) {
    int log_count = FitBlockRows(1, true);
    for (int p = 0; p < group.count; ++p) {
      if (group.operands[p] == GroupProducts::kX) continue;
      const int fit = FitBlockRows(group.products[p].places.count, false);
      log_count = fit < log_count ? fit : log_count;
    }
    return log_count;
  }

  // True if `count` blocks from `block` on exist and have active neurons.
  bool AllActive(const LaneBits* lanes, std::int64_t block, int count) const {
    if (block + count > weights.blocks()) return false;
    for (int i = 0; i < count; ++i) {
      if (lanes[block + i] == 0) return false;
    }
    return true;
  }

  // Computes the sums of 2^log_count neighbouring blocks of the only sample. `sums` may be the
  // array of its started sums.
  void AddBlocks(const GroupProducts& group, std::int64_t block, int log_count, float* sums) const {
    const int count = 1 << log_count;
    const float* const starts =
        samples->starts == nullptr ? nullptr : samples->starts + block * group.gates;
    for (int i = 0; i < count && group.others.count > 0 && sums != starts; ++i) {
      group.CopyOthers(starts + i * group.gates, sums + i * group.gates);
    }
    for (int p = 0; p < group.count; ++p) {
      const Product& product = group.products[p];
      // the products with x have the order of those computed in advance, and their panels
      const bool in_order = group.operands[p] == GroupProducts::kX;
      BlockRows tile;
      tile.a[0] = samples->operands[group.operands[p]];
      tile.to[0] = sums;
      tile.start[0] = p > 0 || starts == nullptr ? sums : starts;
      if (!in_order) {
        AddBlocksOfRow(product, block, log_count, tile);
        continue;
      }
      for (int i = 0; i < count; ++i) {
        AddRowsOfBlock(product, in_order, block + i, 0, tile);
        tile.to[0] += group.gates;
        tile.start[0] += group.gates;
      }
    }
  }

  // Computes the new states of several samples, which share the loaded weights.
  void RunSamples(const GroupProducts& group) const {
    Item items[BlockBuffers::kItems];
    int filled = 0;
    for (std::int64_t block = 0; block < weights.blocks(); ++block) {
      std::int64_t active = 0;
      for (std::int64_t i = 0; i < sample_count; ++i) {
        buffers.samples[active] = static_cast<std::int32_t>(i);
        active += samples[i].lanes[block] != 0;
      }
      for (std::int64_t first = 0; first < active;) {
        const std::int64_t left = active - first;
        const int log_rows = left == 1 ? 0 : left < 4 ? 1 : 2;
        const int rows = 1 << log_rows;
        if (filled + rows > BlockBuffers::kItems) {
          Update(group, items, filled);
          filled = 0;
        }
        float* const sums = buffers.sums + filled * group.gates;
        for (int i = 0; i < rows; ++i) items[filled++] = {block, buffers.samples[first + i]};
        AddRows(group, block, items + filled - rows, log_rows, sums);
        first += rows;
      }
    }
    if (filled > 0) Update(group, items, filled);
  }

  // Computes the sums of a block and 2^log_rows samples.
  void AddRows(const GroupProducts& group, std::int64_t block, const Item* items, int log_rows,
               float* sums) const {
    const int rows = 1 << log_rows;
    for (int i = 0; i < rows && group.others.count > 0; ++i) {
      group.CopyOthers(samples[items[i].sample].starts + block * group.gates,
                       sums + i * group.gates);
    }
    for (int p = 0; p < group.count; ++p) {
      const Product& product = group.products[p];
      const int operand = group.operands[p];
      const bool in_order = operand == GroupProducts::kX;
      const int fit = FitBlockRows(product.places.count, in_order),
                log = log_rows < fit ? log_rows : fit;
      for (int first = 0; first < rows; first += 1 << log) {
        BlockRows tile;
        for (int i = 0; i < 1 << log; ++i) {
          const BlockSample& sample = samples[items[first + i].sample];
          tile.a[i] = sample.operands[operand];
          tile.to[i] = sums + (first + i) * group.gates;
          tile.start[i] =
              p > 0 || sample.starts == nullptr ? tile.to[i] : sample.starts + block * group.gates;
        }
        AddRowsOfBlock(product, in_order, block, log, tile);
      }
    }
  }

  // Computes the new states of the items, whose sums are complete.
  void Update(const GroupProducts& group, const Item* items, int count) const {
    const BlockSample& first = samples[items[0].sample];
    if (sample_count == 1 && items[count - 1].block - items[0].block == count - 1) {
      PointwiseArgs args = MakeArgs(group, count);
      UpdateNeighbours(first, items[0].block * kLanes, &args);
      return;
    }
    for (int i = 0; i < count; ++i) {
      const BlockSample& sample = samples[items[i].sample];
      const std::int64_t from = items[i].block * kLanes, to = i * kLanes;
      for (int s = 0; s < cell.states; ++s) {
        Store(buffers.state[s] + to, Load(sample.state[s] + from));
      }
      if (cell.square) Store(buffers.x + to, Load(sample.x + from));
      for (int q = 0; q < cell.params; ++q) {
        if (BlockBuffers::HasNeurons(cell, q)) {
          Store(buffers.params[q] + to, Load(params[q] + from));
        }
      }
    }
    const float* item_params[kMaxParams];
    for (int q = 0; q < cell.params; ++q) {
      item_params[q] = BlockBuffers::HasNeurons(cell, q) ? buffers.params[q] : params[q];
    }
    PointwiseArgs args = MakeArgs(group, count);
    args.x = buffers.x;
    args.params = item_params;
    args.state = buffers.state;
    args.to = buffers.state;
    cell.update(args);
    for (int i = 0; i < count; ++i) {
      const BlockSample& sample = samples[items[i].sample];
      for (int s = 0; s < cell.states; ++s) {
        Store(sample.next[s] + items[i].block * kLanes, Load(buffers.state[s] + i * kLanes));
      }
    }
  }

  // Computes the new states of neighbouring blocks of a sample, from this neuron on.
  void UpdateNeighbours(const BlockSample& sample, std::int64_t neuron, PointwiseArgs* args) const {
    args->first = neuron;
    args->x = sample.x;
    args->params = params;
    args->state = sample.state;
    args->to = sample.next;
    cell.update(*args);
  }

  PointwiseArgs MakeArgs(const GroupProducts& group, std::int64_t count) const {
    PointwiseArgs args{};
    args.cell = &cell;
    args.count = count;
    args.sums = buffers.sums;
    args.gate_stride = kLanes;
    args.stride = group.gates;
    return args;
  }
};

}  // namespace edgernn::EDGERNN_ISA
