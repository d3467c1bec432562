#include "runtime/named_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "calibration/statistics_store.h"
#include "hub/fetch_model.h"
#include "io/files.h"

namespace kvlathe {
namespace {

constexpr std::string_view kNames[] = {"smollm2", "gemma3-270m", "qwen2.5-coder-1.5b"};

HubNews NewsFor(const Progress& progress, const NoteSink& on_note) {
  HubNews news{.progress = progress};
  if (!on_note) return news;
  const auto as = [&](Note::Kind kind) {
    return [on_note, kind](const std::string& text) { on_note({kind, text}); };
  };
  news.on_note = as(Note::Kind::kNote);
  news.on_begun = as(Note::Kind::kBegun);
  news.on_done = as(Note::Kind::kDone);
  return news;
}

// What scripts/fetch_model.sh has fetched, in the tree that the working directory lies in.
std::optional<std::string> FindInTree(const std::string& file) {
  const std::filesystem::path below = std::filesystem::path("models/fetched") / file;
  if (FileExists(below.string())) return below.string();
  std::error_code error;
  std::filesystem::path folder = std::filesystem::current_path(error);
  while (!error && folder.has_relative_path()) {
    folder = folder.parent_path();
    if (FileExists((folder / below).string())) return (folder / below).string();
  }
  return std::nullopt;
}

StatusOr<std::string> FindByName(const std::string& name) {
  const std::string file = name + ".gguf";
  if (std::optional<std::string> path = FindInTree(file)) return *std::move(path);
  const std::string cache = UserCacheDirectory();
  const std::string kept = cache + "/models/" + file;
  if (!cache.empty() && FileExists(kept)) return kept;
  const std::string places = fmt::format("models/fetched, from the working directory upwards{}",
                                         cache.empty() ? "" : ", or in " + cache + "/models");
  if (std::ranges::find(kNames, name) != std::ranges::end(kNames)) {
    return Error(StatusCode::kNotFound,
                 "{}: there is no {} in {}; scripts/fetch_model.sh {} fetches it, and -m "
                 "hf:OWNER/NAME another model",
                 name, file, places, name);
  }
  return Error(StatusCode::kNotFound,
               "{}: no such file or directory, and no {} in {}; scripts/fetch_model.sh fetches {}, "
               "and -m hf:OWNER/NAME a model of a hub",
               name, file, places, fmt::join(kNames, ", "));
}

}  // namespace

std::span<const std::string_view> FetchedModelNames() { return kNames; }

StatusOr<std::string> FindModel(const std::string& named, const Progress& progress,
                                const NoteSink& on_note) {
  if (FileExists(named) || DirectoryExists(named)) return named;
  if (NamesHubModel(named)) {
    KVL_ASSIGN_OR_RETURN(const HubModel model, ParseHubModel(named));
    KVL_ASSIGN_OR_RETURN(const HubOptions options, HubOptionsFromEnvironment());
    return FetchModel(model, options, NewsFor(progress, on_note));
  }
  const bool is_name =
      !named.empty() && named.find('/') == std::string::npos && !named.ends_with(".gguf");
  return is_name ? FindByName(named) : named;
}

}  // namespace kvlathe
