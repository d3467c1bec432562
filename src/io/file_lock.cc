#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/system_error.h"

namespace kvlathe {
namespace {

// Whether the open file is the one that has this name: who held it before may have removed it.
bool HasName(int fd, const std::string& path) {
  struct stat open_file = {}, named = {};
  return ::fstat(fd, &open_file) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

}  // namespace

StatusOr<FileLock> FileLock::Take(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(std::optional<FileLock> lock, TryTake(path));
  if (lock.has_value()) return *std::move(lock);
  return Error(StatusCode::kInvalidArgument,
               "{}: another process is writing it; wait until it ends, or give another file", path);
}

StatusOr<std::optional<FileLock>> FileLock::TryTake(const std::string& path) {
  const std::string lock_path = path + ".lock";
  while (true) {
    const int fd = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return SystemError(errno, "cannot create", lock_path);
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (HasName(fd, lock_path)) return std::optional<FileLock>(FileLock(lock_path, fd));
      ::close(fd);
      continue;
    }
    const int error_number = errno;
    ::close(fd);
    if (error_number == EINTR) continue;
    if (error_number != EWOULDBLOCK) return SystemError(error_number, "cannot lock", lock_path);
    return std::nullopt;
  }
}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  ::unlink(lock_path_.c_str());  // while it is held: nobody else can have taken it
  ::close(fd_);
}

}  // namespace kvlathe
