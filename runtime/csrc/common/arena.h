// SPDX-License-Identifier: Apache-2.0
// A bump allocator: aligned parts of one buffer, one after the other.

#pragma once

#include <cstddef>
#include <cstdint>

namespace edgernn {

constexpr std::size_t kAlignment = 64;

// Without a buffer, Allocate returns null and only adds up the bytes that are needed. The sum has
// 64 bits on every processor: sizes read from a file are bounded so that it cannot overflow, and
// the function that allocates the buffer checks that the sum fits in size_t. Always inlined, as
// files built for different instruction sets include it.
class Arena {
 public:
  [[gnu::always_inline]] explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  [[gnu::always_inline]] T* Allocate(std::int64_t count) {
    char* at = base_ == nullptr ? nullptr : base_ + used_;
    constexpr std::uint64_t kSize = sizeof(T), kLess = kAlignment - 1;
    used_ += (static_cast<std::uint64_t>(count) * kSize + kLess) & ~kLess;
    return reinterpret_cast<T*>(at);
  }

  [[gnu::always_inline]] void* Allocate(std::uint64_t bytes) {
    return Allocate<char>(static_cast<std::int64_t>(bytes));
  }

  [[gnu::always_inline]] std::uint64_t used() const { return used_; }

 private:
  char* base_;
  std::uint64_t used_ = 0;
};

}  // namespace edgernn
