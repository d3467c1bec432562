// KVL_CHECK guards invariants: it stops the process with file, line and both values. Input never
// reaches it.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace kvlathe::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what.c_str());
  std::abort();
}

}  // namespace kvlathe::internal

#define KVL_CHECK(cond)                                            \
  do {                                                             \
    if (!(cond)) [[unlikely]]                                      \
      ::kvlathe::internal::CheckFailed(__FILE__, __LINE__, #cond); \
  } while (false)

#define KVL_CHECK_OP(a, op, b)                                                                \
  do {                                                                                        \
    const auto kvl_a = (a);                                                                   \
    const auto kvl_b = (b);                                                                   \
    if (!(kvl_a op kvl_b)) [[unlikely]]                                                       \
      ::kvlathe::internal::CheckFailed(                                                       \
          __FILE__, __LINE__, fmt::format("{} {} {} ({} vs {})", #a, #op, #b, kvl_a, kvl_b)); \
  } while (false)

#define KVL_CHECK_EQ(a, b) KVL_CHECK_OP(a, ==, b)
#define KVL_CHECK_LE(a, b) KVL_CHECK_OP(a, <=, b)
#define KVL_CHECK_LT(a, b) KVL_CHECK_OP(a, <, b)
#define KVL_CHECK_GE(a, b) KVL_CHECK_OP(a, >=, b)
#define KVL_CHECK_GT(a, b) KVL_CHECK_OP(a, >, b)

// Preconditions of kernels: checked in debug and sanitizer builds only.
#ifdef NDEBUG
#define KVL_DCHECK(cond) static_cast<void>(sizeof(!(cond)))
#else
#define KVL_DCHECK(cond) KVL_CHECK(cond)
#endif
