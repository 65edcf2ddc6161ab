# gradwire_library(NAME SOURCES... LIBRARIES...): one room's static library; headers are included from the root.
# Names in its unnamed namespaces must differ between its files (GRADWIRE_UNITY).
function(gradwire_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${GRADWIRE_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${arg_LIBRARIES})
endfunction()

# What the thread sanitizer build needs: the tests with the label "thread".
add_custom_target(gradwire_thread_tests)

# gradwire_test(NAME SOURCES... LIBRARIES... [LABELS...] [TIMEOUT seconds]): a GoogleTest program, each test its own
# CTest entry. Labels: unit (default), sim, thread (also run under the thread sanitizer), cluster (real processes and
# clocks: runs alone).
function(gradwire_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(GRADWIRE_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  set(serial FALSE)
  if("cluster" IN_LIST arg_LABELS)
    set(serial TRUE)
  endif()
  string(REPLACE ";" "\\\\\\\\\\\\\\;" labels "${arg_LABELS}")  # as many as gtest_discover_tests takes away on the way to CTest
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT ${arg_TIMEOUT} RUN_SERIAL ${serial} LABELS "${labels}")
  if("thread" IN_LIST arg_LABELS)
    add_dependencies(gradwire_thread_tests ${name})
  endif()
endfunction()
