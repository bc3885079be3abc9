// SPDX-License-Identifier: Apache-2.0
// Reads vectors and linear maps of a packed file.

#pragma once

#include <cstdint>

#include "common/arena.h"
#include "packed/file.h"

namespace edgernn {

// Copies a vector to the arena as floats.
float* CopyFloats(const Tensor& vector, Arena* arena);

// Reads W (O, I) and b (O,) of a linear map and packs them in the arena. `name` is for the message.
// Sets the failure and returns false if the file does not have them. Without memory, *packed stays
// null.
[[nodiscard]] bool ReadLinear(PackedFile* file, const char* name, const Linear& linear,
                              std::int64_t inputs, std::int64_t outputs, Arena* arena,
                              const void** packed);

}  // namespace edgernn
