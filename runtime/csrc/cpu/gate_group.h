// SPDX-License-Identifier: Apache-2.0
// A group of gates that are computed together: their packed weights, and the loop over tiles that
// computes the pre-activations and passes each tile to the point-wise part.

#pragma once

#include "cpu/cell_params.h"
#include "cpu/gemm_sparse.h"
#include "kernel/cell_kernel.h"

namespace edgernn::EDGERNN_ISA {

// M, the size of m and of the gates marked kMid.
inline std::int64_t MidSize(const CellTable& cell, const LayerSizes& sizes) {
  return cell.mid_is_input ? sizes.input : sizes.hidden;
}

// The number of columns of W, for x_t and, if the cell reads it, x_{t-1}.
inline std::int64_t InputColumns(const CellTable& cell, const LayerSizes& sizes) {
  return sizes.input * (cell.reads_last ? 2 : 1);
}

// The number of columns of R, for h, or for Q h if R is a product.
inline std::int64_t RecurrentColumns(const LayerSizes& sizes) {
  return sizes.rank > 0 ? sizes.rank : sizes.hidden;
}

// The first row of a gate in the weight of `term` (W, R, C, V or b), or -1 if the gate lacks the
// term. `term` may have several bits, of which the gate needs one.
inline std::int64_t FirstRow(const CellTable& cell, const LayerSizes& sizes, unsigned term,
                             int gate) {
  if ((cell.terms[gate] & term) == 0) return -1;
  std::int64_t row = 0;
  for (int g = 0; g < gate; ++g) {
    if ((cell.terms[g] & term) == 0) continue;
    row += (cell.terms[g] & kMid) != 0 ? MidSize(cell, sizes) : sizes.hidden;
  }
  return row;
}

// The inputs of a step, with all columns. state: one row or (B, padded H) per state.
[[gnu::always_inline]] inline MatmulInputs MakeMatmulInputs(const CellTable& cell,
                                                            const LayerSizes& sizes, const float* x,
                                                            const float* const* state,
                                                            const float* mid) {
  MatmulInputs inputs{};
  inputs.x = x;
  inputs.h = state[0];
  inputs.c = state[cell.factor_states - 1];
  inputs.m = mid;
  inputs.x_end = sizes.input;
  inputs.h_end = sizes.hidden;
  inputs.c_end = sizes.hidden;
  inputs.m_end = MidSize(cell, sizes);
  return inputs;
}

// The quantized inputs of a group with int8 weights: `x_rows` rows of x, `rows` of the others.
struct QuantizedInputs {
  QuantizedRows x;
  QuantizedRows h;
  QuantizedRows c;
  QuantizedRows m;

  void Allocate(const CellTable& cell, const LayerSizes& sizes, std::int64_t rows,
                std::int64_t x_rows, Arena* arena) {
    x.Allocate(sizes, x_rows, InputColumns(cell, sizes), arena);
    h.Allocate(sizes, rows, RecurrentColumns(sizes), arena);
    c.Allocate(sizes, cell.factor_states > 1 ? rows : 0, sizes.hidden, arena);
    m.Allocate(sizes, cell.has_mid ? rows : 0, MidSize(cell, sizes), arena);
  }
};

// The packed weights of a group, whose gates have `size` rows each.
struct GroupWeights {
  const GateGroup* group;
  std::int64_t size;
  PackedMatrix w;
  float* b;  // (blocks, gates, lanes)
  PackedMatrix r;
  SparseColumns sparse;  // the nonzero columns of r
  PackedMatrix c;
  PackedMatrix v;

  // by_block: Pack each block of float32 weights but W on its own, for steps that compute some of
  // the blocks.
  void Allocate(const CellTable& cell, const GateGroup& of, std::int64_t rows,
                const LayerSizes& sizes, bool by_block, Arena* arena) {
    const std::int64_t padded = PadToLanes(rows);
    const bool apart = by_block && sizes.weights == NumberType::kFloat32;
    const auto largest = [apart](const GateList& places) {
      return apart ? 1 : LargestPanel(places.count);
    };
    group = &of;
    size = rows;
    w.Allocate(sizes, of.x.count, rows, InputColumns(cell, sizes), LargestPanel(of.x.count), arena);
    b = arena->Allocate<float>(padded * of.all.count);
    r.Allocate(sizes, of.h.count, rows, RecurrentColumns(sizes), largest(of.h), arena);
    sparse.Allocate(r, arena);
    c.Allocate(sizes, of.c.count, rows, sizes.hidden, largest(of.c), arena);
    v.Allocate(sizes, of.m.count, rows, MidSize(cell, sizes), largest(of.m), arena);
  }

