#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/system_error.h"

namespace kvlathe {

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, "cannot open", path);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return SystemError(error, "cannot inspect", path);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error(StatusCode::kInvalidArgument, "{}: not a regular file", path);
  }
  void* data = nullptr;
  if (info.st_size > 0) {
    data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) return SystemError(error, "cannot map", path);
  return MappedFile(path, static_cast<std::byte*>(data), info.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(n_bytes_));
}

void MappedFile::ReleasePages(const std::byte* begin, int64_t n_bytes) const {
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  const int64_t offset = begin - data_;
  const int64_t first = (offset + page_bytes - 1) / page_bytes * page_bytes;
  // The last page of the file has no other user, so the file's end counts as a page's end.
  const int64_t end = offset + n_bytes;
  const int64_t last = end == n_bytes_ ? end : end / page_bytes * page_bytes;
  if (first < last) ::madvise(data_ + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

}  // namespace kvlathe
