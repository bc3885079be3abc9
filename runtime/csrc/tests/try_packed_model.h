// SPDX-License-Identifier: Apache-2.0
// Gives a file to the library as fuzzing does.

#ifndef EDGERNN_TESTS_TRY_PACKED_MODEL_H_
#define EDGERNN_TESTS_TRY_PACKED_MODEL_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace edgernn_tests {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// So many bytes where the library wants them; what lies behind them is not to be touched.
Memory Allocate(std::size_t bytes);

// Ends the process with this sentence unless it holds.
void Expect(bool holds, const char* what);

// Whether a packed model is accepted. One that is must step without a bad address or undefined
// operation, in memory in proportion to its size, and give the same outputs whatever that memory
// held before; what is refused must be told why. Ends the process otherwise.
bool TryPackedModel(const void* file, std::size_t bytes);

}  // namespace edgernn_tests

#endif  // EDGERNN_TESTS_TRY_PACKED_MODEL_H_
