// Where the profile of a model lies: where the user says, beside the model, or in the user's cache
// directory.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "tuning/profile.h"

namespace kvlathe {

class Workspace;

struct FoundProfile {
  Profile profile;
  std::string path;
};

// In the user's cache directory, by model and positions; empty if there is no such directory.
std::string KeptProfilePath(const Workspace& workspace);

// --profile, else profile.json in the model's directory, else the kept one, else nothing. Of which
// model it is, is not looked at.
StatusOr<std::optional<FoundProfile>> LookForProfile(const Workspace& workspace);

}  // namespace kvlathe
