// A model of a hub has the name hf:OWNER/NAME, and a file of it hf:OWNER/NAME:FILE.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

struct HubModel {
  std::string owner, name;
  std::string file;  // a path in the repository, or a part of a GGUF file's name; empty: any

  std::string Repository() const { return owner + "/" + name; }
  std::string Text() const { return "hf:" + Repository() + (file.empty() ? "" : ":" + file); }
};

inline bool NamesHubModel(std::string_view text) { return text.starts_with("hf:"); }

// kInvalidArgument for what is no such name.
StatusOr<HubModel> ParseHubModel(std::string_view text);

// What a hub says is not trusted. A path of a file is safe if it stays below the folder that it is
// put in, on any system; a word (a commit, an ETag) if it is the name of a file.
bool IsSafePath(std::string_view path);
bool IsSafeWord(std::string_view word);

// For messages: printable, in quotes, and not long.
std::string Quoted(std::string_view text);

}  // namespace kvlathe
