# SPDX-License-Identifier: Apache-2.0
# For WebAssembly with clang and Debian's wasi-libc: cmake --toolchain cmake/wasm32.cmake -S ... -B ...
# WASM_CXX is the compiler; `make wasm-tools` says which packages it needs.

set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(WASM_CXX clang++-19 CACHE STRING "The clang++ that compiles for wasm32")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES WASM_CXX)
set(CMAKE_CXX_COMPILER ${WASM_CXX})
set(CMAKE_CXX_COMPILER_TARGET wasm32-wasi)
set(CMAKE_EXECUTABLE_SUFFIX_CXX .wasm)
