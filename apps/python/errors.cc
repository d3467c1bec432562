#include "python/errors.h"

#include <nanobind/nanobind.h>

namespace kvlathe::python {
namespace {

namespace nb = nanobind;

// Of kvlathe.errors.
const char* ClassOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return "InvalidArgumentError";
    case StatusCode::kNotFound:
      return "NotFoundError";
    case StatusCode::kDataLoss:
      return "DataLossError";
    case StatusCode::kResourceExhausted:
      return "ResourceExhaustedError";
    case StatusCode::kUnimplemented:
      return "UnsupportedError";
    case StatusCode::kFailedPrecondition:
      return "FailedPreconditionError";
    case StatusCode::kUnavailable:
      return "UnavailableError";
    default:
      return "KvlatheError";
  }
}

}  // namespace

void RegisterErrors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const StatusError& error) {
      const nb::object kind =
          nb::module_::import_("kvlathe.errors").attr(ClassOf(error.status().code()));
      PyErr_SetString(kind.ptr(), error.what());
    }
  });
}

}  // namespace kvlathe::python
