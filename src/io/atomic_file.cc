#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "io/system_error.h"

namespace kvlathe {
namespace {

// A rename is on disk only once its folder is.
void SyncFolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

StatusOr<AtomicFile> AtomicFile::Create(const std::string& path, mode_t mode) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Error(StatusCode::kInvalidArgument, "{}: cannot write: not a regular file", path);
  }
  static std::atomic<uint32_t> counter{0};
  while (true) {
    std::string temporary_path = fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter++);
    // Not mkstemp: its files are private to the user whatever the umask says.
    const int fd = ::open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd >= 0) return AtomicFile(path, std::move(temporary_path), fd);
    if (errno != EEXIST) return SystemError(errno, "cannot create", path);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

Status AtomicFile::Write(const void* data, int64_t n_bytes) {
  const char* at = static_cast<const char*>(data);
  while (n_bytes > 0) {
    constexpr int64_t kMaxBytesPerCall = int64_t{1} << 30;
    const ssize_t n_written =
        ::write(fd_, at, static_cast<size_t>(std::min(n_bytes, kMaxBytesPerCall)));
    if (n_written < 0) {
      if (errno == EINTR) continue;
      return SystemError(errno, "cannot write", path_);
    }
    at += n_written;
    n_bytes -= n_written;
  }
  return OkStatus();
}

Status AtomicFile::Commit() {
  if (::fsync(fd_) != 0) return SystemError(errno, "cannot write", path_);
  if (::close(std::exchange(fd_, -1)) != 0) return SystemError(errno, "cannot write", path_);
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return SystemError(errno, "cannot replace", path_);
  }
  temporary_path_.clear();
  SyncFolderOf(path_);
  return OkStatus();
}

}  // namespace kvlathe
