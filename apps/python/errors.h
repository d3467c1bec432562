// Errors of the library as exceptions of Python: each code has a class of kvlathe.errors, and its
// message is the library's.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "base/status.h"

namespace kvlathe::python {

// Carries an error through nanobind, which has RegisterErrors' translator make an exception of it.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)), message_(MessageOf(status_)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
  std::string message_;
};

// Throws an error.
inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}
template <typename T>
T ValueOrThrow(StatusOr<T> value) {
  if (!value.ok()) throw StatusError(value.status());
  return *std::move(value);
}

// Has StatusError become the exceptions of kvlathe.errors.
void RegisterErrors();

}  // namespace kvlathe::python
