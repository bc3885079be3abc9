// SPDX-License-Identifier: Apache-2.0
// Products of packed float32 weights with vectors of which only some elements are not zero.

#pragma once

#include "cpu/gate_group.h"
#include "cpu/masked_lanes.h"

namespace edgernn::EDGERNN_ISA {

// Vectors, (rows, stride), with lists of their nonzero elements.
struct Changes {
  std::int64_t columns;
  std::int64_t stride;
  float* values;         // (rows, stride), zero but for the listed elements
  std::int32_t* lists;   // (rows, columns + lanes), ascending indices
  std::int64_t* counts;  // (rows,)
  bool* jumps;           // (rows,): a value changed by more than the limit

  void Allocate(std::int64_t rows, std::int64_t count, Arena* arena) {
    columns = count;
    stride = PadToLanes(count);
    values = arena->Allocate<float>(rows * stride);
    lists = arena->Allocate<std::int32_t>(rows * ListStride());
    counts = arena->Allocate<std::int64_t>(rows);
    jumps = arena->Allocate<bool>(rows);
  }

  std::int64_t ListStride() const { return columns + kLanes; }

  // Nearly all elements: the whole matrix is read, for several rows at once.
  bool IsWide(std::int64_t row) const { return 8 * counts[row] > 7 * columns; }

  // The number of columns that the product with a row reads.
  std::int64_t Read(std::int64_t row) const { return IsWide(row) ? columns : counts[row]; }

  // Sets a row to the changes of the values that are more than `threshold` away from `sent`, and
  // updates these.
  [[gnu::noinline]] void Find(std::int64_t row, const float* value, float threshold, float limit,
                              float* sent) const {
    float* const change = values + row * stride;
    std::int32_t* const list = lists + row * ListStride();
    std::int64_t count = 0, k = 0;
    LaneBits large = 0;
    // records the changes of the lanes `valid` from k on, and returns the new values of `sent`
    const auto record = [&](Vec now, Vec last, LaneBits valid) {
      const Vec moved = now - last, distance = {moved.raw < 0.0f ? -moved.raw : moved.raw};
      const auto is_sent = distance.raw > threshold;
      const LaneBits bits = valid & LanesAbove(distance, Fill(threshold));
      Store(change + k, {is_sent ? moved.raw : Zero().raw});
      large |= bits & LanesAbove(distance, Fill(limit));
      count += AppendLanes(bits, static_cast<std::int32_t>(k), list + count);
      return Vec{is_sent ? now.raw : last.raw};
    };
    for (; k + kLanes <= columns; k += kLanes) {
      Store(sent + k, record(Load(value + k), Load(sent + k), kAllLanes));
    }
    if (const std::int64_t left = columns - k; left > 0) {
      const Lanes part(left);
      const LaneBits valid = kAllLanes >> (kLanes - left);
      part.Store(sent + k, record(part.Load(value + k), part.Load(sent + k), valid));
    }
    counts[row] = count;
    jumps[row] = large != 0;
  }
};

// Adds the product of the listed columns of the weights with one row to the sums of NB blocks.
template <int kCount, int NB>
[[gnu::noinline]] void AddColumnsTile(const Product& product, const std::int32_t* list,
                                      std::int64_t count, std::int64_t block, float* to) {
  const Panel panel(LargestPanel(kCount), block, product.blocks);
  const float* const w =
      static_cast<const float*>(product.w) + PackedOffset(panel, block, 0, kCount, product.depth);
  const std::int64_t step = panel.size * kCount * kLanes;
  const std::int64_t vectors = panel.size * kCount * product.depth;
  Vec p[NB][kCount] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t k = list[i];
    const float* const column = w + k * step;
    const float value = product.a[k];
#pragma GCC unroll 16
    for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
      for (int g = 0; g < kCount; ++g) {
        p[j][g] = p[j][g] + Load(column + WeightIndex<kCount>(j, g, vectors) * kLanes) * value;
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < NB; ++j) {
#pragma GCC unroll 16
    for (int g = 0; g < kCount; ++g) {
      float* const sum = to + (j * product.gates + product.places.at[g]) * kLanes;
      Store(sum, Load(sum) + p[j][g]);
    }
  }
}

using ColumnsTile = void (*)(const Product&, const std::int32_t*, std::int64_t, std::int64_t,
                             float*);

template <int kCount, int NB>
constexpr ColumnsTile ChooseColumnsTile() {
  if constexpr (kCount * NB > kRowSums) {
    return nullptr;
  } else {
    return &AddColumnsTile<kCount, NB>;
  }
}

// [gates - 1][log2 of blocks]
constexpr ColumnsTile kColumnsTiles[kMaxTerm][kTileSizes] = {
    {ChooseColumnsTile<1, 1>(), ChooseColumnsTile<1, 2>(), ChooseColumnsTile<1, 4>()},
    {ChooseColumnsTile<2, 1>(), ChooseColumnsTile<2, 2>(), ChooseColumnsTile<2, 4>()},
    {ChooseColumnsTile<3, 1>(), ChooseColumnsTile<3, 2>(), ChooseColumnsTile<3, 4>()},
    {ChooseColumnsTile<4, 1>(), ChooseColumnsTile<4, 2>(), ChooseColumnsTile<4, 4>()}};

// The products of one term of a group with changes, which are added to kept sums. All of them start
// from zero, and zeros change no sum, so a row has the same bits with any way of computing it.
struct ChangeProduct {
  const GroupWeights& weights;
  const GateList& places;
  const Changes& changes;
  Product product;

  // zeros: (floats of the group,)
  [[gnu::noinline]] ChangeProduct(const GroupWeights& weights, const GateList& places,
                                  const PackedMatrix& matrix, const Changes& changes,
                                  const float* zeros)
      : weights(weights), places(places), changes(changes) {
    unsigned started = 0;
    weights.MakeProduct(places, matrix, changes.values, 1, changes.stride, changes.columns, {},
                        &started, &product);
    product.b = const_cast<float*>(zeros);
  }

  // Computes the products of the rows of which nearly all elements changed, in `sums` (rows,
  // floats).
  [[gnu::noinline]] void StartWide(std::int64_t rows, float* sums) {
    for (std::int64_t row = 0; places.count > 0 && row < rows; ++row) {
      const std::int64_t first = row;
      while (row < rows && changes.IsWide(row)) ++row;
      if (row == first) continue;
      product.a = changes.values + first * changes.stride;
      StartSums(product, row - first, sums + first * weights.Floats());
    }
  }

  // Adds the product of a row to kept sums, from `sums` if it was computed there.
  [[gnu::noinline]] void Add(std::int64_t row, const float* sums, float* kept) {
    const std::int64_t gates = product.gates * kLanes;
    if (places.count == 0 || changes.counts[row] == 0) return;
    if (changes.IsWide(row)) {
      for (std::int64_t at = 0; at < weights.Floats(); at += gates) {
        for (int i = 0; i < places.count; ++i) {
          float* const to = kept + at + places.at[i] * kLanes;
          Store(to, Load(to) + Load(sums + at + places.at[i] * kLanes));
        }
      }
      return;
    }
    product.a = changes.values + row * changes.stride;
    ForTiles(FitTile(places.count, 1), 1, product.blocks,
             [&](std::int64_t, std::int64_t block, TileShape shape) {
               kColumnsTiles[places.count - 1][shape.blocks](
                   product, changes.lists + row * changes.ListStride(), changes.counts[row], block,
                   kept + block * gates);
             });
  }
};

}  // namespace edgernn::EDGERNN_ISA
