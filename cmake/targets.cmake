# One function per kind of target. A folder's target lists what it may use in DEPS; the folder
# graph is the link graph, and scripts/check_includes.py fails on an include that DEPS does not cover.

# -Wmaybe-uninitialized: g++ 12 reports the undefined operands of its own AVX-512 intrinsics.
add_library(kvlathe_flags INTERFACE)
target_compile_options(kvlathe_flags INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers -Wno-maybe-uninitialized -Werror=return-type -fno-math-errno)
# Eigen's products share themselves out over OpenMP threads that wait for each other in busy loops: inside
# our workers, who have the processors, that took twenty times the work.
# How Eigen gets aligned memory would otherwise depend on the options of a source (-mavx2, sanitizers), and a
# matrix that one source allocates is freed by another.
target_compile_definitions(kvlathe_flags INTERFACE EIGEN_DONT_PARALLELIZE EIGEN_MALLOC_ALREADY_ALIGNED=0)
target_include_directories(kvlathe_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
option(KVLATHE_DEBUG_INFO "What the preset says of -g; OFF: none" ON)
if(NOT KVLATHE_DEBUG_INFO)
  target_compile_options(kvlathe_flags INTERFACE -g0)
endif()
if(KVLATHE_SANITIZE)
  # Left out of "undefined": what AddressSanitizer sees anyway (null) and what scripts/fuzz.sh checks.
  # Without these checks of every pointer a source takes two thirds of the time to compile.
  if(KVLATHE_SANITIZE MATCHES "undefined")
    set(KVLATHE_UNCHECKED -fno-sanitize=null,alignment,vptr,object-size,nonnull-attribute,returns-nonnull-attribute)
  endif()
  # Asio's fences are beside atomic operations that ThreadSanitizer does follow.
  if(KVLATHE_SANITIZE MATCHES "thread")
    target_compile_options(kvlathe_flags INTERFACE -Wno-tsan)
  endif()
  target_compile_options(kvlathe_flags INTERFACE
    -fsanitize=${KVLATHE_SANITIZE} ${KVLATHE_UNCHECKED} -fno-sanitize-recover=all -fno-omit-frame-pointer)
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

# Reading headers and instantiating their templates is most of the work of most sources: a library compiled as
# one source takes a quarter of the time, and a change to one source takes all of it. All of a library at once,
# so that no new source moves another into a batch where a name collides.
option(KVLATHE_UNITY_LIBRARIES "Compile the sources of a library together" OFF)

# What only the second ring runs (docs/testing.md) need not be built for the first.
option(KVLATHE_SECOND_RING "`all` has what only scripts/test.sh --all runs" ON)

# kvl_leave_to_second_ring(TARGET): built by its name, or where something needs it, and in the second ring.
function(kvl_leave_to_second_ring target)
  if(NOT KVLATHE_SECOND_RING)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# Without warnings of what one source is to another that it never meets. Linked behind kvlathe_flags.
add_library(kvlathe_together INTERFACE)
target_compile_options(kvlathe_together INTERFACE -Wno-shadow -Wno-subobject-linkage)

# kvl_compile_together(TARGET ON)
function(kvl_compile_together target is_wanted)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${is_wanted} UNITY_BUILD_BATCH_SIZE 0)
endfunction()

