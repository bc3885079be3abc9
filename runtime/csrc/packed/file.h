// SPDX-License-Identifier: Apache-2.0
// The format of a packed model, little-endian: a header, records of layers and tensors, cells that
// are defined in the file, and the data of the tensors. Each part starts at a multiple of 32 bytes,
// which the reader checks. runtime/packed.py writes the file and aligns data to 64 bytes.
//
// Tensors are in order of use: E (V, I) of a model of words; those of a front end, which are its
// settings (4,), see LayerGraph::AddFrontend, its window (window_size,), the weights of its filters
// (n,) and the first frequency and the number of weights of each (bands, 2), or all of them as a
// matrix (bands, N/2 + 1), for pcen alpha, delta and r (bands,), and the initial value of each of
// its states; mean and std (I,) if the input is standardised; the weights of each layer, followed
// by the initial value (width,) of each of its states, and by the weights of the block around it,
// if there are blocks; W (O, H) and b (O,) of the head, if there is one. The weights of a block are
// W (H, I) and b (H,) of its encoder, if its input has a size I other than H; scale and shift (H,)
// of its normalisation; W (H, H) and b (H,) of its linear map; and the same of its gate, if it has
// one.
//
// A file without blocks has version 4, so that libraries without blocks read it.
//
// A file with a step graph has version 6, the flag kStepGraph and a PackedGraph behind the header.
// Its tensors are those that the values and steps refer to by their index. The values, GraphValue
// each, and the steps, int32, follow the records of the tensors; graph/graph.h has their meaning.
//
// The names of the outputs, if there are any, are the last part of the file. A saved state does not
// depend on them, so it fits the file with and without names.

#pragma once

#include <cstddef>
#include <cstdint>

#include "edgernn.h"
#include "graph/graph.h"
#include "op/tensor.h"
#include "program/check_cell.h"

namespace edgernn {

constexpr std::uint32_t kGraphVersion = 6;
constexpr std::uint32_t kVersionWithBlocks = 5;
constexpr std::uint32_t kVersionWithoutBlocks = 4;
constexpr std::uint32_t kStandardises = 1;
constexpr std::uint32_t kHasHead = 2;
constexpr std::uint32_t kLinearBlocks = 4;
constexpr std::uint32_t kGatedBlocks = 8;
constexpr std::uint32_t kStepGraph = 16;

// The block around each layer.
enum class BlockKind { kNone, kLinear, kGated };

struct PackedHeader {
  char magic[8];  // "EDGERNN"
  std::uint32_t version;
  std::uint32_t schema;    // kSchemaVersion
  std::uint64_t bytes;     // size of the whole file
  std::uint32_t checksum;  // CRC-32 of the bytes after the header
  std::uint32_t flags;
  std::uint32_t input;       // I; for words, the size of their embedding
  std::uint32_t vocabulary;  // 0 for a model of numbers
  std::uint32_t output;      // O
  std::uint32_t layers;
  std::uint32_t tensors;
  std::uint32_t
      hop;  // samples of a step that a front end reads, 0 without one; `input` is its features
  std::uint32_t sample_rate;  // rate of the audio in Hz; 0 if it is not known
  std::uint32_t names;        // offset of the names, see ReadNames; 0 without names
};
static_assert(sizeof(PackedHeader) == 64);

// The sizes of a step graph.
struct PackedGraph {
  std::uint32_t values;
  std::uint32_t states;         // number of values that are states
  std::uint32_t steps;          // number of steps
  std::uint32_t ints;           // of all steps
  std::uint32_t arena;          // floats of a stream
  std::uint32_t updates, macs;  // of a step, of what cannot skip; added where others skip
  std::uint32_t unused;
};
static_assert(sizeof(PackedGraph) == 32);

struct PackedLayer {
  char name[60];          // see LayerName, padded with zeros
  std::uint32_t tensors;  // number of weights, and of states unless the file has a step graph
  std::uint64_t cell;     // offset of its PackedCell, or 0 for a cell of the library
  std::uint64_t group_size;
  std::uint64_t unused[2];
};
static_assert(sizeof(PackedLayer) == 96);

// A cell that is defined in the file, see CellSource. The record has the lengths of its lists,
// whose elements follow it: first all lists of int32, then all lists of floats.
struct PackedCell {
  enum { kGates, kVectors, kLayout, kUpdate, kMid, kMap, kInts };
  enum { kUpdateNumbers, kMidNumbers, kMapNumbers, kNumbers };

