// SPDX-License-Identifier: Apache-2.0
// The file of a packed model, little-endian: a header, records of layers and tensors, cells that
// the library need not know, and the tensors' data. Each part starts at a multiple of 32 bytes,
// which the reader checks; runtime/packed.py, which writes the file, aligns data to 64 bytes.
//
// Tensors come in order of use: E (V, I) of a model of words; mean and std (I,) if the input is
// standardised; for each layer its weights, then the initial value of each state,
// (width,); W (O, H) and b (O,) of the head, if there is one.

#ifndef EDGERNN_PACKED_FILE_H_
#define EDGERNN_PACKED_FILE_H_

#include <cstddef>
#include <cstdint>

#include "common/tensor.h"
#include "edgernn.h"
#include "program/check_cell.h"

namespace edgernn {

constexpr std::uint32_t kPackedVersion = 3;
constexpr std::uint32_t kStandardises = 1;
constexpr std::uint32_t kHasHead = 2;

struct PackedHeader {
  char magic[8];  // EDGERNN and 0
  std::uint32_t version;
  std::uint32_t schema;    // that of the ops
  std::uint64_t bytes;     // of the whole file
  std::uint32_t checksum;  // CRC-32 of all that follows the header
  std::uint32_t flags;
  std::uint32_t input;       // I; of words too
  std::uint32_t vocabulary;  // 0: x is numbers
  std::uint32_t output;      // O
  std::uint32_t layers;
  std::uint32_t tensors;
  std::uint32_t unused[3];
};
static_assert(sizeof(PackedHeader) == 64);

struct PackedLayer {
  char name[60];          // see LayerName, and zeros
  std::uint32_t tensors;  // how many weights and states it has
  std::uint64_t cell;     // where in the file its cell is, or 0: the library knows it
  std::uint64_t unused[3];
};
static_assert(sizeof(PackedLayer) == 96);

// A cell. What these lists hold comes after it, in their order: first the whole numbers as int32,
// then the floats. See CellSource.
struct PackedCell {
  enum { kGates, kVectors, kLayout, kUpdate, kMid, kMap, kInts };
  enum { kUpdateNumbers, kMidNumbers, kMapNumbers, kNumbers };

  char name[60];  // and zeros
  std::uint32_t ints[kInts];
  std::uint32_t numbers[kNumbers];
};
static_assert(sizeof(PackedCell) == 96);

struct PackedTensor {
  std::uint32_t type;     // a NumberType
  std::uint32_t axes;     // 1 or 2
  std::uint32_t size[2];  // the second is 1 of one axis
  std::uint64_t data;     // where in the file
  std::uint64_t scales;   // of kInt8: where the floats of its rows are
};
static_assert(sizeof(PackedTensor) == 32);

// The status and message that a function of edgernn.h returns instead of EDGERNN_OK.
struct Failure {
  EdgernnStatus status;
  std::string message;
};

// Reads a file in memory. Tensors point into it. Every function throws Failure for an invalid file.
class PackedFile {
 public:
  PackedFile(const void* data, std::size_t bytes);

  const PackedHeader& header() const { return header_; }

  // The record of a layer, and the name in it.
  PackedLayer Layer(std::uint32_t layer) const;
  static std::string NameOf(const PackedLayer& layer);

  // The cell that a layer brings.
  CellSource Cell(const PackedLayer& layer) const;

  // The next tensor.
  Tensor NextTensor();

  // The next tensor, which has this shape and, if `type` says so, is floats.
  Tensor NextTensor(const char* what, const Shape& shape);

  void CheckAllRead() const;

 private:
  const char* At(std::uint64_t offset, std::uint64_t bytes) const;

  const char* data_;
  PackedHeader header_;
  std::uint32_t tensors_read_ = 0;
};

}  // namespace edgernn

#endif  // EDGERNN_PACKED_FILE_H_
