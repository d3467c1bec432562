// kvlathe prefix: what a folder of stored prefixes holds.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/prefixes/prefix_folder.h"
#include "kvlathe/options.h"

namespace kvlathe {
namespace {

struct PrefixVerbOptions {
  std::string folder;
  std::vector<std::string> names;
  double unused_days = -1;  // --unused-for
  bool removes_all = false;
  bool json = false;
};

struct StoredPrefix {
  PrefixFolder::File file;
  StatusOr<PrefixFacts> facts;

  double share() const {
    return static_cast<double>(file.n_bytes) /
           static_cast<double>(std::max<int64_t>(1, facts->reference_bytes));
  }
};

// The most recently used first.
StatusOr<std::vector<StoredPrefix>> Look(const PrefixFolder& folder) {
  KVL_ASSIGN_OR_RETURN(std::vector<PrefixFolder::File> files, folder.List());
  std::ranges::sort(files, std::ranges::greater(), &PrefixFolder::File::used_at);
  std::vector<StoredPrefix> stored;
  for (PrefixFolder::File& file : files) {
    StatusOr<PrefixFacts> facts = folder.ReadFacts(file.name);
    stored.push_back({std::move(file), std::move(facts)});
  }
  return stored;
}

std::string UsedAtText(const StoredPrefix& prefix) {
  const auto seconds = static_cast<std::time_t>(prefix.file.used_at / 1'000'000'000);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(seconds));
}

nlohmann::ordered_json JsonOf(const StoredPrefix& prefix) {
  nlohmann::ordered_json json = {{"name", prefix.file.name},
                                 {"bytes", prefix.file.n_bytes},
                                 {"used_at", prefix.file.used_at / 1'000'000'000}};
  if (!prefix.facts.ok()) {
    json["error"] = MessageOf(prefix.facts.status());
    return json;
  }
  json["kv"] = prefix.facts->spec;
  json["tokens"] = prefix.facts->tokens.size();
  json["bytes_uncompressed"] = prefix.facts->reference_bytes;
  json["kv_fraction"] = prefix.share();
  return json;
}

Status ListPrefixes(const PrefixVerbOptions& options) {
  KVL_ASSIGN_OR_RETURN(const PrefixFolder folder, PrefixFolder::OpenExisting(options.folder));
  KVL_ASSIGN_OR_RETURN(const std::vector<StoredPrefix> stored, Look(folder));
  if (!options.json && !stored.empty()) {
    fmt::print("{:<41} {:>8} {:>10} {:>8}  {:<19}  {}\n", "name", "tokens", "bytes", "of 16bit",
               "last used", "kv");
  }
  for (const StoredPrefix& prefix : stored) {
    if (options.json) {
      fmt::print("{}\n", JsonOf(prefix).dump());
    } else if (prefix.facts.ok()) {
      fmt::print("{:<41} {:>8} {:>10} {:>7.1f}%  {}  {}\n", prefix.file.name,
                 prefix.facts->tokens.size(), FormatBytes(prefix.file.n_bytes),
                 100 * prefix.share(), UsedAtText(prefix), prefix.facts->spec);
    } else {
      fmt::print("{:<41} {:>8} {:>10} {:>8}  {}  {}\n", prefix.file.name, "-",
                 FormatBytes(prefix.file.n_bytes), "-", UsedAtText(prefix),
                 MessageOf(prefix.facts.status()));
    }
  }
  return OkStatus();
}

struct PrefixTotals {
  int64_t n_files = 0;
  int64_t n_tokens = 0;
  int64_t n_bytes = 0;
  int64_t reference_bytes = 0;

  void Add(const StoredPrefix& prefix) {
    ++n_files;
    n_bytes += prefix.file.n_bytes;
    if (!prefix.facts.ok()) return;
    n_tokens += std::ssize(prefix.facts->tokens);
    reference_bytes += prefix.facts->reference_bytes;
  }
  double share() const {
    return static_cast<double>(n_bytes) /
           static_cast<double>(std::max<int64_t>(1, reference_bytes));
  }
  nlohmann::ordered_json Json() const {
    return {{"files", n_files},
            {"tokens", n_tokens},
            {"bytes", n_bytes},
            {"bytes_uncompressed", reference_bytes},
            {"kv_fraction", share()}};
  }
};

Status SumPrefixes(const PrefixVerbOptions& options) {
  KVL_ASSIGN_OR_RETURN(const PrefixFolder folder, PrefixFolder::OpenExisting(options.folder));
  KVL_ASSIGN_OR_RETURN(const std::vector<StoredPrefix> stored, Look(folder));
  std::map<std::string, PrefixTotals> by_spec;
  PrefixTotals damaged;
  for (const StoredPrefix& prefix : stored) {
    (prefix.facts.ok() ? by_spec[prefix.facts->spec] : damaged).Add(prefix);
  }
  if (options.json) {
    nlohmann::ordered_json json = {{"folder", folder.path()}, {"kv", nlohmann::json::object()}};
    for (const auto& [spec, totals] : by_spec) json["kv"][spec] = totals.Json();
    json["damaged"] = {{"files", damaged.n_files}, {"bytes", damaged.n_bytes}};
    fmt::print("{}\n", json.dump());
    return OkStatus();
  }
  for (const auto& [spec, totals] : by_spec) {
    fmt::print("{}: {} files, {} tokens, {} ({:.1f}% of the {} that 16 bits would take)\n", spec,
               totals.n_files, totals.n_tokens, FormatBytes(totals.n_bytes), 100 * totals.share(),
               FormatBytes(totals.reference_bytes));
  }
  if (damaged.n_files > 0) {
    fmt::print("damaged or of another format: {} files, {}; kvlathe prefix ls names them\n",
               damaged.n_files, FormatBytes(damaged.n_bytes));
  }
  if (stored.empty()) fmt::print("{}: nothing is stored\n", folder.path());
  return OkStatus();
}

Status RemovePrefixes(const PrefixVerbOptions& options) {
  const bool has_age = options.unused_days >= 0;
  if (options.names.empty() && !has_age && !options.removes_all) {
    return Error(StatusCode::kInvalidArgument,
                 "say what to remove: names, --unused-for DAYS or --all");
  }
  KVL_ASSIGN_OR_RETURN(const PrefixFolder folder, PrefixFolder::OpenExisting(options.folder));
  KVL_ASSIGN_OR_RETURN(const std::vector<PrefixFolder::File> files, folder.List());
  for (const std::string& name : options.names) {
    if (std::ranges::find(files, name, &PrefixFolder::File::name) == files.end()) {
      return Error(StatusCode::kNotFound, "{}: there is no '{}'; kvlathe prefix ls lists them",
                   folder.path(), name);
    }
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double now_ns = std::chrono::duration<double, std::nano>(now).count();
  int64_t n_removed = 0, n_bytes = 0;
  for (const PrefixFolder::File& file : files) {
    const double days = (now_ns - static_cast<double>(file.used_at)) / 86400e9;
    const bool is_named = std::ranges::find(options.names, file.name) != options.names.end();
    if (!options.removes_all && !is_named && !(has_age && days >= options.unused_days)) continue;
    KVL_RETURN_IF_ERROR(folder.Remove(file.name));
    ++n_removed;
    n_bytes += file.n_bytes;
  }
  if (options.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"removed", n_removed}, {"bytes", n_bytes}}.dump());
  } else {
    fmt::print("{} files removed, {}\n", n_removed, FormatBytes(n_bytes));
  }
  return OkStatus();
}

}  // namespace

void AddPrefixVerb(Verbs* verbs) {
  CLI::App* prefix = verbs->app->add_subcommand(
      "prefix", "What is stored in the folder of --prefix-dir, and removing it");
  prefix->require_subcommand(1);
  prefix->footer("Example: kvlathe prefix stat prefixes");
  const auto add = [&](const char* name, const char* summary,
                       Status (*run)(const PrefixVerbOptions&)) {
    auto options = std::make_shared<PrefixVerbOptions>();
    CLI::App* verb = prefix->add_subcommand(name, summary);
    verb->callback(
        [verbs, options, run] { verbs->chosen = [options, run] { return run(*options); }; });
    verb->add_option("FOLDER", options->folder, "that of --prefix-dir")->required();
    verb->add_flag("--json", options->json, "as JSON, an object a line");
    return std::pair(verb, options);
  };
  add("ls", "A line for each stored prefix, the most recently used first", ListPrefixes);
  add("stat", "Files, tokens and bytes by cache, against what 16 bits would take", SumPrefixes);
  const auto [remove, options] =
      add("rm", "Remove stored prefixes; servers that use the folder notice it", RemovePrefixes);
  remove->add_option("NAME", options->names, "names that ls prints");
  remove->add_option("--unused-for", options->unused_days, "those that nobody used for N days")
      ->check(CLI::NonNegativeNumber);
  remove->add_flag("--all", options->removes_all, "all of them");
}

}  // namespace kvlathe
