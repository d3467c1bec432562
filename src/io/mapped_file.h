// A MappedFile is a whole file, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace kvlathe {

class MappedFile {
 public:
  // A regular file of any size, also an empty one. The size is the one at this moment: whoever
  // truncates the file later takes the pages away, and an access to them ends the process (SIGBUS).
  static StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, nullptr)),
        n_bytes_(std::exchange(other.n_bytes_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(n_bytes_, other.n_bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(n_bytes_)}; }
  int64_t n_bytes() const { return n_bytes_; }
  const std::string& path() const { return path_; }

  bool Contains(const std::byte* at) const { return at >= data_ && at < data_ + n_bytes_; }
  // Gives the pages wholly inside [begin, begin + n_bytes) back; a later access reads them again.
  void ReleasePages(const std::byte* begin, int64_t n_bytes) const;

 private:
  MappedFile(std::string path, std::byte* data, int64_t n_bytes)
      : path_(std::move(path)), data_(data), n_bytes_(n_bytes) {}

  std::string path_;
  std::byte* data_ = nullptr;
  int64_t n_bytes_ = 0;
};

}  // namespace kvlathe
