// SPDX-License-Identifier: Apache-2.0
// Random numbers for fuzzing, the same on every machine.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace edgernn_tests {

// Random numbers from a seed (SplitMix64).
class RandomGenerator {
 public:
  explicit RandomGenerator(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, count).
  int Below(int count) { return static_cast<int>(Bits() % static_cast<std::uint64_t>(count)); }

  bool OneIn(int count) { return Below(count) == 0; }

  float Uniform() { return static_cast<float>(Below(1 << 24)) * 0x1p-23f - 1; }

  // Any finite float.
  float Wild() {
    const auto bits = static_cast<std::uint32_t>(Bits());
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return (bits & 0x7f800000u) == 0x7f800000u ? 0.0f : number;
  }

  std::int32_t WildInt() {
    constexpr std::int32_t kEdges[] = {-1,
                                       0,
                                       1,
                                       127,
                                       128,
                                       256,
                                       65535,
                                       65536,
                                       std::numeric_limits<std::int32_t>::max(),
                                       std::numeric_limits<std::int32_t>::min()};
    return OneIn(2) ? kEdges[Below(10)] : OneIn(2) ? Below(100) : static_cast<std::int32_t>(Bits());
  }

  template <class T>
  T& Choose(std::vector<T>& list) {
    return list[static_cast<std::size_t>(Below(static_cast<int>(list.size())))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace edgernn_tests
