// Models from a hub lie where Python's huggingface_hub puts them and looks for them:
//
//   FOLDER/models--OWNER--NAME/refs/main                the newest commit that was fetched
//                             /snapshots/COMMIT/PATH    a link to ../../blobs/ETAG
//                             /blobs/ETAG               the bytes
//                             /blobs/ETAG.incomplete    what has come of them so far
//   FOLDER/.locks/models--OWNER--NAME/ETAG.lock         held by who fetches them
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/hub_listing.h"
#include "hub/hub_model.h"

namespace kvlathe {

class HubCache {
 public:
  HubCache(const std::string& folder, const HubModel& model);

  const std::string& folder() const { return root_; }
  std::string BlobPath(const std::string& etag) const { return root_ + "/blobs/" + etag; }
  std::string PartPath(const std::string& etag) const { return BlobPath(etag) + ".incomplete"; }
  // Without ".lock", which FileLock adds.
  std::string LockPath(const std::string& etag) const { return locks_ + "/" + etag; }
  std::string SnapshotPath(const std::string& commit) const {
    return root_ + "/snapshots/" + commit;
  }

  // What refs/main says, if it is there and can be right.
  std::optional<std::string> Commit() const;
  // The files of a snapshot whose bytes are there, in the order of their paths.
  std::vector<HubFile> FilesOf(const std::string& commit) const;

  // Makes the folders for blobs and locks.
  Status MakeFolders() const;
  // Puts a blob into a snapshot, in place of what has this path there.
  Status Link(const std::string& commit, const std::string& path, const std::string& etag) const;
  Status SetCommit(const std::string& commit) const;

 private:
  std::string root_, locks_;
};

}  // namespace kvlathe
