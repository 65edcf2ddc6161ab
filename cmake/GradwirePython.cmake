# GRADWIRE_PYTHON_DIR: where the Python package goes, below CMAKE_INSTALL_PREFIX. The default is a folder that the
# Python found searches, if it searches any below the prefix: Debian's, else the first of its search.
function(gradwire_find_python_dir)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -I -c
      "import site, sys\nprint(';'.join(site.getsitepackages() + [p for p in sys.path if p]))"
    OUTPUT_VARIABLE searched OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(debian "${CMAKE_INSTALL_PREFIX}/lib/python3/dist-packages")
  set(choice "lib/python3/dist-packages")
  foreach(candidate IN LISTS debian searched)
    cmake_path(IS_PREFIX CMAKE_INSTALL_PREFIX "${candidate}" NORMALIZE below)
    if(below AND candidate IN_LIST searched AND candidate MATCHES "-packages$")
      cmake_path(RELATIVE_PATH candidate BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE choice)
      break()
    endif()
  endforeach()
  set(GRADWIRE_PYTHON_DIR "${choice}" CACHE STRING "Where the Python package goes, below the prefix")
  cmake_path(ABSOLUTE_PATH GRADWIRE_PYTHON_DIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" NORMALIZE
             OUTPUT_VARIABLE chosen)
  if(chosen IN_LIST searched)
    message(STATUS "Python package: ${chosen}")
  else()
    message(STATUS "Python package: ${chosen}; Python ${Python3_VERSION} does not search there: PYTHONPATH=${chosen}")
  endif()
endfunction()

gradwire_find_python_dir()
