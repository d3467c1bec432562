// Several verbs keep what they have read and generated in a folder (engine/prefixes).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/prefixes/prefix_archive.h"

namespace kvlathe {

struct PrefixOptions {
  std::string folder;          // --prefix-dir; empty: none
  std::string disk = "10GiB";  // --prefix-disk, as it is written
};

// --prefix-dir, --prefix-disk. `options` outlives the verb.
void AddPrefixOptions(CLI::App* verb, PrefixOptions* options);

// The archive in that folder; null where there is to be none. `on_trouble` as ArchiveOptions has
// it.
StatusOr<std::unique_ptr<PrefixArchive>> OpenArchive(const PrefixOptions& options,
                                                     std::function<void(const Status&)> on_trouble);

// A note on standard error.
void NotePrefixTrouble(const Status& trouble);

}  // namespace kvlathe
