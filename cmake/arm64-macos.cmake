# SPDX-License-Identifier: Apache-2.0
# For macOS 11 and newer on Arm, with the Python package ziglang: cmake --toolchain cmake/arm64-macos.cmake -S ... -B ...
# What it builds is not tested.

set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER python-zig c++ -target aarch64-macos.11.0)
