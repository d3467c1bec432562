#include "hub/hub_listing.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvlathe {
namespace {

using Json = nlohmann::json;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// The member of an object, or null.
const Json& Member(const Json& object, const char* name) {
  static const Json kNone;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

std::string TextOf(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

int64_t SizeOf(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX ? value.get<int64_t>()
                                                                          : -1;
}

}  // namespace

bool IsSha256(std::string_view text) { return text.size() == 64 && IsHex(text); }

StatusOr<HubListing> ParseHubListing(const HubModel& model, std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  HubListing listing;
  listing.commit = TextOf(Member(parsed, "sha"));
  const Json& siblings = Member(parsed, "siblings");
  const bool is_commit = listing.commit.size() == 40 && IsHex(listing.commit);
  if (!is_commit || !siblings.is_array()) {
    return Error(StatusCode::kDataLoss,
                 "{}: what the hub answers is no list of files with a commit; check HF_ENDPOINT",
                 model.Text());
  }
  for (const Json& sibling : siblings) {
    const Json& lfs = Member(sibling, "lfs");
    HubFile file;
    file.path = TextOf(Member(sibling, "rfilename"));
    file.n_bytes = std::max(SizeOf(Member(lfs, "size")), SizeOf(Member(sibling, "size")));
    file.sha256 = TextOf(Member(lfs, "sha256"));
    if (!IsSha256(file.sha256)) file.sha256.clear();
    if (!IsSafePath(file.path)) {
      return Error(StatusCode::kDataLoss,
                   "{}: the hub names a file {}, which is no path inside of a model; nothing is "
                   "fetched",
                   model.Text(), Quoted(file.path));
    }
    listing.files.push_back(std::move(file));
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return listing;
}

}  // namespace kvlathe
