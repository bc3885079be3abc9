// SPDX-License-Identifier: Apache-2.0
// Reads and checks the file of a packed model, which may be damaged or malicious.

#include "packed/file.h"

#include <cstring>

#include "op/schema.h"

namespace edgernn {

namespace {

constexpr std::uint64_t kFileAlignment = 32;
// products of two sizes do not overflow
constexpr std::uint32_t kMaxSize = 1u << 30;
constexpr std::uint32_t kMaxLayers = 1024;

// A name from the file. As messages print it, characters other than printable ASCII become question
// marks.
std::string Name(const char (&from)[60]) {
  std::string name(from, strnlen(from, sizeof from));
  for (char& c : name) {
    if (c < ' ' || c > '~') c = '?';
  }
  return name;
}

// The size of a number of this type; 0 for an unknown type.
std::uint64_t NumberBytes(std::uint32_t type) {
  switch (static_cast<NumberType>(type)) {
    case NumberType::kFloat32:
      return 4;
    case NumberType::kBfloat16:
      return 2;
    case NumberType::kInt8:
      return 1;
  }
  return 0;
}

}  // namespace

std::uint32_t Checksum(const void* from, std::size_t bytes) {
  static const auto table = [] {
    struct Table {
      std::uint32_t entries[256];
    } crc{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xedb88320u : 0u);
      crc.entries[i] = value;
    }
    return crc;
  }();
  const auto* const at = static_cast<const unsigned char*>(from);
  std::uint32_t sum = 0xffffffffu;
  for (std::size_t i = 0; i < bytes; ++i) {
    sum = (sum >> 8) ^ table.entries[(sum ^ at[i]) & 255u];
  }
  return ~sum;
}

float* CopyFloats(const Tensor& vector, Arena* arena) {
  const std::int64_t count = vector.shape[0];
  float* const to = arena->Allocate<float>(count);
  for (std::int64_t i = 0; to != nullptr && i < count; ++i) to[i] = vector.values[i];
  return to;
}

bool PackedFile::Fail(const std::string& message) const {
  return failure_.Set(EDGERNN_BAD_MODEL, "packed model: " + message);
}

bool PackedFile::Open(const void* data, std::size_t bytes) {
  data_ = static_cast<const char*>(data);
  if (bytes < sizeof header_) {
    return Fail("expected at least " + std::to_string(sizeof header_) + " bytes, got " +
                std::to_string(bytes));
  }
  std::memcpy(&header_, data, sizeof header_);
  if (std::memcmp(header_.magic, "EDGERNN", 8) != 0) {
    return Fail(
        "expected a file that starts with EDGERNN, got another format; pack the model first");
  }
  const bool is_known =
      header_.version >= kVersionWithoutBlocks && header_.version <= kGraphVersion;
  if (!is_known || header_.schema != kSchemaVersion) {
    return failure_.Set(EDGERNN_BAD_VERSION,
                        "packed model: expected version " + std::to_string(kVersionWithoutBlocks) +
                            " to " + std::to_string(kGraphVersion) + " and schema " +
                            std::to_string(kSchemaVersion) + ", got " +
                            std::to_string(header_.version) + " and " +
                            std::to_string(header_.schema) + "; pack it again");
  }
  if (header_.bytes != bytes) {
    return Fail("expected " + std::to_string(header_.bytes) + " bytes, got " +
                std::to_string(bytes));
  }
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  if (Checksum(data_ + sizeof header_, bytes - sizeof header_) != header_.checksum) {
    return Fail("the checksum does not match the content; the file is damaged");
  }
#endif
  const std::uint32_t least_layers = has_graph() ? 0 : 1;
  if (header_.layers < least_layers || header_.layers > kMaxLayers) {
    return Fail("layers: expected " + std::to_string(least_layers) + " to " +
                std::to_string(kMaxLayers) + ", got " + std::to_string(header_.layers));
  }
  if (header_.input < 1 || header_.input > kMaxSize || header_.vocabulary > kMaxSize ||
      header_.output < 1 || header_.output > kMaxSize) {
    return Fail("input, vocabulary, output: expected sizes up to " + std::to_string(kMaxSize) +
                ", got " + std::to_string(header_.input) + ", " +
                std::to_string(header_.vocabulary) + ", " + std::to_string(header_.output));
  }
  if (header_.hop > kMaxSize || (header_.hop > 0 && header_.vocabulary > 0)) {
    return Fail("hop: expected a size up to " + std::to_string(kMaxSize) +
                ", and 0 for words, got " + std::to_string(header_.hop));
  }
  if (has_graph() ? !CheckGraph() : !CheckFlags()) return false;
  model_bytes_ = header_.bytes;
  model_checksum_ = header_.checksum;
  if (header_.names > 0) {
    if (header_.names < sizeof header_ || header_.names >= header_.bytes) {
      return Fail("names: expected an offset in the file, got " + std::to_string(header_.names));
    }
    model_bytes_ = header_.names;
    model_checksum_ = Checksum(data_ + sizeof header_, header_.names - sizeof header_);
  }
  return At(layers_offset(), values_offset() - layers_offset()) != nullptr;
}