  char name[60];  // padded with zeros
  std::uint32_t ints[kInts];
  std::uint32_t numbers[kNumbers];
};
static_assert(sizeof(PackedCell) == 96);

struct PackedTensor {
  std::uint32_t type;     // a NumberType
  std::uint32_t axes;     // 1 or 2
  std::uint32_t size[2];  // size[1] is 1 for one axis
  std::uint64_t data;     // offset of the elements
  std::uint64_t scales;   // for kInt8: offset of the scales, a float per row
};
static_assert(sizeof(PackedTensor) == 32);

// An error: the status that a function of edgernn.h returns, and its message.
struct Failure {
  EdgernnStatus status = EDGERNN_OK;
  std::string message;

  // Stores an error and returns false.
  bool Set(EdgernnStatus code, const std::string& text) {
    status = code;
    message = text;
    return false;
  }
};

// CRC-32 of some bytes.
std::uint32_t Checksum(const void* from, std::size_t bytes);

// Copies a vector to the arena as floats.
float* CopyFloats(const Tensor& vector, Arena* arena);

// Reads a packed file in memory, into which its tensors point. Functions return false, and set the
// failure, for an invalid file. Nothing may be read after that.
class PackedFile {
 public:
  explicit PackedFile(Failure* failure) : failure_(*failure) {}

  // Checks the header and the checksum.
  [[nodiscard]] bool Open(const void* data, std::size_t bytes);

  const PackedHeader& header() const { return header_; }

  // The block around each layer.
  BlockKind block() const { return block_; }

  bool has_graph() const { return header_.version == kGraphVersion; }

  // Reads the step graph without its layers.
  [[nodiscard]] bool ReadGraph(GraphSource* graph) const;

  // Size and checksum of the file without the names.
  std::uint64_t model_bytes() const { return model_bytes_; }
  std::uint32_t model_checksum() const { return model_checksum_; }

  // Finds the names of the outputs in a file that has them, and behind them those of the inputs if
  // the file has these too: texts that end with a zero each. All of one kind may be empty, for
  // none. Sets the `header().output` pointers of `outputs` and the `header().input` pointers of
  // `inputs` to them, unless these are null. The file of a model with a front end may have the
  // settings of its detector in place of the names of the inputs.
  [[nodiscard]] bool ReadNames(const char** outputs, const char** inputs,
                               EdgernnDetection* detection) const;

  // Reads from the first tensor again.
  void Rewind() { tensors_read_ = 0; }

  // The record of a layer, and the name in it.
  [[nodiscard]] bool ReadLayer(std::uint32_t layer, PackedLayer* record) const;
  static std::string NameOf(const PackedLayer& layer);

  // The cell of a layer, which is defined in the file.
  [[nodiscard]] bool ReadCell(const PackedLayer& layer, CellSource* cell) const;

  // Reads the next tensor.
  [[nodiscard]] bool NextTensor(Tensor* tensor);

  // Reads the next tensor, which must have this shape. `name` is for the message.
  [[nodiscard]] bool NextTensor(const char* name, const Shape& shape, Tensor* tensor);

  // Sets the failure and returns false.
  bool Fail(const std::string& message) const;

  // False if tensors are left.
  [[nodiscard]] bool CheckAllRead() const;

 private:
  // The address of a part of the file; null if it is outside the file or not aligned.
  const char* At(std::uint64_t offset, std::uint64_t bytes) const;

  // Reads the settings of a detector in the last bytes of the file, from `at` on.
  bool ReadDetection(const char* at, EdgernnDetection* detection) const;

  // Finds `count` names from *at on, and moves *at behind them.
  bool NextNames(const char** at, std::uint32_t count, const char* kind, const char** names) const;

  // Checks the flags and finds the kind of the blocks.
  bool CheckFlags();

  // Checks that the header has only what belongs to a step graph.
  bool CheckGraph();

  // Reads a tensor.
  [[nodiscard]] bool ReadTensor(std::uint32_t index, Tensor* tensor) const;

  // Offsets of the records of all layers, of all tensors, and of what follows.
  std::uint64_t layers_offset() const { return sizeof header_ + (has_graph() ? sizeof graph_ : 0); }
  std::uint64_t tensors_offset() const {
    return layers_offset() + header_.layers * std::uint64_t{sizeof(PackedLayer)};
  }
  std::uint64_t values_offset() const {
    return tensors_offset() + header_.tensors * std::uint64_t{sizeof(PackedTensor)};
  }

  Failure& failure_;
  const char* data_ = nullptr;
  PackedHeader header_{};
  PackedGraph graph_{};
  BlockKind block_ = BlockKind::kNone;
  std::uint64_t model_bytes_ = 0;
  std::uint32_t model_checksum_ = 0;
  std::uint32_t tensors_read_ = 0;
};

}  // namespace edgernn
