#include "profile_file.h"

#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "io/files.h"
#include "workspace.h"

namespace kvlathe {

std::string KeptProfilePath(const Workspace& workspace) {
  const std::string directory = UserCacheDirectory();
  if (directory.empty()) return {};
  Fingerprint key;
  key.Add(workspace.model_hash());
  key.Add(workspace.config().DescribePositions());
  return directory + "/profile-" + key.Hex() + ".json";
}

StatusOr<FoundProfile> FindProfile(const Workspace& workspace, const Spec& question) {
  const ModelOptions& options = workspace.options();
  FoundProfile found;
  found.path = options.profile;
  if (found.path.empty()) {
    for (const std::string& path : {options.model + "/profile.json", KeptProfilePath(workspace)}) {
      if (!path.empty() && FileExists(path)) {
        found.path = path;
        break;
      }
    }
  }
  if (found.path.empty()) {
    return Error(StatusCode::kNotFound,
                 "--kv '{}': accuracy needs a tuned profile and {} has none; run {}, or give "
                 "--profile FILE",
                 question.text(), options.model, TuneCommand(question, options.model));
  }
  KVL_ASSIGN_OR_RETURN(found.profile, ReadProfile(found.path));
  return found;
}

}  // namespace kvlathe
