#include "engine/prefixes/prefix_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "base/units.h"
#include "io/files.h"
#include "io/system_error.h"

namespace kvlathe {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOwnerAlone = 0600;
constexpr std::string_view kSecretName = ".secret";
constexpr size_t kSecretBytes = 64;

// A file that is open to read: it stays what it is, whatever its name comes to mean.
class OpenPrefixFile {
 public:
  static StatusOr<OpenPrefixFile> Open(const std::string& path) {
    OpenPrefixFile file(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.fd_ < 0) {
      if (errno == ELOOP) return Error(StatusCode::kDataLoss, "{}: a link, not a file", path);
      return SystemError(errno, "cannot open", path);
    }
    struct stat info = {};
    if (::fstat(file.fd_, &info) != 0) return SystemError(errno, "cannot read", path);
    if (!S_ISREG(info.st_mode)) {
      return Error(StatusCode::kDataLoss, "{}: not a regular file", path);
    }
    if (info.st_uid != ::geteuid()) {
      return Error(StatusCode::kDataLoss, "{}: belongs to another user", path);
    }
    file.n_bytes_ = info.st_size;
    return file;
  }
  OpenPrefixFile(OpenPrefixFile&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        n_bytes_(other.n_bytes_) {}
  OpenPrefixFile& operator=(OpenPrefixFile&&) = delete;
  ~OpenPrefixFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  int64_t n_bytes() const { return n_bytes_; }

  StatusOr<std::string> Read(int64_t offset, int64_t n_bytes) const {
    std::string bytes(static_cast<size_t>(n_bytes), '\0');
    for (int64_t n_read = 0; n_read < n_bytes;) {
      const ssize_t n = ::pread(fd_, bytes.data() + n_read, static_cast<size_t>(n_bytes - n_read),
                                offset + n_read);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return SystemError(errno, "cannot read", path_);
      if (n == 0) return Error(StatusCode::kDataLoss, "{}: damaged: it ends too early", path_);
      n_read += n;
    }
    return bytes;
  }
  StatusOr<std::string> ReadHead() const {
    KVL_ASSIGN_OR_RETURN(const std::string start, Read(0, std::min(kPrefixStartBytes, n_bytes_)));
    KVL_ASSIGN_OR_RETURN(const int64_t head_bytes,
                         PrefixHeadBytes(std::as_bytes(std::span(start)), n_bytes_, path_));
    return Read(0, head_bytes);
  }

 private:
  OpenPrefixFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
  int64_t n_bytes_ = 0;
};

std::string RandomSecret() {
  std::random_device device;
  std::string secret;
  while (secret.size() < kSecretBytes) secret += fmt::format("{:08x}", device());
  return secret;
}

Status NoFolder(const std::string& path, const std::error_code& code) {
  return SystemError(code.value(), "cannot read", path);
}

}  // namespace

StatusOr<PrefixFolder> PrefixFolder::Open(const std::string& path, int64_t max_bytes) {
  if (!DirectoryExists(path)) {
    std::error_code code;
    const fs::path parent = fs::path(path).parent_path();
    if (!parent.empty()) fs::create_directories(parent, code);
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      return SystemError(errno, "cannot create", path);
    }
  }
  PrefixFolder folder(path, max_bytes);
  KVL_RETURN_IF_ERROR(folder.ReadSecret());
  return folder;
}

StatusOr<PrefixFolder> PrefixFolder::OpenExisting(const std::string& path) {
  if (!DirectoryExists(path)) {
    return Error(StatusCode::kNotFound, "{}: there is no such folder", path);
  }
  return PrefixFolder(path, 0);
}

std::string PrefixFolder::PathOf(std::string_view name) const {
  return (fs::path(path_) / name).string();
}

