// A file lock lets one writer at a time at a file that is written more than once.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"

namespace kvlathe {

// Holds `path`.lock, which is gone afterwards. The system lets go of a lock whose process ends, so
// what a killed one leaves behind is no obstacle.
class FileLock {
 public:
  // kInvalidArgument, at once, if somebody else holds it.
  static StatusOr<FileLock> Take(const std::string& path);
  // Nothing, at once, if somebody else holds it.
  static StatusOr<std::optional<FileLock>> TryTake(const std::string& path);

  FileLock(FileLock&& other) noexcept
      : lock_path_(std::move(other.lock_path_)), fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  FileLock(std::string lock_path, int fd) : lock_path_(std::move(lock_path)), fd_(fd) {}

  std::string lock_path_;
  int fd_;
};

}  // namespace kvlathe
