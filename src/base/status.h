// Errors that input can cause travel as absl::Status; a broken invariant stops the process
// (check.h).
//
// The code decides the exit status of the command line and the HTTP status of the server:
//   kInvalidArgument   the user asked for something that cannot be (exit 2, HTTP 400)
//   kNotFound          a file or name does not exist (exit 1, HTTP 404)
//   kDataLoss          a file is damaged or not what it claims to be (exit 1)
//   kResourceExhausted memory, KV budget or disk (exit 1, HTTP 503)
//   kUnimplemented     a well-formed input that this build does not support (exit 1)
//   kInternal          the system refused something it should allow (exit 1)
// A message is one line: what, where, what to do.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvlathe {

using absl::OkStatus;
using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

// Error(StatusCode::kNotFound, "{}: no such file", path)
template <typename... Args>
Status Error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

inline std::string MessageOf(const Status& status) { return std::string(status.message()); }

}  // namespace kvlathe

#define KVL_STATUS_CONCAT_INNER(a, b) a##b
#define KVL_STATUS_CONCAT(a, b) KVL_STATUS_CONCAT_INNER(a, b)

// Returns from the calling function if `expr` (a Status) is an error.
#define KVL_RETURN_IF_ERROR(expr)          \
  do {                                     \
    ::kvlathe::Status kvl_status = (expr); \
    if (!kvl_status.ok()) [[unlikely]]     \
      return kvl_status;                   \
  } while (false)

// KVL_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
#define KVL_ASSIGN_OR_RETURN(lhs, expr) \
  KVL_ASSIGN_OR_RETURN_IMPL(KVL_STATUS_CONCAT(kvl_status_or_, __LINE__), lhs, expr)
#define KVL_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) [[unlikely]]                     \
    return std::move(tmp).status();               \
  lhs = *std::move(tmp)
