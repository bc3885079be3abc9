# SPDX-License-Identifier: Apache-2.0
# For the processors in runtime/firmware/qemu/targets.json: cmake --toolchain toolchain.cmake -DPROCESSOR=cortex-m4

set(PROCESSOR cortex-m4 CACHE STRING "Processor: cortex-m4, cortex-m7, cortex-m55 or riscv32")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PROCESSOR)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR ${PROCESSOR})

set(BOARDS ${CMAKE_CURRENT_LIST_DIR}/../../runtime/firmware/qemu)
file(READ ${BOARDS}/targets.json targets)
string(JSON CMAKE_C_COMPILER GET ${targets} ${PROCESSOR} compiler)
string(JSON BOARD GET ${targets} ${PROCESSOR} board)
foreach(list flags emulator)
  string(JSON last LENGTH ${targets} ${PROCESSOR} ${list})
  math(EXPR last "${last} - 1")
  set(${list} "")
  foreach(i RANGE ${last})
    string(JSON word GET ${targets} ${PROCESSOR} ${list} ${i})
    list(APPEND ${list} ${word})
  endforeach()
endforeach()
list(JOIN flags " " CMAKE_C_FLAGS_INIT)
set(EMULATOR ${emulator})
