# Third-party packages, all from Debian 12 (scripts/bootstrap.sh installs them).
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(dnnl REQUIRED)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)
find_package(Boost 1.81 REQUIRED)  # headers alone: Asio and Beast
find_package(prometheus-cpp REQUIRED CONFIG)

# The trainer (src/training/retrofit) is an optional part: libtorch is large, and the engine does not need it.
if(KVLATHE_SANITIZE)
  set(KVLATHE_RETROFIT OFF)
else()
  find_package(Torch QUIET)
  set(KVLATHE_RETROFIT ${Torch_FOUND})
  if(NOT Torch_FOUND)
    message(STATUS "libtorch was not found: kvlathe retrofit is left out (Debian: libtorch-dev)")
  endif()
  # Some libtorch bring headers of fmt, of another version than the library that the rest is built with.
  foreach(directory ${TORCH_INCLUDE_DIRS})
    if(EXISTS "${directory}/fmt/format.h")
      target_compile_definitions(torch INTERFACE FMT_HEADER_ONLY)
    endif()
  endforeach()
  # Several processes that train one model (src/training/retrofit/workers.cc); libtorch has gloo, but
  # its headers are a package of their own.
  find_path(KVLATHE_GLOO_HEADERS gloo/algorithm.h)
endif()
