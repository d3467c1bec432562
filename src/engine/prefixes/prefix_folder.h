// The folder of a prefix store on disk: a file an entry, the owner's alone, within a bound of
// bytes. Several processes may use one folder at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "engine/prefixes/prefix_file.h"
#include "io/atomic_file.h"

namespace kvlathe {

// Files appear whole and are never changed afterwards; each is under the name that its contents
// give it (PrefixFileName). The time of a file's last change is when it was used last. Names in the
// calls are those of files, without the folder.
class PrefixFolder {
 public:
  struct File {
    std::string name;
    int64_t n_bytes = 0;
    int64_t used_at = 0;  // nanoseconds since 1970
  };

  // Makes the folder (0700) and its secret where they are not there. max_bytes: of all files
  // together, at least 1.
  static StatusOr<PrefixFolder> Open(const std::string& path, int64_t max_bytes);
  // One that is there, to look at and to remove from. kNotFound where it is not.
  static StatusOr<PrefixFolder> OpenExisting(const std::string& path);

  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const;
  // Whom entries of this salt belong to. The folder's secret is part of it, so that the digest of a
  // key says nothing of the key.
  std::string TenantOf(std::string_view salt) const { return DigestOf({secret_, salt}); }

  // All files of entries, in no order; whose contents nobody has looked at.
  StatusOr<std::vector<File>> List() const;
  // The head of a file. kDataLoss where it is torn or foreign: another user's, a link, no regular
  // file.
  StatusOr<PrefixFacts> ReadFacts(const std::string& name) const;
  // The bytes behind the head, a saved sequence, which nobody has checked yet.
  StatusOr<std::string> ReadSequence(const std::string& name) const;

  // A new file, which is there once it is committed.
  StatusOr<AtomicFile> Create(const std::string& name) const;
  // Removes what was used least recently until n_bytes more are within the bound, and returns the
  // names. kResourceExhausted where they are more than the bound.
  StatusOr<std::vector<std::string>> MakeRoomFor(int64_t n_bytes) const;
  // Both ignore a file that is gone.
  void NoteUse(const std::string& name) const;
  Status Remove(const std::string& name) const;
  // Removes what writers that were killed have left.
  void RemoveUnfinished() const;

 private:
  PrefixFolder(std::string path, int64_t max_bytes)
      : path_(std::move(path)), max_bytes_(max_bytes) {}
  Status ReadSecret();

  std::string path_;
  int64_t max_bytes_;
  std::string secret_;
};

}  // namespace kvlathe
