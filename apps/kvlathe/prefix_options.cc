#include "kvlathe/prefix_options.h"

#include <utility>

#include "base/units.h"

namespace kvlathe {

void AddPrefixOptions(CLI::App* verb, PrefixOptions* options) {
  verb->add_option("--prefix-dir", options->folder,
                   "folder for what was read and generated, so that it need not be read again by "
                   "any process that uses it (default: none)");
  verb->add_option("--prefix-disk", options->disk, "bytes that all files in --prefix-dir may have")
      ->capture_default_str();
}

StatusOr<std::unique_ptr<PrefixArchive>> OpenArchive(
    const PrefixOptions& options, std::function<void(const Status&)> on_trouble) {
  const StatusOr<int64_t> max_bytes = ParseBytes(options.disk);
  if (!max_bytes.ok()) {
    return Error(StatusCode::kInvalidArgument, "--prefix-disk: {}", MessageOf(max_bytes.status()));
  }
  if (options.folder.empty()) return nullptr;
  return PrefixArchive::Open(
      {.folder = options.folder, .max_bytes = *max_bytes, .on_trouble = std::move(on_trouble)});
}

void NotePrefixTrouble(const Status& trouble) {
  fmt::print(stderr, "kvlathe: note: {}\n", MessageOf(trouble));
}

}  // namespace kvlathe
