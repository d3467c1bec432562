#include "hub/hub_cache.h"

#include <absl/strings/ascii.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "io/files.h"
#include "io/system_error.h"

namespace kvlathe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 100'000;

Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? SystemError(error.value(), "cannot create", path.string()) : OkStatus();
}

}  // namespace

HubCache::HubCache(const std::string& folder, const HubModel& model) {
  const std::string name = "models--" + model.owner + "--" + model.name;
  root_ = folder + "/" + name;
  locks_ = folder + "/.locks/" + name;
}

std::optional<std::string> HubCache::Commit() const {
  StatusOr<std::string> commit = ReadTextFile(root_ + "/refs/main", /*max_bytes=*/1024);
  if (!commit.ok()) return std::nullopt;
  absl::StripAsciiWhitespace(&*commit);
  if (!IsSafeWord(*commit)) return std::nullopt;
  return *std::move(commit);
}

std::vector<HubFile> HubCache::FilesOf(const std::string& commit) const {
  std::vector<HubFile> files;
  const fs::path snapshot = SnapshotPath(commit);
  std::error_code error;
  fs::recursive_directory_iterator entry(snapshot, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code is_broken;
    if (!entry->is_regular_file(is_broken) || is_broken) continue;  // follows links
    const auto n_bytes = static_cast<int64_t>(entry->file_size(is_broken));
    if (is_broken || files.size() == kMostFiles) continue;
    files.push_back(
        {.path = entry->path().lexically_relative(snapshot).string(), .n_bytes = n_bytes});
  }
  std::sort(files.begin(), files.end(),
            [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return files;
}

Status HubCache::MakeFolders() const {
  KVL_RETURN_IF_ERROR(MakeFolder(root_ + "/blobs"));
  return MakeFolder(locks_);
}

Status HubCache::Link(const std::string& commit, const std::string& path,
                      const std::string& etag) const {
  const fs::path link = fs::path(SnapshotPath(commit)) / path;
  KVL_RETURN_IF_ERROR(MakeFolder(link.parent_path()));
  std::string target = "../../";
  for (const char c : path) target += c == '/' ? "../" : "";
  target += "blobs/" + etag;
  std::error_code is_no_link;
  if (fs::read_symlink(link, is_no_link) == target) return OkStatus();
  // Another process may do the same: either's link is right, and none is ever missing.
  const std::string temporary = fmt::format("{}.tmp-{}", link.string(), ::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    return SystemError(errno, "cannot create the link", link.string());
  }
  if (std::rename(temporary.c_str(), link.c_str()) == 0) return OkStatus();
  const int error_number = errno;
  ::unlink(temporary.c_str());
  return SystemError(error_number, "cannot create the link", link.string());
}

Status HubCache::SetCommit(const std::string& commit) const {
  if (Commit() == commit) return OkStatus();
  KVL_RETURN_IF_ERROR(MakeFolder(root_ + "/refs"));
  return WriteFileAtomically(root_ + "/refs/main", commit);
}

}  // namespace kvlathe
