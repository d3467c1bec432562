// Prompts that clients keep by name, as llama.cpp's server saves what a slot holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe::api {

// What a sequence held: its tokens, and the cache that they were read with. Its rows are an entry
// of the prefix store, found by the tokens, or are computed again.
struct SavedPrompt {
  std::string kv;  // the level's name
  std::optional<double> rate;
  std::vector<int32_t> tokens;
};

// A folder of small files (0600), one a name and tenant. Any thread may use it.
class SavedPrompts {
 public:
  // `folder` is made with the first prompt that is saved. Empty: nothing can be saved.
  explicit SavedPrompts(std::string folder) : folder_(std::move(folder)) {}

  // How many bytes were written. kInvalidArgument for a name that is no file name: empty, longer
  // than 128 bytes, or with other characters than letters, digits, '.', '_' and '-'.
  // kUnimplemented where there is no folder.
  StatusOr<int64_t> Save(std::string_view tenant, const std::string& name,
                         const SavedPrompt& prompt) const;
  // kNotFound where the tenant has none of that name, kDataLoss where its file is damaged.
  StatusOr<SavedPrompt> Load(std::string_view tenant, const std::string& name) const;

 private:
  StatusOr<std::string> PathOf(std::string_view tenant, const std::string& name) const;

  std::string folder_;
};

}  // namespace kvlathe::api
