// An atomic file appears under its name only when it is complete and on disk.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace kvlathe {

// Writes go to a temporary file in the folder of `path`; Commit syncs and renames it. Without a
// Commit that succeeds, the temporary file is removed and what stood at `path` stays as it was.
class AtomicFile {
 public:
  // Fails if the folder does not take a new file, or if `path` is there and is no regular file (a
  // rename would replace a device or a directory). `mode`: who may read and write it, less what the
  // umask takes away.
  static StatusOr<AtomicFile> Create(const std::string& path, mode_t mode = 0666);

  AtomicFile(AtomicFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_path_(std::exchange(other.temporary_path_, {})),
        fd_(std::exchange(other.fd_, -1)) {}
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  // Unbuffered: callers pass large pieces.
  Status Write(const void* data, int64_t n_bytes);
  Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary_path, int fd)
      : path_(std::move(path)), temporary_path_(std::move(temporary_path)), fd_(fd) {}

  std::string path_;
  std::string temporary_path_;  // empty once committed
  int fd_ = -1;
};

}  // namespace kvlathe
