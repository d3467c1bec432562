// What a hub says of a model: its newest commit, and the files of that.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/hub_model.h"

namespace kvlathe {

struct HubFile {
  std::string path;      // in the repository; IsSafePath
  int64_t n_bytes = -1;  // -1: unknown
  std::string sha256;    // 64 digits in lower case; empty: unknown
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;  // in the order of their paths
};

// The answer to GET api/models/OWNER/NAME/revision/main?blobs=true. kDataLoss for what is none, and
// for one that names a file outside of the repository.
StatusOr<HubListing> ParseHubListing(const HubModel& model, std::string_view json);

// Whether these are the digits of a SHA-256, in lower case.
bool IsSha256(std::string_view text);

}  // namespace kvlathe
