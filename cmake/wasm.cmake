# SPDX-License-Identifier: Apache-2.0
# edgernn.wasm: the C functions of edgernn.h, for runtime/js. The module imports its memory and nothing else.

add_executable(edgernn_wasm ${packed_sources} ${csrc}/packed/wasm.cc)
set_target_properties(edgernn_wasm PROPERTIES OUTPUT_NAME edgernn)
edgernn_add_kernels(edgernn_wasm)
target_compile_options(edgernn_wasm PRIVATE -fno-exceptions -fno-rtti -Os)
file(STRINGS ${csrc}/include/edgernn.h declarations REGEX "^EDGERNN_API")
string(REGEX MATCHALL "edgernn_[a-z_]+" functions "${declarations}")
list(TRANSFORM functions PREPEND -Wl,--export=)
# the stack comes first, so that its overflow traps; runtime/js/index.mjs has the initial memory too
target_link_options(edgernn_wasm PRIVATE -mexec-model=reactor -Wl,--import-memory -Wl,--initial-memory=262144
                    -Wl,-z,stack-size=65536 -Wl,--stack-first -Wl,--gc-sections -Wl,--strip-all
                    -Wl,--export=aligned_alloc -Wl,--export=free ${functions})
set_target_properties(edgernn_wasm PROPERTIES LINK_DEPENDS ${csrc}/include/edgernn.h)
install(TARGETS edgernn_wasm DESTINATION .)
