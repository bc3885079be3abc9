// SPDX-License-Identifier: Apache-2.0
// Replaces the C++ library's allocation and messages in a WebAssembly module, which then imports no
// function. A list or a message that finds no memory traps; JavaScript catches that.

#include <cstddef>
#include <cstdlib>
#include <new>

void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) __builtin_trap();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// replaces the one of libc++, which prints
[[noreturn]] void std::__libcpp_verbose_abort(const char*, ...) { __builtin_trap(); }

// libc calls these before it exits and where memory is damaged
extern "C" void abort() { __builtin_trap(); }
