// SPDX-License-Identifier: Apache-2.0
// A libFuzzer target for packed models. See `make check-fuzz`.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "packed/file.h"
#include "tests/try_packed_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const edgernn_tests::Memory file = edgernn_tests::Allocate(bytes);
  if (bytes > 0) std::memcpy(file.get(), data, bytes);
  // so that a file may grow and shrink
  if (bytes >= sizeof(edgernn::PackedHeader)) {
    const std::uint64_t whole = bytes;
    std::memcpy(static_cast<char*>(file.get()) + offsetof(edgernn::PackedHeader, bytes), &whole,
                sizeof whole);
  }
  edgernn_tests::TryPackedModel(file.get(), bytes);
  return 0;
}
