# SPDX-License-Identifier: Apache-2.0
# For Windows with Debian's g++-mingw-w64-x86-64-posix: cmake --toolchain cmake/x86_64-w64-mingw32.cmake -S ... -B ...

set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# Windows aligns the stack to 16 bytes, and GCC (bug 54412) moves wider vectors to it as if it were aligned to theirs
set(CMAKE_CXX_FLAGS_INIT -Wa,-muse-unaligned-vector-move)
