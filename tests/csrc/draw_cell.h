// SPDX-License-Identifier: Apache-2.0
// Random cells as programs, for fuzzing.

#pragma once

#include "program/check_cell.h"
#include "random_generator.h"

namespace edgernn_tests {

// Draws a valid cell.
edgernn::CellSource DrawCell(RandomGenerator* random);

// Changes some integers of a cell, or a constant, so that it may become invalid.
void MutateCell(RandomGenerator* random, edgernn::CellSource* cell);

}  // namespace edgernn_tests
