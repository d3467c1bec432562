# XGrammar (src/structured) is what structured output needs. Debian has no package of it, so scripts/bootstrap.sh brings
# its sources (scripts/fetch_xgrammar.sh). Only a build that is told so goes without: its server refuses what needs a grammar.
set(KVLATHE_XGRAMMAR ${CMAKE_SOURCE_DIR}/build/xgrammar CACHE PATH "Sources of XGrammar 0.2.8")
set(with_grammar ON)
if(DEFINED ENV{KVLATHE_GRAMMAR})
  set(with_grammar $ENV{KVLATHE_GRAMMAR})
endif()
option(KVLATHE_GRAMMAR "Structured output: response_format and strict tools" ${with_grammar})
if(KVLATHE_GRAMMAR AND NOT EXISTS ${KVLATHE_XGRAMMAR}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "XGrammar is not in ${KVLATHE_XGRAMMAR}. scripts/fetch_xgrammar.sh fetches it. "
    "Without a package index configure with -DKVLATHE_GRAMMAR=OFF: the server then refuses response_format and strict tools.")
endif()
if(NOT KVLATHE_GRAMMAR)
  message(STATUS "KVLATHE_GRAMMAR is OFF: the server refuses response_format and strict tools")
else()
  # Not by its own CMake file, which turns link-time optimisation and warnings as errors on for everybody.
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${KVLATHE_XGRAMMAR}/cpp/*.cc)
  list(FILTER sources EXCLUDE REGEX "/cpp/tvm_ffi/")
  add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${sources})
  target_compile_features(xgrammar PRIVATE cxx_std_17)
  # Nobody changes its sources here: compiled together they take a third of the time.
  kvl_compile_together(xgrammar ON)
  # It has a name that another source has too, and gives the other processor something to do.
  set_property(SOURCE ${KVLATHE_XGRAMMAR}/cpp/json_schema_converter.cc PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  # The first ring tests what kvlathe makes of it, not how fast it is: -O1 takes two thirds of the time.
  if(KVLATHE_SECOND_RING)
    target_compile_options(xgrammar PRIVATE -O2 -w -g0)
  else()
    target_compile_options(xgrammar PRIVATE -O1 -w -g0)
  endif()
  target_include_directories(xgrammar SYSTEM PUBLIC ${KVLATHE_XGRAMMAR}/include
    ${KVLATHE_XGRAMMAR}/3rdparty/picojson ${KVLATHE_XGRAMMAR}/3rdparty/dlpack/include)
  # Its messages go to src/structured/xgrammar_messages.cc.
  target_compile_definitions(xgrammar PUBLIC
    XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0 XGRAMMAR_LOG_CUSTOMIZE=1)
  if(KVLATHE_SANITIZE)
    target_compile_options(xgrammar PRIVATE -fsanitize=${KVLATHE_SANITIZE} -fno-omit-frame-pointer -O1)
  endif()
endif()
