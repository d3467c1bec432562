#include "hub/part_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "io/system_error.h"

namespace kvlathe {

StatusOr<PartFile> PartFile::Open(const std::string& path) {
  // O_NOFOLLOW: a link in its place could lead the bytes anywhere.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return SystemError(errno, "cannot create", path);
  PartFile file(path, fd);
  KVL_RETURN_IF_ERROR(file.ReadAll());
  return file;
}

PartFile::PartFile(PartFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      n_bytes_(other.n_bytes_),
      hash_(other.hash_) {}

PartFile::~PartFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status PartFile::ReadAll() {
  std::vector<std::byte> buffer(1 << 20);
  while (true) {
    const ssize_t n = ::pread(fd_, buffer.data(), buffer.size(), n_bytes_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(errno, "cannot read", path_);
    if (n == 0) return OkStatus();
    hash_.Add(std::span(buffer).first(static_cast<size_t>(n)));
    n_bytes_ += n;
  }
}

Status PartFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), n_bytes_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(errno, "cannot write", path_);
    const std::string_view written = bytes.substr(0, static_cast<size_t>(n));
    hash_.Add(std::as_bytes(std::span(written)));
    n_bytes_ += n;
    bytes.remove_prefix(written.size());
  }
  return OkStatus();
}

Status PartFile::StartOver() {
  if (::ftruncate(fd_, 0) != 0) return SystemError(errno, "cannot shorten", path_);
  n_bytes_ = 0;
  hash_ = {};
  return OkStatus();
}

Status PartFile::MoveTo(const std::string& path) {
  if (::fsync(fd_) != 0) return SystemError(errno, "cannot write", path_);
  if (::close(std::exchange(fd_, -1)) != 0) return SystemError(errno, "cannot write", path_);
  if (std::rename(path_.c_str(), path.c_str()) != 0) {
    return SystemError(errno, "cannot replace", path);
  }
  return OkStatus();
}

Status PartFile::Remove() {
  if (::unlink(path_.c_str()) != 0) return SystemError(errno, "cannot remove", path_);
  return OkStatus();
}

}  // namespace kvlathe
