# The engine that runs chat templates (src/chat): Debian has no package of it, so scripts/fetch_jinja.sh brings
# its sources, as bootstrap.sh, test.sh and demo.sh do.
set(KVLATHE_JINJA ${CMAKE_SOURCE_DIR}/build/jinja CACHE PATH "Sources of llama.cpp's template engine")
if(NOT EXISTS ${KVLATHE_JINJA}/common/jinja/runtime.h)
  message(FATAL_ERROR "The template engine is not in ${KVLATHE_JINJA}; run scripts/fetch_jinja.sh")
endif()
# What the script made it from; another patch makes another engine.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/jinja.patch)
if(EXISTS ${KVLATHE_JINJA}/state)
  file(READ ${KVLATHE_JINJA}/state state)
  file(SHA256 ${CMAKE_SOURCE_DIR}/cmake/jinja.patch patch_hash)
  if(NOT state MATCHES ${patch_hash})
    message(FATAL_ERROR "The template engine in ${KVLATHE_JINJA} has another cmake/jinja.patch than this tree; run scripts/fetch_jinja.sh")
  endif()
endif()
file(GLOB sources CONFIGURE_DEPENDS ${KVLATHE_JINJA}/common/jinja/*.cpp)
list(FILTER sources EXCLUDE REGEX "/caps.cpp$")
add_library(jinja STATIC EXCLUDE_FROM_ALL ${sources} ${KVLATHE_JINJA}/common/json.cpp ${KVLATHE_JINJA}/common/unicode.cpp)
target_compile_options(jinja PRIVATE -O2 -w -g0)
kvl_compile_together(jinja ON)  # nobody changes its sources here
# It specialises templates that the other sources use.
set_property(SOURCE ${KVLATHE_JINJA}/common/json.cpp PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
# Its checks of the kinds of a template's nodes would end the program.
target_compile_definitions(jinja PRIVATE NDEBUG)
target_include_directories(jinja SYSTEM PUBLIC ${KVLATHE_JINJA}/common ${CMAKE_SOURCE_DIR}/src/chat/engine)
target_link_libraries(jinja PUBLIC nlohmann_json::nlohmann_json)
if(KVLATHE_SANITIZE)
  target_compile_options(jinja PRIVATE -fsanitize=${KVLATHE_SANITIZE} -fno-omit-frame-pointer -O1)
endif()
