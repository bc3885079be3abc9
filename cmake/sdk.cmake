# SPDX-License-Identifier: Apache-2.0
# The kit for C and C++ programs: the header, both libraries, a CMake package and pkg-config files. After building the
# targets edgernn and edgernn_shared: cmake --install DIR --component sdk --prefix KIT

file(STRINGS edgernn/__init__.py EDGERNN_VERSION REGEX "^__version__")
string(REGEX REPLACE ".*\"(.*)\"" "\\1" EDGERNN_VERSION "${EDGERNN_VERSION}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" so_version "${EDGERNN_VERSION}")

set_target_properties(edgernn PROPERTIES EXPORT_NAME static)
set_target_properties(edgernn_shared PROPERTIES EXPORT_NAME shared OUTPUT_NAME edgernn VERSION ${EDGERNN_VERSION}
                      SOVERSION ${so_version})
# what the static library takes from the C++ library, for programs in C
set(EDGERNN_STATIC_LIBRARIES stdc++ m)
if(APPLE)
  set(EDGERNN_STATIC_LIBRARIES c++)
endif()
target_link_libraries(edgernn INTERFACE $<INSTALL_INTERFACE:${EDGERNN_STATIC_LIBRARIES}>)

install(TARGETS edgernn edgernn_shared EXPORT edgernn COMPONENT sdk EXCLUDE_FROM_ALL
        ARCHIVE DESTINATION lib LIBRARY DESTINATION lib RUNTIME DESTINATION bin INCLUDES DESTINATION include)
install(FILES ${csrc}/include/edgernn.h DESTINATION include COMPONENT sdk EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION . COMPONENT sdk EXCLUDE_FROM_ALL)

set(package ${CMAKE_CURRENT_BINARY_DIR}/sdk)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${package}/edgernnConfigVersion.cmake VERSION ${EDGERNN_VERSION}
                                 COMPATIBILITY SameMinorVersion)
install(EXPORT edgernn FILE edgernnConfig.cmake NAMESPACE edgernn:: DESTINATION lib/cmake/edgernn COMPONENT sdk
        EXCLUDE_FROM_ALL)
install(FILES ${package}/edgernnConfigVersion.cmake DESTINATION lib/cmake/edgernn COMPONENT sdk EXCLUDE_FROM_ALL)

list(TRANSFORM EDGERNN_STATIC_LIBRARIES PREPEND -l)
list(JOIN EDGERNN_STATIC_LIBRARIES " " EDGERNN_STATIC_LIBRARIES)
foreach(kind edgernn edgernn-static)
  configure_file(cmake/${kind}.pc.in ${package}/${kind}.pc @ONLY)
  install(FILES ${package}/${kind}.pc DESTINATION lib/pkgconfig COMPONENT sdk EXCLUDE_FROM_ALL)
endforeach()
