// SPDX-License-Identifier: Apache-2.0
// The property that fuzzing checks of every packed model.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace edgernn_tests {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<void, Free>;

// Allocates bytes with the library's alignment, in a block of exactly that size.
AlignedMemory Allocate(std::size_t bytes);

// Aborts with a message unless the condition holds.
void Expect(bool holds, const char* condition);

// Returns true if the library accepts a packed model. An accepted model must run without a
// sanitizer error, in memory proportional to its size, and its outputs must not depend on the
// initial contents of that memory. A refusal must have a message. Aborts otherwise.
bool TryPackedModel(const void* file, std::size_t bytes);

}  // namespace edgernn_tests
