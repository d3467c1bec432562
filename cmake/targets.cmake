# One function per kind of target. A folder's target lists what it may use in DEPS; the folder
# graph is the link graph, and scripts/check_includes.py fails on an include that DEPS does not cover.
include(GoogleTest)

# -Wmaybe-uninitialized: g++ 12 reports the undefined operands of its own AVX-512 intrinsics.
add_library(kvlathe_flags INTERFACE)
target_compile_options(kvlathe_flags INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers -Wno-maybe-uninitialized -Werror=return-type -fno-math-errno)
# Eigen's products share themselves out over OpenMP threads that wait for each other in busy loops: inside
# our workers, who have the processors, that took twenty times the work.
target_compile_definitions(kvlathe_flags INTERFACE EIGEN_DONT_PARALLELIZE)
target_include_directories(kvlathe_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
option(KVLATHE_DEBUG_INFO "What the preset says of -g; OFF: none" ON)
if(NOT KVLATHE_DEBUG_INFO)
  target_compile_options(kvlathe_flags INTERFACE -g0)
endif()
if(KVLATHE_SANITIZE)
  target_compile_options(kvlathe_flags INTERFACE
    -fsanitize=${KVLATHE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(kvlathe_flags INTERFACE -fsanitize=${KVLATHE_SANITIZE})
endif()

# What nearly every source includes through base/status.h, parsed once for all libraries: two thirds of
# the time of a short source. OpenMP is there because GCC takes precompiled headers only where the
# options are the same.
file(WRITE ${CMAKE_BINARY_DIR}/library_headers.cc "")
add_library(kvlathe_library_headers OBJECT ${CMAKE_BINARY_DIR}/library_headers.cc)
target_link_libraries(kvlathe_library_headers PRIVATE kvlathe_flags fmt::fmt absl::statusor OpenMP::OpenMP_CXX)
target_precompile_headers(kvlathe_library_headers PRIVATE
  <algorithm> <cmath> <functional> <memory> <span> <string> <vector> <absl/status/statusor.h> <fmt/format.h>)

# kvl_library(NAME kv SRCS a.cc b.cc DEPS tensor base [LIBS fmt::fmt])
#   DEPS: folders of this project; LIBS: third-party targets; HEADERS: what is precompiled for it
#   instead of what is for all libraries.
function(kvl_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;LIBS;HEADERS" ${ARGN})
  add_library(kvlathe_${ARG_NAME} STATIC ${ARG_SRCS})
  target_link_libraries(kvlathe_${ARG_NAME} PUBLIC kvlathe_flags ${ARG_LIBS} PRIVATE OpenMP::OpenMP_CXX)
  if(ARG_HEADERS)
    target_precompile_headers(kvlathe_${ARG_NAME} PRIVATE ${ARG_HEADERS})
  else()
    target_precompile_headers(kvlathe_${ARG_NAME} REUSE_FROM kvlathe_library_headers)
  endif()
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(kvlathe_${ARG_NAME} PUBLIC kvlathe_${dep})
  endforeach()
endfunction()

# Most of the time of a checked build went into optimising tests, whose time is spent in libraries.
if(KVLATHE_SANITIZE)
  set(KVLATHE_TEST_FLAGS -O0)
endif()

# What most tests include, parsed once for all of them. GCC takes it only where options and macros are
# the same, so a test links what it was made with.
set(KVLATHE_TEST_LIBS GTest::gmock GTest::gtest_main fmt::fmt absl::statusor OpenMP::OpenMP_CXX)
file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cc "")
add_library(kvlathe_test_headers OBJECT ${CMAKE_BINARY_DIR}/test_headers.cc)
set_target_properties(kvlathe_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(kvlathe_test_headers PRIVATE -fPIE ${KVLATHE_TEST_FLAGS})
target_link_libraries(kvlathe_test_headers PRIVATE kvlathe_flags ${KVLATHE_TEST_LIBS} nlohmann_json::nlohmann_json)
target_precompile_headers(kvlathe_test_headers PRIVATE
  <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <absl/status/statusor.h> <nlohmann/json.hpp>)

# Sources of a test instantiate the same templates of GoogleTest: compiled together they take half the
# time, and a change to one takes twice as long.
option(KVLATHE_UNITY_TESTS "Compile the sources of a test together" OFF)

# kvl_test(NAME spec_test SRCS spec_test.cc DEPS kv [LIBS ...] [LABELS slow] [APART a_test.cc])
#   APART: sources with names of their own that others have too, never compiled together with them.
function(kvl_test)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;LIBS;LABELS;APART" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE kvlathe_flags ${ARG_LIBS} ${KVLATHE_TEST_LIBS})
  target_compile_options(${ARG_NAME} PRIVATE ${KVLATHE_TEST_FLAGS})
  target_precompile_headers(${ARG_NAME} REUSE_FROM kvlathe_test_headers)
  set_target_properties(${ARG_NAME} PROPERTIES UNITY_BUILD ${KVLATHE_UNITY_TESTS})
  set_property(SOURCE ${ARG_APART} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  # GCC loses a macro of its prefetch intrinsic between precompiled headers and -O0, and Eigen uses it.
  foreach(source IN LISTS ARG_SRCS)
    file(STRINGS ${source} eigen REGEX "^#include <Eigen")
    if(eigen AND KVLATHE_TEST_FLAGS)
      set_property(SOURCE ${source} PROPERTY COMPILE_OPTIONS -O1)
      set_property(SOURCE ${source} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${ARG_NAME} PRIVATE kvlathe_${dep})
  endforeach()
  target_compile_definitions(${ARG_NAME} PRIVATE KVLATHE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(KVLATHE_SANITIZE AND "slow" IN_LIST ARG_LABELS)
    # Not run under the sanitizers; can be built by name.
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  set(properties TIMEOUT 600)
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  # NO_PRETTY_VALUES: else the bytes of parameters, addresses among them, are part of test names.
  gtest_discover_tests(${ARG_NAME} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES ${properties})
endfunction()

# kvl_benchmark(NAME linear_bench SRCS linear_bench.cc DEPS kernels_cpu)
# Not built under the sanitizers, whose timings mean nothing.
function(kvl_benchmark)
  if(KVLATHE_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;LIBS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE kvlathe_flags ${ARG_LIBS} benchmark::benchmark_main)
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${ARG_NAME} PRIVATE kvlathe_${dep})
  endforeach()
endfunction()

# kvl_isa_sources(FLAGS <-m...> SRCS a.cc): sources of a kernel folder that need an instruction set.
function(kvl_isa_sources)
  cmake_parse_arguments(ARG "" "" "FLAGS;SRCS" ${ARGN})
  set_property(SOURCE ${ARG_SRCS} APPEND PROPERTY COMPILE_OPTIONS ${ARG_FLAGS})
  set_property(SOURCE ${ARG_SRCS} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
endfunction()
