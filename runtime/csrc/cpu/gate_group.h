// SPDX-License-Identifier: Apache-2.0
// The gates of a cell that are computed together: their packed weights, and the loop over tiles
// that sums them and passes each tile on.

#ifndef EDGERNN_CPU_GATE_GROUP_H_
#define EDGERNN_CPU_GATE_GROUP_H_

#include "common/cell_kernel.h"
#include "cpu/cell_params.h"
#include "cpu/gemm_sparse.h"

namespace edgernn::EDGERNN_ISA {

// M: the size of m and of the gates marked kMid.
inline std::int64_t MidSize(const CellTable& cell, const LayerSizes& sizes) {
  return cell.mid_is_input ? sizes.input : sizes.hidden;
}

// The columns of W: for x_t and, if the cell reads it, for x_{t-1}.
inline std::int64_t InputColumns(const CellTable& cell, const LayerSizes& sizes) {
  return sizes.input * (cell.reads_last ? 2 : 1);
}

// The columns of R: for h, or for Q h if R is a product.
inline std::int64_t RecurrentColumns(const LayerSizes& sizes) {
  return sizes.rank > 0 ? sizes.rank : sizes.hidden;
}

// The first row of a gate in W (R, C, V, b); -1 where it has none. Any bit of `term` counts.
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

// The factors of a step, of which all columns are read. state: by state, one row or (B, padded H).
[[gnu::always_inline]] inline Factors MakeFactors(const CellTable& cell, const LayerSizes& sizes,
                                                  const float* x, const float* const* state,
                                                  const float* mid) {
  Factors factors{};
  factors.x = x;
  factors.h = state[0];
  factors.c = state[cell.factor_states - 1];
  factors.m = mid;
  factors.x_end = sizes.input;
  factors.h_end = sizes.hidden;
  factors.c_end = sizes.hidden;
  factors.m_end = MidSize(cell, sizes);
  return factors;
}

// What a group multiplies with bytes, as whole numbers: `rows` samples, and of x `x_rows`.
struct QuantizedFactors {
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

// Packed blocks of the weights of a group. Its gates have `size` rows each.
struct GroupWeights {
  const GateGroup* group;
  std::int64_t size;
  PackedMatrix w;
  float* b;  // (blocks, gates, lanes)
  PackedMatrix r;
  SparseColumns sparse;  // of r
  PackedMatrix c;
  PackedMatrix v;

  void Allocate(const CellTable& cell, const GateGroup& of, std::int64_t rows,
                const LayerSizes& sizes, Arena* arena) {
    const std::int64_t padded = PadToLanes(rows);
    group = &of;
    size = rows;
    w.Allocate(sizes, of.x.count, rows, InputColumns(cell, sizes), arena);
    b = arena->Allocate<float>(padded * of.all.count);
    r.Allocate(sizes, of.h.count, rows, RecurrentColumns(sizes), arena);
    sparse.Allocate(r, arena);
    c.Allocate(sizes, of.c.count, rows, sizes.hidden, arena);
    v.Allocate(sizes, of.m.count, rows, MidSize(cell, sizes), arena);
  }

  [[gnu::noinline, gnu::cold]] void Pack(const CellTable& cell, const LayerSizes& sizes,
                                         const Weights& from) const {
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
    const auto panels = [](const GateList& places) { return LargestPanel(places.count); };
    pack(kX, group->x, from.w, w, panels(group->x));
    std::int64_t first[kMaxGates];
    find(sizes.bias_terms, {group->all.count, {0, 1, 2, 3, 4, 5, 6, 7}}, first);
    PackGates(from.b, first, group->all.count, size, 1, 1, b);
    pack(kH, group->h, from.r, r, 1);
    sparse.LeaveOutZeros(r);
    if (!sparse.kind->sparse) pack(kH, group->h, from.r, r, panels(group->h));
    pack(kC, group->c, from.c, c, panels(group->c));
    pack(kM, group->m, from.v, v, panels(group->m));
  }

  std::int64_t blocks() const { return Blocks(size); }

  // Of one row's sums.
  std::int64_t Floats() const { return PadToLanes(size) * group->all.count; }

  // Of a step of one sample: what Project multiplies, and all.
  std::int64_t InputMacs(const CellTable& cell, const LayerSizes& sizes) const {
    return size * InputColumns(cell, sizes) * group->x.count;
  }

  std::int64_t Macs(const CellTable& cell, const LayerSizes& sizes) const {
    return InputMacs(cell, sizes) + sparse.kind->macs +
           size * (sizes.hidden * group->c.count + MidSize(cell, sizes) * group->m.count);
  }

