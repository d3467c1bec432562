#include "hub/fetch_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "hub/blob_fetch.h"
#include "hub/file_choice.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"
#include "hub/retries.h"
#include "io/files.h"

namespace kvlathe {
namespace {

constexpr int64_t kSpareBytes = int64_t{16} << 20;  // of the disk, for what else is written

// One call of FetchModel that needs the hub.
class ModelFetch {
 public:
  ModelFetch(const HubModel& model, const HubOptions& options, const HubCache& cache,
             const HubNews& news)
      : model_(model), options_(options), cache_(cache), news_(news), client_(options, model) {}

  StatusOr<std::string> Run();

 private:
  // Calls `ask` again where that may help.
  template <typename Ask>
  auto Patiently(Ask ask) -> decltype(ask()) {
    Retries retries(options_.retry_wait);
    auto answer = ask();
    while (!answer.ok() && retries.Again(answer.status(), false)) answer = ask();
    return answer;
  }

  StatusOr<std::vector<WantedFile>> AskAbout(std::span<const std::string> paths);
  StatusOr<HubFileFacts> FactsOf(const std::string& path);
  Status CheckSpace(int64_t n_missing) const;
  // Fetches files with one bar of progress.
  Status FetchFiles(std::span<const std::string> paths);
  Status FetchDirectory(const FileChoice& choice);
  std::string WhereAt(const std::string& path) const {
    return cache_.SnapshotPath(listing_.commit) + (path.empty() ? "" : "/" + path);
  }

