// SPDX-License-Identifier: Apache-2.0
// The carving of one buffer into parts.

#ifndef EDGERNN_CARVER_H_
#define EDGERNN_CARVER_H_

#include <cstddef>
#include <cstdint>

#include "kernel.h"

namespace edgernn {

// the sizes of what a file says, in bytes, do not wrap round in 64 bits
static_assert(sizeof(std::size_t) == 8);

// Hands out aligned parts of a buffer one after the other; without a buffer it only adds them up.
// Never called but inline: files built for different instruction sets include it.
class Carver {
 public:
  [[gnu::always_inline]] explicit Carver(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  [[gnu::always_inline]] T* Take(std::int64_t count) {
    char* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) & ~(kAlignment - 1);
    return reinterpret_cast<T*>(at);
  }

  // So many bytes.
  [[gnu::always_inline]] void* Take(std::size_t bytes) {
    return Take<char>(static_cast<std::int64_t>(bytes));
  }

  [[gnu::always_inline]] std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

}  // namespace edgernn

#endif  // EDGERNN_CARVER_H_
