# SPDX-License-Identifier: Apache-2.0
# Adds the library `edgernn_model` with the C files of this folder:
#   include(path/to/folder/edgernn.cmake)
#   target_link_libraries(firmware PRIVATE edgernn_model)
file(GLOB EDGERNN_MODEL_SOURCES ${CMAKE_CURRENT_LIST_DIR}/*.c)
add_library(edgernn_model STATIC ${EDGERNN_MODEL_SOURCES})
target_include_directories(edgernn_model PUBLIC ${CMAKE_CURRENT_LIST_DIR})
set_target_properties(edgernn_model PROPERTIES C_STANDARD 99)
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  # multiply-adds in one instruction; no call of memset or memcpy in place of a loop
  target_compile_options(edgernn_model PRIVATE -O2 -ffp-contract=fast -ffreestanding -fno-builtin)
endif()
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  target_compile_options(edgernn_model PRIVATE -fno-tree-loop-distribute-patterns)
endif()
