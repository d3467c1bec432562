// A file that grows while it is fetched, and whose hash is known when it is whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "base/status.h"

namespace kvlathe {

class PartFile {
 public:
  // Opens the file, or makes it, and reads what is there already.
  static StatusOr<PartFile> Open(const std::string& path);

  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();  // the file stays

  int64_t n_bytes() const { return n_bytes_; }
  // At its end. kResourceExhausted where the disk is full: what fitted stays.
  Status Write(std::string_view bytes);
  Status StartOver();
  // Of all bytes.
  std::string Sha256OfAll() const { return hash_.HexDigest(); }
  // Gives the file its name once all of it is on disk, in place of what had that name.
  Status MoveTo(const std::string& path);
  Status Remove();

 private:
  PartFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status ReadAll();

  std::string path_;
  int fd_;
  int64_t n_bytes_ = 0;
  Sha256 hash_;
};

}  // namespace kvlathe
