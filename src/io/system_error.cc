#include "io/system_error.h"

#include <cerrno>
#include <system_error>

namespace kvlathe {
namespace {

StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return StatusCode::kNotFound;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return StatusCode::kResourceExhausted;
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return StatusCode::kInvalidArgument;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

Status SystemError(int error_number, std::string_view action, std::string_view path) {
  return Error(CodeOf(error_number), "{}: {}: {}", path, action,
               std::generic_category().message(error_number));
}

}  // namespace kvlathe