// Who comes second links in vain and takes the first one's.
Status PrefixFolder::ReadSecret() {
  const std::string path = PathOf(kSecretName);
  if (!FileExists(path)) {
    const std::string own = fmt::format("{}-{}", path, ::getpid());
    {
      KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(own, kOwnerAlone));
      const std::string secret = RandomSecret();
      KVL_RETURN_IF_ERROR(file.Write(secret.data(), std::ssize(secret)));
      KVL_RETURN_IF_ERROR(file.Commit());
    }
    const bool is_there = ::link(own.c_str(), path.c_str()) == 0 || errno == EEXIST;
    const int error_number = errno;
    ::unlink(own.c_str());
    if (!is_there) return SystemError(error_number, "cannot create", path);
  }
  KVL_ASSIGN_OR_RETURN(secret_, ReadTextFile(path, 4096));
  if (secret_.size() == kSecretBytes) return OkStatus();
  return Error(StatusCode::kDataLoss, "{}: damaged: remove it, and the entries beside it", path);
}

StatusOr<std::vector<PrefixFolder::File>> PrefixFolder::List() const {
  std::error_code code;
  fs::directory_iterator entry(path_, code);
  if (code) return NoFolder(path_, code);
  std::vector<File> files;
  for (; entry != fs::directory_iterator(); entry.increment(code)) {
    if (code) return NoFolder(path_, code);
    const std::string name = entry->path().filename().string();
    struct stat info = {};
    if (!name.ends_with(kPrefixFileEnding) || ::lstat(entry->path().c_str(), &info) != 0) continue;
    const int64_t used_at = info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
    files.push_back({name, info.st_size, used_at});
  }
  return files;
}

StatusOr<PrefixFacts> PrefixFolder::ReadFacts(const std::string& name) const {
  KVL_ASSIGN_OR_RETURN(const OpenPrefixFile file, OpenPrefixFile::Open(PathOf(name)));
  KVL_ASSIGN_OR_RETURN(const std::string head, file.ReadHead());
  return ParsePrefixHead(std::as_bytes(std::span(head)), PathOf(name));
}

StatusOr<std::string> PrefixFolder::ReadSequence(const std::string& name) const {
  KVL_ASSIGN_OR_RETURN(const OpenPrefixFile file, OpenPrefixFile::Open(PathOf(name)));
  KVL_ASSIGN_OR_RETURN(const std::string head, file.ReadHead());
  return file.Read(std::ssize(head), file.n_bytes() - std::ssize(head));
}

StatusOr<AtomicFile> PrefixFolder::Create(const std::string& name) const {
  return AtomicFile::Create(PathOf(name), kOwnerAlone);
}

StatusOr<std::vector<std::string>> PrefixFolder::MakeRoomFor(int64_t n_bytes) const {
  if (n_bytes > max_bytes_) {
    return Error(StatusCode::kResourceExhausted,
                 "{}: an entry of {} is larger than the bound of {}", path_, FormatBytes(n_bytes),
                 FormatBytes(max_bytes_));
  }
  KVL_ASSIGN_OR_RETURN(std::vector<File> files, List());
  int64_t used_bytes = 0;
  for (const File& file : files) used_bytes += file.n_bytes;
  std::ranges::sort(files, {}, &File::used_at);
  std::vector<std::string> removed;
  for (const File& file : files) {
    if (used_bytes + n_bytes <= max_bytes_) break;
    KVL_RETURN_IF_ERROR(Remove(file.name));
    used_bytes -= file.n_bytes;
    removed.push_back(file.name);
  }
  return removed;
}

void PrefixFolder::NoteUse(const std::string& name) const {
  ::utimensat(AT_FDCWD, PathOf(name).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

Status PrefixFolder::Remove(const std::string& name) const {
  const std::string path = PathOf(name);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return OkStatus();
  return SystemError(errno, "cannot remove", path);
}

void PrefixFolder::RemoveUnfinished() const {
  // A writer adds to its file all the time; what is this old has none.
  constexpr auto kAbandoned = std::chrono::minutes(10);
  std::error_code code;
  for (fs::directory_iterator entry(path_, code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (name.find(std::string(kPrefixFileEnding) + ".tmp-") == std::string::npos) continue;
    std::error_code gone;
    const auto changed_at = fs::last_write_time(entry->path(), gone);
    if (gone || fs::file_time_type::clock::now() - changed_at < kAbandoned) continue;
    ::unlink(entry->path().c_str());
  }
}

}  // namespace kvlathe
