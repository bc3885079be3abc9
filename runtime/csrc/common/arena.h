// SPDX-License-Identifier: Apache-2.0
// A bump allocator: aligned parts of one buffer, one after the other.

#ifndef EDGERNN_COMMON_ARENA_H_
#define EDGERNN_COMMON_ARENA_H_

#include <cstddef>
#include <cstdint>

#include "common/kernel.h"

namespace edgernn {

// sizes read from a file are bounded so that byte counts fit 64 bits
static_assert(sizeof(std::size_t) == 8);

// Without a buffer, Allocate returns null and only adds up the bytes that are needed. Always
// inlined: files built for different instruction sets include it.
class Arena {
 public:
  [[gnu::always_inline]] explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  [[gnu::always_inline]] T* Allocate(std::int64_t count) {
    char* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) & ~(kAlignment - 1);
    return reinterpret_cast<T*>(at);
  }

  [[gnu::always_inline]] void* Allocate(std::size_t bytes) {
    return Allocate<char>(static_cast<std::int64_t>(bytes));
  }

  [[gnu::always_inline]] std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

}  // namespace edgernn

#endif  // EDGERNN_COMMON_ARENA_H_
