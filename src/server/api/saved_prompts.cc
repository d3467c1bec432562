#include "server/api/saved_prompts.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "io/atomic_file.h"
#include "io/files.h"
#include "io/json_checksum.h"
#include "io/system_error.h"

namespace kvlathe::api {
namespace {

constexpr size_t kMaxFileNameBytes = 128;
constexpr int kSavedVersion = 1;

bool IsFileName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFileNameBytes && name.front() != '.' &&
         std::ranges::all_of(name, [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace

StatusOr<std::string> SavedPrompts::PathOf(std::string_view tenant, const std::string& name) const {
  if (folder_.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "the server keeps nothing on disk; start it with --prefix-dir DIR");
  }
  if (!IsFileName(name)) {
    return Error(StatusCode::kInvalidArgument,
                 "filename: give up to {} letters, digits, '.', '_' and '-', a '.' not first",
                 kMaxFileNameBytes);
  }
  // A name says nothing of other tenants' names: each has its own files.
  return folder_ + "/" + DigestOf({tenant, name}).substr(0, 32) + "-" + name + ".json";
}

StatusOr<int64_t> SavedPrompts::Save(std::string_view tenant, const std::string& name,
                                     const SavedPrompt& prompt) const {
  KVL_ASSIGN_OR_RETURN(const std::string path, PathOf(tenant, name));
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError(errno, "cannot create", folder_);
  }
  nlohmann::ordered_json json = {
      {"version", kSavedVersion}, {"kv", prompt.kv}, {"tokens", prompt.tokens}};
  if (prompt.rate.has_value()) json["rate"] = *prompt.rate;
  AddChecksum(&json);
  const std::string text = json.dump();
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, 0600));
  KVL_RETURN_IF_ERROR(file.Write(text.data(), std::ssize(text)));
  KVL_RETURN_IF_ERROR(file.Commit());
  return std::ssize(text);
}

StatusOr<SavedPrompt> SavedPrompts::Load(std::string_view tenant, const std::string& name) const {
  KVL_ASSIGN_OR_RETURN(const std::string path, PathOf(tenant, name));
  if (!FileExists(path)) {
    return Error(StatusCode::kNotFound, "filename: nothing is saved as '{}'", name);
  }
  const StatusOr<nlohmann::json> json = ReadJsonFile(path);
  const auto damaged = [&] {
    return Error(StatusCode::kDataLoss, "filename: what is saved as '{}' is damaged; save it again",
                 name);
  };
  if (!json.ok() || !json->is_object() || !FitsItsChecksum(*json) ||
      json->value("version", 0) != kSavedVersion) {
    return damaged();
  }
  try {
    SavedPrompt prompt = {.kv = json->at("kv"), .tokens = json->at("tokens")};
    if (json->contains("rate")) prompt.rate = json->at("rate").get<double>();
    return prompt;
  } catch (const nlohmann::json::exception&) {
    return damaged();
  }
}

}  // namespace kvlathe::api
