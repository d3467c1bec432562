# NCCL and the CUDA runtime (src/comm/nccl_communicator.h), which Debian's main does not have: scripts/fetch_nccl.sh brings
# the packages that NVIDIA has on PyPI.
set(KVLATHE_NCCL_FOLDER ${CMAKE_SOURCE_DIR}/build/nccl CACHE PATH "The folder nvidia of those packages")
option(KVLATHE_NCCL "Groups of ranks that have a GPU each, by NCCL" OFF)
if(KVLATHE_NCCL)
  if(NOT EXISTS ${KVLATHE_NCCL_FOLDER}/nccl/include/nccl.h)
    message(FATAL_ERROR "NCCL is not in ${KVLATHE_NCCL_FOLDER}; run scripts/fetch_nccl.sh")
  endif()
  add_library(nccl INTERFACE)
  target_include_directories(nccl SYSTEM INTERFACE
    ${KVLATHE_NCCL_FOLDER}/nccl/include ${KVLATHE_NCCL_FOLDER}/cuda_runtime/include)
  target_link_libraries(nccl INTERFACE
    ${KVLATHE_NCCL_FOLDER}/nccl/lib/libnccl.so.2 ${KVLATHE_NCCL_FOLDER}/cuda_runtime/lib/libcudart.so.12)
endif()
