# gradwire_library(NAME SOURCES... LIBRARIES...): one room's static library; headers are included from the root.
# Names in its unnamed namespaces must differ between its files (GRADWIRE_UNITY).
function(gradwire_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${GRADWIRE_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${arg_LIBRARIES})
endfunction()

# gradwire_hot(NAME): keeps a target optimised in the sanitizers' builds, where the rest compiles twice as fast without.
function(gradwire_hot name)
  if(GRADWIRE_SANITIZE)
    target_compile_options(${name} PRIVATE -O1)
  endif()
endfunction()

# What the thread sanitizer build needs: the tests with the label "thread".
add_custom_target(gradwire_thread_tests)

# gradwire_test(NAME SOURCES... LIBRARIES... [LABELS...] [TIMEOUT seconds]): a GoogleTest program, each test its own
# CTest entry. Labels: unit (default), sim, thread (also run under the thread sanitizer), cluster (real processes and
# clocks: runs alone). As in libraries, names in unnamed namespaces differ between the files of a program.
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
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${GRADWIRE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT ${arg_TIMEOUT} RUN_SERIAL ${serial} LABELS "${labels}")
  if("thread" IN_LIST arg_LABELS)
    add_dependencies(gradwire_thread_tests ${name})
  endif()
endfunction()

# gradwire_python_suite(NAME MODULE [PROGRAMS] [SERIAL] [LABEL label] [TIMEOUT seconds] [ENVIRONMENT...]): the unittest
# module MODULE of this folder as one CTest entry. PROGRAMS: with the paths of gradwired, gradwire and cluster_rank.
# What it skips is told by tools/dev/skipped.py, not by CTest, which would call what failed beside it skipped too.
function(gradwire_python_suite name module)
  cmake_parse_arguments(arg "PROGRAMS;SERIAL" "LABEL;TIMEOUT" "ENVIRONMENT" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(arg_PROGRAMS)
    list(APPEND arg_ENVIRONMENT "GRADWIRED=$<TARGET_FILE:gradwired>" "GRADWIRE_COMMAND=$<TARGET_FILE:gradwire>"
         "CLUSTER_RANK=$<TARGET_FILE:cluster_rank>")
  endif()
  add_test(NAME ${name}
    COMMAND ${Python3_EXECUTABLE} -B -m unittest -v ${module}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} RUN_SERIAL ${arg_SERIAL} TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()