bool PackedFile::CheckGraph() {
  if (header_.flags != kStepGraph || header_.vocabulary != 0 || header_.hop != 0) {
    return Fail("flags, vocabulary, hop: expected " + std::to_string(kStepGraph) +
                ", 0 and 0 with a step graph, got " + std::to_string(header_.flags) + ", " +
                std::to_string(header_.vocabulary) + " and " + std::to_string(header_.hop));
  }
  const char* const from = At(sizeof header_, sizeof graph_);
  if (from == nullptr) return false;
  std::memcpy(&graph_, from, sizeof graph_);
  return graph_.arena <= kMaxSize ||
         Fail("arena: expected a size up to " + std::to_string(kMaxSize) + ", got " +
              std::to_string(graph_.arena));
}

bool PackedFile::ReadGraph(GraphSource* graph) const {
  const std::uint64_t bytes = graph_.values * std::uint64_t{sizeof(GraphValue)};
  const char* const from =
      At(values_offset(), bytes + graph_.ints * std::uint64_t{sizeof(std::int32_t)});
  if (from == nullptr) return false;
  graph->input = header_.input;
  graph->output = header_.output;
  graph->arena = graph_.arena;
  graph->updates = graph_.updates;
  graph->macs = graph_.macs;
  const auto* const values = reinterpret_cast<const GraphValue*>(from);
  const auto* const ints = reinterpret_cast<const std::int32_t*>(from + bytes);
  graph->values.assign(values, values + graph_.values);
  graph->steps.assign(ints, ints + graph_.ints);
  graph->tensors.resize(header_.tensors);
  for (std::uint32_t i = 0; i < header_.tensors; ++i) {
    if (!ReadTensor(i, &graph->tensors[i])) return false;
  }
  return true;
}

bool PackedFile::CheckFlags() {
  const std::uint32_t blocks = header_.flags & (kLinearBlocks | kGatedBlocks);
  const bool may_have_blocks = header_.version == kVersionWithBlocks;
  if ((header_.flags & ~blocks) > (kStandardises | kHasHead) ||
      blocks == (kLinearBlocks | kGatedBlocks) || (blocks != 0 && !may_have_blocks)) {
    return Fail("flags: expected those of version " + std::to_string(header_.version) + ", got " +
                std::to_string(header_.flags));
  }
  block_ = blocks == 0               ? BlockKind::kNone
           : blocks == kLinearBlocks ? BlockKind::kLinear
                                     : BlockKind::kGated;
  return true;
}

bool PackedFile::NextNames(const char** at, std::uint32_t count, const char* kind,
                           const char** names) const {
  const char* const end = data_ + header_.bytes;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto left = static_cast<std::size_t>(end - *at);
    const void* const zero = left > 0 ? std::memchr(*at, 0, left) : nullptr;
    if (zero == nullptr) {
      return Fail("names: expected one for each of the " + std::to_string(count) + " " + kind +
                  ", got " + std::to_string(i));
    }
    if (names != nullptr) names[i] = *at;
    *at = static_cast<const char*>(zero) + 1;
  }
  return true;
}

bool PackedFile::ReadDetection(const char* at, EdgernnDetection* detection) const {
  const std::ptrdiff_t left = data_ + header_.bytes - at;
  if (left != sizeof *detection) {
    return Fail("detection: expected " + std::to_string(sizeof *detection) +
                " bytes behind the names, got " + std::to_string(left));
  }
  std::memcpy(detection, at, sizeof *detection);
  const auto is_duration = [](double seconds) { return seconds >= 0 && seconds <= 60; };
  return (is_duration(detection->smoothing) && is_duration(detection->refractory) &&
          detection->threshold > 0 && detection->threshold <= 1) ||
         Fail("detection: expected times from 0 to 60 s, and a threshold above 0 and at most 1");
}

bool PackedFile::ReadNames(const char** outputs, const char** inputs,
                           EdgernnDetection* detection) const {
  const char* at = data_ + header_.names;
  if (!NextNames(&at, header_.output, "outputs", outputs)) return false;
  const char* const end = data_ + header_.bytes;
  if (at == end) {
    // a text of the file that is empty
    for (std::uint32_t i = 0; inputs != nullptr && i < header_.input; ++i) inputs[i] = at - 1;
    return true;
  }
  if (header_.hop > 0) {
    for (std::uint32_t i = 0; inputs != nullptr && i < header_.input; ++i) inputs[i] = at - 1;
    return ReadDetection(at, detection);
  }
  if (!NextNames(&at, header_.input, "inputs", inputs)) return false;
  return at == end || Fail("names: expected the end of the file behind those of the inputs, got " +
                           std::to_string(end - at) + " more bytes");
}