  // drops_zeros: Pack only the nonzero columns of a block-sparse R.
  [[gnu::noinline, gnu::cold]] void Pack(const CellTable& cell, const LayerSizes& sizes,
                                         const Weights& from, bool drops_zeros = true) const {
    const auto find = [&](unsigned term, const GateList& places, std::int64_t* first) {
      for (int i = 0; i < places.count; ++i) {
        first[i] = FirstRow(cell, sizes, term, group->all.at[places.at[i]]);
      }
    };
    const auto pack = [&](unsigned term, const GateList& places, const Values& source,
                          const PackedMatrix& to, std::int64_t largest) {
      std::int64_t first[kMaxGates];
      find(term, places, first);
      to.Pack(source, first, largest);
    };
    pack(kX, group->x, from.w, w, w.largest_panel);
    std::int64_t first[kMaxGates];
    find(sizes.bias_terms, {group->all.count, {0, 1, 2, 3, 4, 5, 6, 7}}, first);
    PackGates(from.b, first, group->all.count, size, 1, 1, b);
    pack(kH, group->h, from.r, r, 1);
    sparse.DropZeroColumns(r, drops_zeros);
    if (!sparse.stats->sparse) pack(kH, group->h, from.r, r, r.largest_panel);
    pack(kC, group->c, from.c, c, c.largest_panel);
    pack(kM, group->m, from.v, v, v.largest_panel);
  }

  std::int64_t blocks() const { return Blocks(size); }

  // The number of floats in one row of sums.
  std::int64_t Floats() const { return PadToLanes(size) * group->all.count; }

  // The multiply-adds of one step of one sample: in Project, and in total.
  std::int64_t InputMacs(const CellTable& cell, const LayerSizes& sizes) const {
    return size * InputColumns(cell, sizes) * group->x.count;
  }

  std::int64_t Macs(const CellTable& cell, const LayerSizes& sizes) const {
    return InputMacs(cell, sizes) + sparse.stats->macs +
           size * (sizes.hidden * group->c.count + MidSize(cell, sizes) * group->m.count);
  }

  // The multiply-adds of the blocks with bits in `lanes`, with or without the products with x.
  std::int64_t BlockMacs(const CellTable& cell, const LayerSizes& sizes, const LaneBits* lanes,
                         bool with_input) const {
    std::int64_t rows = 0, macs = 0;
    for (std::int64_t block = 0; block < blocks(); ++block) {
      if (lanes[block] == 0) continue;
      const std::int64_t left = size - block * kLanes, count = left < kLanes ? left : kLanes;
      rows += count;
      if (sparse.stats->sparse) macs += count * group->h.count * sparse.Count(block);
    }
    if (!sparse.stats->sparse) macs = rows * RecurrentColumns(sizes) * group->h.count;
    if (with_input) macs += rows * InputColumns(cell, sizes) * group->x.count;
    return macs + rows * (sizes.hidden * group->c.count + MidSize(cell, sizes) * group->m.count);
  }

  // Sets *product to that of the weights with the first `columns` of a (rows, stride), which is
  // quantized first if the weights are int8. `started` is the bit set of gates that already have
  // sums; the gates of the product are added to it. The product is written in place, not copied: a
  // vector load of members that were just stored one by one would stall.
  void MakeProduct(const GateList& places, const PackedMatrix& weights, const float* a,
                   std::int64_t rows, std::int64_t stride, std::int64_t columns,
                   const QuantizedRows& quantized, unsigned* started, Product* product) const {
    SetWeights(places, weights, started, product);
    product->SetInputs(a, rows, stride, columns, quantized);
  }

  // MakeProduct without the inputs.
  void SetWeights(const GateList& places, const PackedMatrix& weights, unsigned* started,
                  Product* product) const {
    product->depth = weights.depth;
    product->w = weights.w;
    product->places = places;
    product->gates = group->all.count;
    product->blocks = blocks();
    product->b = b;
    product->from_bias = 0;
    product->largest_panel = weights.largest_panel;
    product->type = weights.type;
    product->dots = weights.dots;
    product->scales = weights.scales;
    for (int i = 0; i < places.count; ++i) {
      const unsigned gate = 1u << places.at[i];
      if ((*started & gate) == 0) product->from_bias |= 1u << i;
      *started |= gate;
    }
  }

  // Starts the sums of the gates with x: bias and W x, from the first `columns` of x (rows, columns
  // of W).
  void Project(const float* x, std::int64_t rows, std::int64_t columns,
               const QuantizedInputs& quantized, float* sums) const {
    if (group->x.count == 0) return;
    unsigned started = 0;
    Product product;
    MakeProduct(group->x, w, x, rows, w.depth, columns, quantized.x, &started, &product);
    StartSums(product, rows, sums);
  }
};

// The products of a group at one step, which are added to its sums tile by tile.
struct GroupProducts {
  enum Operand { kX, kH, kC, kM, kOperands };

  Product products[kOperands];
  Operand operands[kOperands];
  int count = 0;
  int max_gates = 0;
  const SparseColumns* sparse = nullptr;  // those of a sparse R
  Product sparse_product;                 // only if R is sparse
  // gates that already have sums and that the first product does not add to
  GateList others;
  std::int64_t gates;   // distance from block to block of the sums
  std::int64_t stride;  // distance from row to row of the sums

