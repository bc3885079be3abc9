// SPDX-License-Identifier: Apache-2.0
// The libFuzzer target for packed models, run by `make check-fuzz`.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "packed/file.h"
#include "try_packed_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const edgernn_tests::AlignedMemory file = edgernn_tests::Allocate(bytes);
  if (bytes > 0) std::memcpy(file.get(), data, bytes);
  // correct the size in the header, so that mutations may change the length
  if (bytes >= sizeof(edgernn::PackedHeader)) {
    const std::uint64_t size = bytes;
    std::memcpy(static_cast<char*>(file.get()) + offsetof(edgernn::PackedHeader, bytes), &size,
                sizeof size);
  }
  edgernn_tests::TryPackedModel(file.get(), bytes);
  return 0;
}
