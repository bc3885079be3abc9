// SPDX-License-Identifier: Apache-2.0
// The packed weights of a linear map from I to H numbers.

#pragma once

#include "cpu/gemm.h"

namespace edgernn::EDGERNN_ISA {

// The packed weights begin with this list of their parts.
struct PackedLinear {
  PackedMatrix matrix;
  float* b;         // (padded H,)
  Product product;  // lacks its rows
  std::uint64_t bytes;

  // Lays out the weights in memory, and stores the list; without memory, only counts bytes.
  PackedLinear(const LayerSizes& sizes, void* base) {
    Arena arena(base);
    PackedLinear* const list = arena.Allocate<PackedLinear>(1);
    matrix.Allocate(sizes, 1, sizes.hidden, sizes.input, LargestPanel(1), &arena);
    b = arena.Allocate<float>(PadToLanes(sizes.hidden));
    product = OneGate(sizes.input, nullptr, b, Blocks(sizes.hidden));
    product.w = matrix.w;
    product.largest_panel = matrix.largest_panel;
    product.type = matrix.type;
    product.dots = matrix.dots;
    product.scales = matrix.scales;
    bytes = arena.used();
    if (list != nullptr) *list = *this;
  }

  static std::uint64_t Bytes(const LayerSizes& sizes) { return PackedLinear(sizes, nullptr).bytes; }

  static void Pack(const LayerSizes& sizes, const Values& w, const Values& b, void* packed) {
    const PackedLinear to(sizes, packed);
    const std::int64_t first = 0;
    to.matrix.Pack(w, &first, to.matrix.largest_panel);
    PackMatrix(b, sizes.hidden, 1, 1, to.b);
  }

  // The scratch of a product with `rows` rows.
  static std::uint64_t ScratchBytes(const LayerSizes& sizes, std::int64_t rows) {
    Arena arena(nullptr);
    QuantizedRows().Allocate(sizes, rows, sizes.input, &arena);
    return arena.used();
  }
};

}  // namespace edgernn::EDGERNN_ISA
