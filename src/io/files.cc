#include "io/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "io/atomic_file.h"
#include "io/system_error.h"

namespace kvlathe {
namespace {

// Reads to the end of `fd`, which may be a pipe and so of unknown size.
Status ReadAll(int fd, const std::string& path, int64_t max_bytes, std::string& text) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return SystemError(errno, "cannot inspect", path);
  constexpr int64_t kPieceBytes = 64 << 10;
  // One byte more than allowed is enough to know that there is more.
  const int64_t limit_bytes = max_bytes + 1;
  int64_t n_bytes = 0;
  text.resize(static_cast<size_t>(std::clamp<int64_t>(info.st_size + 1, 1, limit_bytes)));
  while (true) {
    const ssize_t n_read = ::read(fd, text.data() + n_bytes, text.size() - n_bytes);
    if (n_read < 0) {
      if (errno == EINTR) continue;
      return SystemError(errno, "cannot read", path);
    }
    n_bytes += n_read;
    if (n_read == 0 || n_bytes == limit_bytes) break;
    if (n_bytes == static_cast<int64_t>(text.size())) {
      text.resize(static_cast<size_t>(std::min(limit_bytes, 2 * n_bytes + kPieceBytes)));
    }
  }
  text.resize(static_cast<size_t>(n_bytes));
  if (n_bytes > max_bytes) {
    return Error(StatusCode::kInvalidArgument, "{}: larger than the {} bytes allowed here", path,
                 max_bytes);
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(errno, "cannot open", path);
  std::string text;
  const Status status = ReadAll(fd, path, max_bytes, text);
  ::close(fd);
  KVL_RETURN_IF_ERROR(status);
  return text;
}

StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, max_bytes));
  // The parser takes a NUL byte for the end of its input.
  if (const size_t at = text.find('\0'); at != std::string::npos) {
    return Error(StatusCode::kDataLoss, "{}: not JSON: NUL at byte {}", path, at);
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    return Error(StatusCode::kDataLoss, "{}: JSON syntax error at byte {} of {}", path, error.byte,
                 text.size());
  } catch (const nlohmann::json::exception&) {
    return Error(StatusCode::kDataLoss, "{}: JSON with a number out of range", path);
  }
}

Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  KVL_RETURN_IF_ERROR(file.Write(contents.data(), static_cast<int64_t>(contents.size())));
  return file.Commit();
}

bool FileExists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool DirectoryExists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace kvlathe
