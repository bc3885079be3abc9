// SPDX-License-Identifier: Apache-2.0
// The file of a packed model: little-endian; a header, records of layers and tensors, and what the
// tensors hold, each part at a multiple of 32 bytes. Written by runtime/packed.py.
//
// The tensors are in the order in which they are used: E (V, I) of a model of words; mean and std
// (I,) if the input is standardised; of each layer its op's weights, then what each of its states
// starts from, (width,); W (O, H) and b (O,) of the head, if there is one.

#ifndef EDGERNN_PACKED_H_
#define EDGERNN_PACKED_H_

#include <cstddef>
#include <cstdint>

#include "edgernn.h"
#include "tensor.h"

namespace edgernn {

constexpr std::uint32_t kPackedVersion = 1;
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
  char op[64];  // its name, and zeros
};

struct PackedTensor {
  std::uint32_t type;     // a NumberType
  std::uint32_t axes;     // 1 or 2
  std::uint32_t size[2];  // the second is 1 of one axis
  std::uint64_t data;     // where in the file
  std::uint64_t scales;   // of kInt8: where the floats of its rows are
};
static_assert(sizeof(PackedTensor) == 32);

// What a function of edgernn.h answers instead of EDGERNN_OK.
struct Failure {
  EdgernnStatus status;
  std::string message;
};

// Reads a file in memory. What it hands out lies within the file; everything throws Failure where
// the file is not as it should be.
class PackedFile {
 public:
  PackedFile(const void* data, std::size_t bytes);

  const PackedHeader& header() const { return header_; }

  // The name of a layer's op.
  std::string Op(std::uint32_t layer) const;

  // The next tensor.
  Tensor Take();

  // The next tensor, which has this shape and, if `type` says so, is floats.
  Tensor Take(const char* what, const Shape& shape);

  void CheckAllTaken() const;

 private:
  const char* At(std::uint64_t offset, std::uint64_t bytes) const;

  const char* data_;
  PackedHeader header_;
  std::uint32_t taken_ = 0;
};

}  // namespace edgernn

#endif  // EDGERNN_PACKED_H_
