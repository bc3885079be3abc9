// SPDX-License-Identifier: Apache-2.0
// The tables of a real DFT of 2 half numbers.

#pragma once

#include <cmath>
#include <cstdint>

#include "common/arena.h"

namespace edgernn {

constexpr std::int64_t kMaxFourier = 1 << 25;

// Computes the cosines and sines (2, half) of k / (2 half) turns in the arena; without memory, only
// adds up the bytes that are needed.
inline float* MakeFourierTables(std::int64_t half, Arena* arena) {
  constexpr double kTwoPi = 6.283185307179586;
  float* const tables = arena->Allocate<float>(2 * half);
  for (std::int64_t k = 0; tables != nullptr && k < half; ++k) {
    const double angle = kTwoPi * static_cast<double>(k) / static_cast<double>(2 * half);
    tables[k] = static_cast<float>(std::cos(angle));
    tables[half + k] = static_cast<float>(std::sin(angle));
  }
  return tables;
}

}  // namespace edgernn