  // `begun`: the gates, by bits, that have sums; those of the product are added. Of a factor a
  // (rows, stride) the first `columns` are read, by way of `quantized` where the weights are int8.
  Product Make(const GateList& places, const PackedMatrix& weights, const float* a,
               std::int64_t rows, std::int64_t stride, std::int64_t columns,
               const QuantizedRows& quantized, unsigned* begun) const {
    if (weights.type == NumberType::kInt8) quantized.Read(a, stride, rows, columns, weights.depth);
    Product product{};
    product.a = a;
    product.stride = stride;
    product.columns = columns;
    product.depth = weights.depth;
    product.w = weights.w;
    product.places = places;
    product.gates = group->all.count;
    product.blocks = blocks();
    product.b = b;
    product.type = weights.type;
    product.dots = weights.dots;
    product.scales = weights.scales;
    product.quantized = quantized;
    for (int i = 0; i < places.count; ++i) {
      const unsigned gate = 1u << places.at[i];
      if ((*begun & gate) == 0) product.fresh |= 1u << i;
      *begun |= gate;
    }
    return product;
  }

  // The sums of the gates with x, of `rows` samples x (rows, columns of W), of which the first ones
  // are read.
  void Project(const float* x, std::int64_t rows, std::int64_t columns,
               const QuantizedFactors& quantized, float* sums) const {
    if (group->x.count == 0) return;
    unsigned begun = 0;
    StartSums(Make(group->x, w, x, rows, w.depth, columns, quantized.x, &begun), rows, sums);
  }
};

// Completes the sums of the first `blocks` with all that is not x, tile by tile, and calls
// finish(row, rows, block, blocks, sums) for each, or where the cell takes whole rows once for all;
// what it is given lasts until it returns. The factors are of `rows` samples.
template <class Finish>
[[gnu::always_inline]] inline void RunGroup(const CellFunctions& cell, const GroupWeights& weights,
                                            const Factors& from, std::int64_t rows,
                                            std::int64_t blocks, const QuantizedFactors& quantized,
                                            float* sums, const Finish& finish) {
  const GateGroup& group = *weights.group;
  const std::int64_t gates = group.all.count * kLanes, stride = weights.Floats();
  Product products[3];
  int count = 0, most = 0;
  // the gates, by bits, that have sums: so far, and before the tiles
  unsigned begun = 0;
  for (int i = 0; i < group.x.count; ++i) begun |= 1u << group.x.at[i];
  unsigned ready = begun;
  const auto add = [&](const GateList& places, const PackedMatrix& w, const float* a,
                       std::int64_t columns, const QuantizedRows& as) {
    if (places.count == 0) return;
    most = places.count > most ? places.count : most;
    products[count++] = weights.Make(places, w, a, rows, PadToLanes(w.depth), columns, as, &begun);
  };
  add(group.h, weights.r, from.h, from.h_end, quantized.h);
  if (count > 0 && weights.sparse.kind->sparse) {
    // ahead of the tiles, as its blocks have different columns
    AddSparse(weights.sparse, products[--count], rows, sums);
    most = 0;
    ready = begun;
  }
  add(group.c, weights.c, from.c, from.c_end, quantized.c);
  add(group.m, weights.v, from.m, from.m_end, quantized.m);
  if (count == 0) {
    finish(std::int64_t{0}, rows, std::int64_t{0}, blocks, Sums{sums, stride});
    return;
  }
  // those that the first product leaves out
  GateList others{};
  for (int i = 0; i < products[0].places.count; ++i) ready &= ~(1u << products[0].places.at[i]);
  for (int g = 0; g < group.all.count && !cell.whole_rows; ++g) {
    if ((ready >> g & 1) != 0) others.at[others.count++] = g;
  }
  // sums that change stay in the first-level cache
  float tile[kTileSums * kMaxGates * kLanes];
  ForTiles(FitTile(most, rows), rows, blocks,
           [&](std::int64_t row, std::int64_t block, TileShape shape) {
             const std::int64_t tall = std::int64_t{1} << shape.rows;
             const std::int64_t wide = std::int64_t{1} << shape.blocks;
             const Sums start{sums + row * stride + block * gates, stride};
             const Sums to = cell.whole_rows ? start : Sums{tile, wide * gates};
             AddProduct(products[0], row, block, shape, start, to);
             for (int i = 0; i < others.count; ++i) {
               for (std::int64_t r = 0; r < tall; ++r) {
                 for (std::int64_t at = others.at[i] * kLanes; at < to.stride; at += gates) {
                   Store(to.at + r * to.stride + at, Load(start.at + r * stride + at));
                 }
               }
             }
             for (int i = 1; i < count; ++i) AddProduct(products[i], row, block, shape, to, to);
             if (!cell.whole_rows) finish(row, tall, block, wide, to);
           });
  if (cell.whole_rows) finish(std::int64_t{0}, rows, std::int64_t{0}, blocks, Sums{sums, stride});
}

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_CPU_GATE_GROUP_H_
