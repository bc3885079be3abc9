// SPDX-License-Identifier: Apache-2.0
// Random packed models whose cells are programs, for fuzzing: valid models, and valid models with
// some integers changed.

#pragma once

#include <cstdint>
#include <vector>

namespace edgernn_tests {

struct DrawnModel {
  std::vector<unsigned char> file;
  bool is_valid;  // true if nothing was changed, so the library must run it
};

// Draws the model with this number: the same file at every call and on every machine.
DrawnModel DrawProgramModel(std::uint64_t number);

}  // namespace edgernn_tests
