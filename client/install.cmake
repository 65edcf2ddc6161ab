# What a program outside this tree needs: library, headers, Python package, pkg-config and CMake descriptions.
include(CMakePackageConfigHelpers)
set(gradwire_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gradwire)

add_dependencies(gradwire_installed gradwire_client)
install(TARGETS gradwire_client EXPORT gradwire LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/gradwire/gradwire.h include/gradwire/gradwire.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradwire)
install(EXPORT gradwire NAMESPACE gradwire:: FILE gradwire-targets.cmake DESTINATION ${gradwire_cmake_dir})

configure_package_config_file(gradwire-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/gradwire-config.cmake
  INSTALL_DESTINATION ${gradwire_cmake_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/gradwire-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gradwire-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/gradwire-config-version.cmake
        DESTINATION ${gradwire_cmake_dir})

# By where the file lies, so that it holds for whatever prefix is named when it is installed.
set(gradwire_pc_prefix ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(gradwire_pc_prefix "\${pcfiledir}/${up}")
endif()
foreach(kind LIB INCLUDE)
  string(TOLOWER ${kind} name)
  set(gradwire_pc_${name}dir "\${prefix}/${CMAKE_INSTALL_${kind}DIR}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}DIR}")
    set(gradwire_pc_${name}dir ${CMAKE_INSTALL_${kind}DIR})
  endif()
endforeach()
configure_file(gradwire.pc.in ${CMAKE_CURRENT_BINARY_DIR}/gradwire.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gradwire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

include(GradwirePython)
install(DIRECTORY python/gradwire DESTINATION ${GRADWIRE_PYTHON_DIR} FILES_MATCHING PATTERN "*.py")
install(PROGRAMS ${PROJECT_SOURCE_DIR}/tools/examples/fashion_mnist.py
        DESTINATION ${CMAKE_INSTALL_DATADIR}/gradwire/examples)