  // All terms but x, or all terms if `with_input`. They have no inputs before Begin.
  [[gnu::always_inline]] GroupProducts(const GroupWeights& weights, bool with_input)
      : gates(weights.group->all.count * kLanes), stride(weights.Floats()) {
    const GateGroup& group = *weights.group;
    // bit sets of the gates that have sums: so far, and before the loop over tiles
    unsigned started = 0;
    for (int i = 0; i < group.x.count && !with_input; ++i) started |= 1u << group.x.at[i];
    unsigned ready = started;
    const auto add = [&](Operand operand, const GateList& places, const PackedMatrix& w) {
      if (places.count == 0) return;
      max_gates = places.count > max_gates ? places.count : max_gates;
      operands[count] = operand;
      weights.SetWeights(places, w, &started, &products[count++]);
    };
    if (with_input) add(kX, group.x, weights.w);
    if (weights.sparse.stats->sparse) {
      sparse = &weights.sparse;
      weights.SetWeights(group.h, weights.r, &started, &sparse_product);
      ready = started;
    } else {
      add(kH, group.h, weights.r);
    }
    add(kC, group.c, weights.c);
    add(kM, group.m, weights.v);
    for (int i = 0; count > 0 && i < products[0].places.count; ++i) {
      ready &= ~(1u << products[0].places.at[i]);
    }
    others.count = 0;
    for (int g = 0; g < group.all.count; ++g) {
      if ((ready >> g & 1) != 0) others.at[others.count++] = g;
    }
  }

  // Sets the inputs of `rows` samples. A product with a sparse R is added to `sums` at once, for
  // all blocks or those with bits in `lanes`: it is not tiled, as each block has its own list of
  // columns.
  [[gnu::always_inline]] void Begin(const MatmulInputs& from, std::int64_t rows,
                                    const QuantizedInputs& quantized, const LaneBits* lanes,
                                    float* sums) {
    const auto set = [&](Operand operand, Product* product) {
      const std::int64_t wide = PadToLanes(product->depth);
      switch (operand) {
        case kX:
          return product->SetInputs(from.x, rows, wide, product->depth, quantized.x);
        case kH:
          return product->SetInputs(from.h, rows, wide, from.h_end, quantized.h);
        case kC:
          return product->SetInputs(from.c, rows, wide, from.c_end, quantized.c);
        default:
          return product->SetInputs(from.m, rows, wide, from.m_end, quantized.m);
      }
    };
    if (sparse != nullptr) {
      set(kH, &sparse_product);
      AddSparse(*sparse, sparse_product, rows, lanes, sums);
    }
    for (int p = 0; p < count; ++p) set(operands[p], &products[p]);
  }

  // Copies the sums of `others` of one block.
  [[gnu::always_inline]] void CopyOthers(const float* from, float* to) const {
    for (int i = 0; i < others.count; ++i) {
      Store(to + others.at[i] * kLanes, Load(from + others.at[i] * kLanes));
    }
  }

  // Computes the sums of a tile in `to` from those in `start`, which may be the same.
  [[gnu::always_inline]] void AddTile(std::int64_t row, std::int64_t block, TileShape shape,
                                      Sums start, Sums to) const {
    if (count > 0) AddProduct(products[0], row, block, shape, start, to);
    const std::int64_t copied = start.at != to.at && others.count > 0 ? shape.rows : 0;
    for (std::int64_t r = 0; r < copied; ++r) {
      const std::int64_t end = gates << shape.blocks;
      for (std::int64_t at = 0; at < end; at += gates) {
        CopyOthers(start.at + r * start.stride + at, to.at + r * to.stride + at);
      }
    }
    for (int i = 1; i < count; ++i) AddProduct(products[i], row, block, shape, to, to);
  }
};

// Adds the products to the sums of `rows` samples and the first `blocks`, tile by tile. Calls
// finish(row, rows, block, blocks, sums) for each tile, or once for all if cell.untiled. The sums
// are valid until finish returns.
template <class Finish>
[[gnu::always_inline]] inline void RunGroup(const CellFunctions& cell, const MatmulInputs& from,
                                            std::int64_t rows, std::int64_t blocks,
                                            const QuantizedInputs& quantized, float* sums,
                                            const Finish& finish, GroupProducts* products) {
  products->Begin(from, rows, quantized, nullptr, sums);
  const GroupProducts& group = *products;
  const std::int64_t stride = group.stride;
  if (group.count == 0) {
    finish(std::int64_t{0}, rows, std::int64_t{0}, blocks, Sums{sums, stride});
    return;
  }
  // small enough for the L1 cache
  float tile[kTileSums * kMaxGates * kLanes];
  ForTiles(FitTile(group.max_gates, rows, group.products[0].type), rows, blocks,
           [&](std::int64_t row, std::int64_t block, TileShape shape) {
             const std::int64_t tile_blocks = std::int64_t{1} << shape.blocks;
             const Sums start{sums + row * stride + block * group.gates, stride};
             const Sums to = cell.untiled ? start : Sums{tile, tile_blocks * group.gates};
             group.AddTile(row, block, shape, start, to);
             if (!cell.untiled) {
               finish(row, std::int64_t{shape.rows}, block, tile_blocks, to);
             }
           });
  if (cell.untiled) finish(std::int64_t{0}, rows, std::int64_t{0}, blocks, Sums{sums, stride});
}

}  // namespace edgernn::EDGERNN_ISA
