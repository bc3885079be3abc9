# SPDX-License-Identifier: Apache-2.0
# For 64-bit Arm with Debian's g++-aarch64-linux-gnu: cmake --toolchain cmake/aarch64-linux-gnu.cmake -S ... -B ...

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_STRIP aarch64-linux-gnu-strip)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
