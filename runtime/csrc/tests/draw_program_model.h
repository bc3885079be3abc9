// SPDX-License-Identifier: Apache-2.0
// Random packed models whose cells are programs, for fuzzing: valid ones, and valid ones with some
// integers changed.

#ifndef EDGERNN_TESTS_DRAW_PROGRAM_MODEL_H_
#define EDGERNN_TESTS_DRAW_PROGRAM_MODEL_H_

#include <cstdint>
#include <vector>

namespace edgernn_tests {

struct DrawnModel {
  std::vector<unsigned char> file;
  bool is_valid;  // nothing was changed, so that it must run
};

// The model of a number, the same one at every call and on every machine.
DrawnModel DrawProgramModel(std::uint64_t number);

}  // namespace edgernn_tests

#endif  // EDGERNN_TESTS_DRAW_PROGRAM_MODEL_H_