  const HubModel& model_;
  const HubOptions& options_;
  const HubCache& cache_;
  const HubNews& news_;
  HubClient client_;
  HubListing listing_;
};

StatusOr<HubFileFacts> ModelFetch::FactsOf(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(HubFileFacts facts,
                       Patiently([&] { return client_.Ask(listing_.commit, path); }));
  for (const HubFile& file : listing_.files) {
    if (file.path != path || file.sha256.empty()) continue;
    if (facts.sha256.empty()) facts.sha256 = file.sha256;
    if (facts.sha256 == file.sha256) continue;
    return Error(StatusCode::kDataLoss,
                 "{}: the hub gives {} two different SHA-256, so it cannot be checked; try later",
                 model_.Text(), path);
  }
  return facts;
}

StatusOr<std::vector<WantedFile>> ModelFetch::AskAbout(std::span<const std::string> paths) {
  std::vector<WantedFile> files;
  for (const std::string& path : paths) {
    KVL_ASSIGN_OR_RETURN(HubFileFacts facts, FactsOf(path));
    files.push_back({path, std::move(facts)});
  }
  return files;
}

Status ModelFetch::CheckSpace(int64_t n_missing) const {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(cache_.folder(), error);
  if (error || n_missing == 0) return OkStatus();  // a full disk shows while it is written
  const auto n_free = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
  if (n_missing <= n_free - kSpareBytes) return OkStatus();
  return Error(StatusCode::kResourceExhausted,
               "{}: {} are still to be fetched into {}, where {} are free; make room, or set "
               "HF_HUB_CACHE to a folder on another disk",
               model_.Text(), FormatBytes(n_missing), cache_.folder(), FormatBytes(n_free));
}

Status ModelFetch::FetchFiles(std::span<const std::string> paths) {
  KVL_ASSIGN_OR_RETURN(const std::vector<WantedFile> files, AskAbout(paths));
  BlobFetch fetch(options_, model_, listing_.commit, cache_, &client_, news_);
  int64_t n_missing = 0, n_all = 0;
  for (const WantedFile& file : files) {
    n_missing += fetch.MissingBytes(file);
    if (file.facts.n_bytes > INT64_MAX / 2 - n_all) {
      return Error(StatusCode::kDataLoss, "{}: the hub says that {} has {} bytes", model_.Text(),
                   file.path, file.facts.n_bytes);
    }
    n_all += file.facts.n_bytes;
  }
  KVL_RETURN_IF_ERROR(CheckSpace(n_missing));
  const std::string what =
      paths.size() == 1 ? paths.front() : fmt::format("{} files", paths.size());
  if (n_missing > 0 && news_.on_begun) {
    news_.on_begun(
        fmt::format("{}: fetching {}, {}{}, into {}", model_.Text(), what, FormatBytes(n_missing),
                    n_missing < n_all ? " of " + FormatBytes(n_all) : "", cache_.folder()));
  }
  int64_t n_before = 0;
  for (const WantedFile& file : files) {
    const auto on_bytes = [&](int64_t n_bytes) {
      if (!news_.progress || n_all == 0) return;
      const double fraction = static_cast<double>(n_before + n_bytes) / static_cast<double>(n_all);
      news_.progress("fetching " + what, fraction);
    };
    KVL_RETURN_IF_ERROR(fetch.Fetch(file, on_bytes));
    n_before += file.facts.n_bytes;
  }
  return OkStatus();
}

Status ModelFetch::FetchDirectory(const FileChoice& choice) {
  std::vector<std::string> small = choice.paths, weights = {choice.weights};
  if (choice.weights_are_index) small.push_back(choice.weights);
  KVL_RETURN_IF_ERROR(FetchFiles(small));
  if (choice.weights_are_index) {
    KVL_ASSIGN_OR_RETURN(const std::string index, ReadTextFile(WhereAt(choice.weights)));
    KVL_ASSIGN_OR_RETURN(weights, FilesOfIndex(model_, index));
  }
  return FetchFiles(weights);
}

StatusOr<std::string> ModelFetch::Run() {
  KVL_ASSIGN_OR_RETURN(listing_, Patiently([&] { return client_.List(); }));
  KVL_ASSIGN_OR_RETURN(const FileChoice choice, ChooseFiles(model_, listing_.files));
  if (!choice.note.empty() && news_.on_note) news_.on_note(choice.note);
  KVL_RETURN_IF_ERROR(cache_.MakeFolders());
  Stopwatch watch;
  KVL_RETURN_IF_ERROR(choice.is_directory ? FetchDirectory(choice) : FetchFiles(choice.paths));
  KVL_RETURN_IF_ERROR(cache_.SetCommit(listing_.commit));
  const std::string path = WhereAt(choice.is_directory ? "" : choice.paths.front());
  if (news_.on_done) {
    news_.on_done(fmt::format("{}: fetched in {:.0f} s, {}", model_.Text(), watch.Seconds(), path));
  }
  return path;
}

// Whether a snapshot has all that a model directory needs.
bool IsWhole(const HubModel& model, const FileChoice& choice, const std::string& snapshot) {
  const auto has = [&](const std::string& name) { return FileExists(snapshot + "/" + name); };
  if (!has("tokenizer.json") && !has("tokenizer.model") && !has("tekken.json") &&
      !(has("vocab.json") && has("merges.txt"))) {
    return false;
  }
  if (!choice.weights_are_index) return true;
  const StatusOr<std::string> index = ReadTextFile(snapshot + "/" + choice.weights);
  if (!index.ok()) return false;
  const StatusOr<std::vector<std::string>> files = FilesOfIndex(model, *index);
  return files.ok() && std::all_of(files->begin(), files->end(), has);
}

// What the cache holds of the model, if that is enough.
std::optional<std::string> FindInCache(const HubModel& model, const HubCache& cache,
                                       const HubNews& news) {
  const std::optional<std::string> commit = cache.Commit();
  if (!commit.has_value()) return std::nullopt;
  const StatusOr<FileChoice> choice = ChooseFiles(model, cache.FilesOf(*commit));
  if (!choice.ok()) return std::nullopt;
  const std::string snapshot = cache.SnapshotPath(*commit);
  if (choice->is_directory) {
    return IsWhole(model, *choice, snapshot) ? std::optional(snapshot) : std::nullopt;
  }
  if (!choice->note.empty() && news.on_note) news.on_note(choice->note);
  return snapshot + "/" + choice->paths.front();
}

}  // namespace

StatusOr<std::string> FetchModel(const HubModel& model, const HubOptions& options,
                                 const HubNews& news) {
  const HubCache cache(options.cache_folder, model);
  if (std::optional<std::string> found = FindInCache(model, cache, news)) return *std::move(found);
  if (options.is_offline) {
    return Error(StatusCode::kNotFound,
                 "{} is not in {}, and HF_HUB_OFFLINE says that nothing is fetched", model.Text(),
                 cache.folder());
  }
  StatusOr<std::string> fetched = ModelFetch(model, options, cache, news).Run();
  const StatusCode code = fetched.status().code();
  if (code == StatusCode::kUnavailable) {
    return Error(code, "{} is not in {}, and {}; check the network, or HF_ENDPOINT", model.Text(),
                 cache.folder(), MessageOf(fetched.status()));
  }
  if (code == StatusCode::kAborted || code == StatusCode::kDeadlineExceeded) {
    const std::string message = MessageOf(fetched.status());
    const std::string prefix = message.starts_with(model.Text()) ? "" : model.Text() + ": ";
    return Error(StatusCode::kUnavailable, "{}{}; the same command goes on from what is there",
                 prefix, message);
  }
  return fetched;
}

}  // namespace kvlathe
