// SPDX-License-Identifier: Apache-2.0
// Implements read_linear.h.

#include "packed/read_linear.h"

#include <string>

namespace edgernn {

float* CopyFloats(const Tensor& vector, Arena* arena) {
  const std::int64_t count = vector.shape[0];
  float* const to = arena->Allocate<float>(count);
  for (std::int64_t i = 0; to != nullptr && i < count; ++i) to[i] = vector.values[i];
  return to;
}

bool ReadLinear(PackedFile* file, const char* name, const Linear& linear, std::int64_t inputs,
                std::int64_t outputs, Arena* arena, const void** packed) {
  const std::string of = std::string(" of ") + name;
  Tensor w, b;
  if (!file->NextTensor(("W" + of).c_str(), {outputs, inputs}, &w)) return false;
  if (!file->NextTensor(("b" + of).c_str(), {outputs}, &b)) return false;
  void* const to = arena->Allocate(linear.packed_bytes(inputs, outputs));
  if (to != nullptr) linear.pack(w.values, b.values, inputs, outputs, to);
  *packed = to;
  return true;
}

}  // namespace edgernn
