# The Python module (docs/python.md), for the interpreter of .cache/python, which scripts/python_env.sh makes, or that of
# -DPython_EXECUTABLE. Built, it lies in build/PRESET/python, which PYTHONPATH may name.
option(KVLATHE_PYTHON "The Python module, by nanobind" OFF)
if(KVLATHE_PYTHON)
  if(NOT Python_EXECUTABLE AND EXISTS ${CMAKE_SOURCE_DIR}/.cache/python/bin/python)
    set(Python_EXECUTABLE ${CMAKE_SOURCE_DIR}/.cache/python/bin/python)
  endif()
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT RESULT_VARIABLE nanobind_missing ERROR_QUIET)
  if(nanobind_missing)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no nanobind; run scripts/python_env.sh, or configure with "
      "-DKVLATHE_PYTHON=OFF to build without the Python module.")
  endif()
  find_package(nanobind CONFIG REQUIRED)
endif()
