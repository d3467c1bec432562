#include "runtime/profile_file.h"

#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "io/files.h"
#include "io/model_place.h"
#include "runtime/workspace.h"

namespace kvlathe {

std::string KeptProfilePath(const Workspace& workspace) {
  const std::string directory = UserCacheDirectory();
  if (directory.empty()) return {};
  Fingerprint key;
  key.Add(workspace.model_hash());
  key.Add(workspace.config().DescribePositions());
  return directory + "/profile-" + key.Hex() + ".json";
}

StatusOr<std::optional<FoundProfile>> LookForProfile(const Workspace& workspace) {
  const OpenOptions& options = workspace.options();
  std::string path = options.profile;
  for (const std::string& place :
       {BesideModel(options.model, "profile.json"), KeptProfilePath(workspace)}) {
    if (path.empty() && !place.empty() && FileExists(place)) path = place;
  }
  if (path.empty()) return std::optional<FoundProfile>();
  KVL_ASSIGN_OR_RETURN(Profile profile, ReadProfile(path));
  return FoundProfile{std::move(profile), std::move(path)};
}

}  // namespace kvlathe
