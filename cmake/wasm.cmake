# SPDX-License-Identifier: Apache-2.0
# The C functions of edgernn.h for runtime/js, as a module for each instruction set: edgernn.wasm, and
# edgernn-relaxed.wasm with multiply-add instructions. A module imports its memory and nothing else.

file(STRINGS ${csrc}/include/edgernn.h declarations REGEX "^EDGERNN_API")
string(REGEX MATCHALL "edgernn_[a-z_]+" exports "${declarations}")
list(TRANSFORM exports PREPEND -Wl,--export=)
set(wasm_name_simd128 edgernn)
set(wasm_name_relaxed_simd edgernn-relaxed)

foreach(isa IN LISTS EDGERNN_ISAS)
  set(module edgernn_wasm_${isa})
  add_executable(${module} ${packed_sources} ${csrc}/packed/wasm.cc $<TARGET_OBJECTS:edgernn_ops_${isa}>)
  edgernn_add_options(${module})
  string(TOUPPER ${isa} upper)
  target_compile_definitions(${module} PRIVATE EDGERNN_HAS_${upper})
  target_compile_options(${module} PRIVATE -fno-exceptions -fno-rtti -Os)
  # the stack comes first, so that its overflow traps; runtime/js/index.mjs has the initial memory too
  target_link_options(${module} PRIVATE -mexec-model=reactor -Wl,--import-memory -Wl,--initial-memory=262144
                      -Wl,-z,stack-size=65536 -Wl,--stack-first -Wl,--gc-sections -Wl,--strip-all
                      -Wl,--export=aligned_alloc -Wl,--export=free ${exports})
  set_target_properties(${module} PROPERTIES OUTPUT_NAME ${wasm_name_${isa}} LINK_DEPENDS ${csrc}/include/edgernn.h)
  install(TARGETS ${module} DESTINATION .)
endforeach()