bool PackedFile::ReadLayer(std::uint32_t layer, PackedLayer* record) const {
  const char* const from =
      At(layers_offset() + layer * std::uint64_t{sizeof *record}, sizeof *record);
  if (from == nullptr) return false;
  std::memcpy(record, from, sizeof *record);
  return true;
}

std::string PackedFile::NameOf(const PackedLayer& layer) { return Name(layer.name); }

bool PackedFile::ReadCell(const PackedLayer& layer, CellSource* read) const {
  PackedCell record;
  const char* from = At(layer.cell, sizeof record);
  if (from == nullptr) return false;
  std::memcpy(&record, from, sizeof record);
  std::uint64_t bytes = sizeof record;
  for (const std::uint32_t count : record.ints)
    bytes += count * std::uint64_t{sizeof(std::int32_t)};
  for (const std::uint32_t count : record.numbers) bytes += count * std::uint64_t{sizeof(float)};
  from = At(layer.cell, bytes);
  if (from == nullptr) return false;
  from += sizeof record;
  CellSource& cell = *read;
  cell.name = Name(record.name);
  std::vector<std::int64_t>* const ints[] = {&cell.gates,       &cell.vectors,  &cell.layout,
                                             &cell.update.ints, &cell.mid.ints, &cell.map.ints};
  for (int i = 0; i < PackedCell::kInts; ++i) {
    for (std::uint32_t k = 0; k < record.ints[i]; ++k, from += sizeof(std::int32_t)) {
      std::int32_t value;
      std::memcpy(&value, from, sizeof value);
      ints[i]->push_back(value);
    }
  }
  std::vector<float>* const numbers[] = {&cell.update.numbers, &cell.mid.numbers,
                                         &cell.map.numbers};
  for (int i = 0; i < PackedCell::kNumbers; ++i) {
    for (std::uint32_t k = 0; k < record.numbers[i]; ++k, from += sizeof(float)) {
      float value;
      std::memcpy(&value, from, sizeof value);
      numbers[i]->push_back(value);
    }
  }
  return true;
}

bool PackedFile::NextTensor(Tensor* read) {
  if (tensors_read_ == header_.tensors) {
    return Fail("tensors: expected more for the layers, got " + std::to_string(header_.tensors));
  }
  return ReadTensor(tensors_read_++, read);
}

bool PackedFile::ReadTensor(std::uint32_t index, Tensor* read) const {
  PackedTensor record;
  const char* const from =
      At(tensors_offset() + index * std::uint64_t{sizeof record}, sizeof record);
  if (from == nullptr) return false;
  std::memcpy(&record, from, sizeof record);
  const std::uint64_t rows = record.size[0], columns = record.size[1];
  if (record.axes < 1 || record.axes > 2 || rows < 1 || rows > kMaxSize || columns < 1 ||
      columns > kMaxSize || (record.axes == 1 && columns != 1)) {
    return Fail("tensor " + std::to_string(index) + ": expected 1 or 2 axes of 1 to " +
                std::to_string(kMaxSize) + ", got " + std::to_string(record.axes) + " of " +
                std::to_string(rows) + " and " + std::to_string(columns));
  }
  const std::uint64_t number = NumberBytes(record.type);
  if (number == 0) {
    return Fail("type of a tensor: expected 0, 1 or 2, got " + std::to_string(record.type));
  }
  Tensor& tensor = *read;
  tensor = {};
  tensor.shape.push_back(record.size[0]);
  if (record.axes == 2) tensor.shape.push_back(record.size[1]);
  tensor.values.data = At(record.data, rows * columns * number);
  if (tensor.values.data == nullptr) return false;
  tensor.values.type = static_cast<NumberType>(record.type);
  if (tensor.values.type != NumberType::kInt8) return true;
  tensor.values.scales = reinterpret_cast<const float*>(At(record.scales, rows * sizeof(float)));
  tensor.values.columns = record.size[1];
  return tensor.values.scales != nullptr;
}

bool PackedFile::NextTensor(const char* name, const Shape& shape, Tensor* tensor) {
  if (!NextTensor(tensor)) return false;
  if (tensor->shape == shape) return true;
  return Fail(std::string(name) + ": expected " + Print(shape) + ", got " + Print(tensor->shape));
}

bool PackedFile::CheckAllRead() const {
  if (tensors_read_ == header_.tensors) return true;
  return Fail("tensors: expected " + std::to_string(tensors_read_) + " for the layers, got " +
              std::to_string(header_.tensors));
}

const char* PackedFile::At(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset > header_.bytes || bytes > header_.bytes - offset) {
    Fail("expected " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
         ", got a file of " + std::to_string(header_.bytes) + " bytes");
    return nullptr;
  }
  if (offset % kFileAlignment != 0) {
    Fail("expected offsets that are multiples of " + std::to_string(kFileAlignment) + ", got " +
         std::to_string(offset));
    return nullptr;
  }
  return data_ + offset;
}

}  // namespace edgernn