# kvl_library(NAME kv SRCS a.cc b.cc DEPS tensor base [LIBS fmt::fmt] [APART a.cc])
#   DEPS: folders of this project; LIBS: third-party targets; HEADERS: what is precompiled for it
#   instead of what is for all libraries; APART: sources that are never compiled together with others.
function(kvl_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;LIBS;HEADERS;APART" ${ARGN})
  add_library(kvlathe_${ARG_NAME} STATIC ${ARG_SRCS})
  kvl_compile_together(kvlathe_${ARG_NAME} ${KVLATHE_UNITY_LIBRARIES})
  kvl_leave_to_second_ring(kvlathe_${ARG_NAME})
  set_property(SOURCE ${ARG_APART} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(kvlathe_${ARG_NAME} PUBLIC kvlathe_flags ${ARG_LIBS} PRIVATE OpenMP::OpenMP_CXX)
  if(ARG_HEADERS)
    target_precompile_headers(kvlathe_${ARG_NAME} PRIVATE ${ARG_HEADERS})
  else()
    target_precompile_headers(kvlathe_${ARG_NAME} REUSE_FROM kvlathe_library_headers)
  endif()
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(kvlathe_${ARG_NAME} PUBLIC kvlathe_${dep})
  endforeach()
  if(KVLATHE_UNITY_LIBRARIES)
    target_link_libraries(kvlathe_${ARG_NAME} PRIVATE kvlathe_together)
  endif()
endfunction()

# Most of the time of a checked build went into optimising tests, whose time is spent in libraries. In release
# literal methods stand in some of them, so there the first ring optimises them less, and the second as the libraries.
if(KVLATHE_SANITIZE)
  set(KVLATHE_TEST_FLAGS -O0)
elseif(NOT KVLATHE_SECOND_RING)
  set(KVLATHE_TEST_FLAGS -O1)
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

# kvl_add_cases(TARGET spec_test NAME spec_test FILTER * SHARDS 1 COST 0 LABELS gtest)
# One ctest entry for each shard of a test program: the program runs once, so that what a suite sets up is
# made once, and not once for each of its cases. Its results by case lie in test-results/NAME.xml, which
# scripts/test_summary.py counts.
function(kvl_add_cases)
  cmake_parse_arguments(ARG "" "TARGET;NAME;FILTER;SHARDS;COST" "LABELS" ${ARGN})
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${ARG_NAME})
    if(ARG_SHARDS GREATER 1)
      string(APPEND entry .${shard})
    endif()
    math(EXPR shard_idx "${shard} - 1")
    add_test(NAME ${entry} COMMAND ${ARG_TARGET} "--gtest_filter=${ARG_FILTER}"
      --gtest_output=xml:${CMAKE_BINARY_DIR}/test-results/${entry}.xml)
    set_tests_properties(${entry} PROPERTIES TIMEOUT 1800 COST ${ARG_COST} LABELS "${ARG_LABELS}"
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard_idx}")
  endforeach()
endfunction()

# kvl_test(NAME spec_test SRCS spec_test.cc DEPS kv [LIBS ...] [LABELS slow] [APART a_test.cc]
#          [SHARDS 2] [COST 60] [SECOND_RING A.*:B.*] [SANITIZED_IN_SECOND_RING C.*])
#   APART: sources with names of their own that others have too, never compiled together with them.
#   LABELS slow: a test of whole models, neither built nor run under the sanitizers.
#   SHARDS: processes that share its cases; COST: about how many seconds it takes, the longest starts first.
#   SECOND_RING: cases (as --gtest_filter names them) that only `scripts/test.sh --all` runs;
#   SANITIZED_IN_SECOND_RING: cases that only it runs under the sanitizers. docs/testing.md says which and why.
#   A program of which all cases (*) are there is not built in the first ring.
function(kvl_test)
  cmake_parse_arguments(ARG "" "NAME;SHARDS;COST;SECOND_RING;SANITIZED_IN_SECOND_RING" "SRCS;DEPS;LIBS;LABELS;APART"
    ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE kvlathe_flags ${ARG_LIBS} ${KVLATHE_TEST_LIBS})
  target_compile_options(${ARG_NAME} PRIVATE ${KVLATHE_TEST_FLAGS})
  target_precompile_headers(${ARG_NAME} REUSE_FROM kvlathe_test_headers)
  set_target_properties(${ARG_NAME} PROPERTIES UNITY_BUILD ${KVLATHE_UNITY_TESTS})
  set_property(SOURCE ${ARG_APART} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  # GCC loses a macro of its prefetch intrinsic between precompiled headers and -O0, and Eigen uses it.
  foreach(source IN LISTS ARG_SRCS)
    file(STRINGS ${source} eigen REGEX "^#include <Eigen")
    if(eigen AND "${KVLATHE_TEST_FLAGS}" STREQUAL "-O0")
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
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 0)
  endif()
  set(of_second_ring "${ARG_SECOND_RING}")
  if(KVLATHE_SANITIZE AND ARG_SANITIZED_IN_SECOND_RING)
    string(JOIN ":" of_second_ring ${of_second_ring} ${ARG_SANITIZED_IN_SECOND_RING})
  endif()
  set(of_first_ring *)
  if(of_second_ring)
    set(of_first_ring "-${of_second_ring}")
    kvl_add_cases(TARGET ${ARG_NAME} NAME ${ARG_NAME}.second FILTER ${of_second_ring} SHARDS 1 COST ${ARG_COST}
      LABELS gtest second ${ARG_LABELS})
  endif()
  if(of_second_ring STREQUAL "*")
    kvl_leave_to_second_ring(${ARG_NAME})
  else()
    kvl_add_cases(TARGET ${ARG_NAME} NAME ${ARG_NAME} FILTER ${of_first_ring} SHARDS ${ARG_SHARDS} COST ${ARG_COST}
      LABELS gtest ${ARG_LABELS})
  endif()
endfunction()

# kvl_benchmark(NAME linear_bench SRCS linear_bench.cc DEPS cpu_kernels)
# Not built under the sanitizers, whose timings mean nothing, nor in the first ring.
function(kvl_benchmark)
  if(KVLATHE_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;LIBS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  kvl_leave_to_second_ring(${ARG_NAME})
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
  set_property(SOURCE ${ARG_SRCS} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
