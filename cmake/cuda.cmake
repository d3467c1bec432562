# Builds for a GPU (docs/cuda.md). The toolkit is the one whose nvcc is on the PATH, or what scripts/fetch_cuda.sh has
# brought from NVIDIA's packages on PyPI.
option(KVLATHE_CUDA "Libraries, tests and a program for GPUs too, beside those for the emulated device" OFF)
set(KVLATHE_CUDA_ARCHITECTURES 80 89 90a 100 120 CACHE STRING "GPUs that kernels are compiled for, as nvcc names them")
find_program(KVLATHE_NVCC nvcc PATHS ${CMAKE_SOURCE_DIR}/build/cuda_toolkit/bin DOC "The compiler of kernels")
find_program(KVLATHE_NVDISASM nvdisasm PATHS ${CMAKE_SOURCE_DIR}/build/cuda_toolkit/bin DOC "Reads what nvcc has made")
if(NOT KVLATHE_CUDA)
  return()
endif()
if(NOT KVLATHE_NVCC)
  message(FATAL_ERROR "KVLATHE_CUDA needs nvcc, which is neither on the PATH nor in build/cuda_toolkit; "
    "run scripts/bootstrap.sh --with-cuda")
endif()
# Where it is installed says nvcc itself, whose name on the PATH may be that of a script.
execute_process(COMMAND ${KVLATHE_NVCC} --dryrun -x cu -c /dev/null ERROR_VARIABLE KVLATHE_DRYRUN OUTPUT_QUIET)
string(REGEX MATCH "TOP=([^\n]+)" KVLATHE_DRYRUN "${KVLATHE_DRYRUN}")
get_filename_component(KVLATHE_CUDA_FOLDER "${CMAKE_MATCH_1}" REALPATH)
message(STATUS "CUDA: ${KVLATHE_CUDA_FOLDER}, for ${KVLATHE_CUDA_ARCHITECTURES}")

find_library(KVLATHE_CUDART cudart_static PATHS ${KVLATHE_CUDA_FOLDER} PATH_SUFFIXES lib64 lib NO_DEFAULT_PATH REQUIRED)
find_package(Threads REQUIRED)
# The toolkit's headers and the runtime, which is linked into the program.
add_library(cuda_toolkit INTERFACE)
target_include_directories(cuda_toolkit SYSTEM INTERFACE ${KVLATHE_CUDA_FOLDER}/include)
target_link_libraries(cuda_toolkit INTERFACE ${KVLATHE_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)

set(KVLATHE_NVCC_FLAGS -std=c++20 -O3 --expt-relaxed-constexpr -I ${CMAKE_SOURCE_DIR}/src -lineinfo -DNDEBUG
  -Xcompiler=-fPIC,-Wno-psabi)

# kvl_nvcc(RESULT SOURCE OUTPUT x.o FLAGS ...): compiles a source of kernels. Like other compilers behind the
# compiler cache, where there is one.
function(kvl_nvcc)
  cmake_parse_arguments(ARG "" "SOURCE;OUTPUT" "FLAGS" ${ARGN})
  get_filename_component(folder ${ARG_OUTPUT} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(RELATIVE_PATH shown ${CMAKE_SOURCE_DIR} ${ARG_SOURCE})
  add_custom_command(OUTPUT ${ARG_OUTPUT}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${KVLATHE_NVCC} ${KVLATHE_NVCC_FLAGS} ${ARG_FLAGS}
      -MD -MF ${ARG_OUTPUT}.d -o ${ARG_OUTPUT} ${ARG_SOURCE}
    DEPENDS ${ARG_SOURCE} DEPFILE ${ARG_OUTPUT}.d COMMENT "nvcc ${shown}" VERBATIM COMMAND_EXPAND_LISTS)
endfunction()
