// SPDX-License-Identifier: Apache-2.0
// The format of a saved state, little-endian: a header, the number of bad samples of each sequence
// (B,) as int64, and then floats: the states of all layers, (B, width) each, and the held numbers
// (B, I), which a model of words lacks. runtime/saved_state.py reads and writes it too.

#pragma once

#include <cstddef>
#include <cstdint>

#include "packed/model.h"

namespace edgernn {

constexpr std::uint32_t kSavedStateVersion = 1;

struct SavedStateHeader {
  char magic[8];  // "RNNSTATE", without a final zero
  std::uint32_t version;
  std::uint32_t schema;          // kSchemaVersion
  std::uint64_t bytes;           // size of the whole saved state
  std::uint32_t checksum;        // CRC-32 of the bytes after the header
  std::uint32_t model_checksum;  // `checksum` and `bytes` of the packed model
  std::uint64_t model_bytes;
  std::uint64_t batch;      // B
  std::uint64_t unused[2];  // 0
};
static_assert(sizeof(SavedStateHeader) == 64);

std::size_t SavedStateBytes(const EdgernnModel& model);

// Writes the state of a model to `data`, which has room for it and any alignment. Returns false if
// the state has a NaN.
[[nodiscard]] bool SaveState(const EdgernnModel& model, void* data, Failure* failure);

// Restores a saved state. Returns false, and changes nothing, if it is not one of this model.
[[nodiscard]] bool RestoreState(const void* data, std::size_t bytes, EdgernnModel* model,
                                Failure* failure);

}  // namespace edgernn
