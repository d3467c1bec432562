#include "kvlathe/open_workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/units.h"
#include "lockstep/rank_group.h"
#include "runtime/named_model.h"

namespace kvlathe {

void PrintNote(const Note& note) {
  const auto prefix = [&]() -> const char* {
    switch (note.kind) {
      case Note::Kind::kNote:
        return "kvlathe: note: ";
      case Note::Kind::kWarning:
        return "kvlathe: warning: ";
      case Note::Kind::kBegun:
        return "kvlathe: ";
      case Note::Kind::kDone:
        return "";
    }
    return "";
  };
  fmt::print(stderr, "{}{}\n", prefix(), note.text);
}

void PrintNote(Note::Kind kind, const std::optional<std::string>& text) {
  if (text.has_value()) PrintNote({kind, *text});
}

StatusOr<OpenOptions> OpenOptionsOf(const ModelOptions& options) {
  OpenOptions open = options;
  KVL_ASSIGN_OR_RETURN(open.device, ParseDevice(options.device_text));
  if (!options.device_memory.empty()) {
    const StatusOr<int64_t> n_bytes = ParseBytes(options.device_memory);
    if (!n_bytes.ok()) {
      return Error(StatusCode::kInvalidArgument, "--device-memory: {}",
                   MessageOf(n_bytes.status()));
    }
    open.device_bytes = std::max<int64_t>(1, *n_bytes);  // 0 would mean the default
  }
  if (!options.kv_memory.empty()) {
    KVL_ASSIGN_OR_RETURN(const int64_t n_bytes, ParseBytes(options.kv_memory));
    open.kv_budget_bytes = std::max<int64_t>(1, n_bytes);  // 0 would mean the default
  }
  open.row_type = options.dtype == "f32" ? DType::kF32 : DType::kBf16;
  open.weights = ParseWeightType(options.weights_name);
  open.schedule = ParseSchedule(options.schedule_name);
  // What all ranks would say, rank 0 says.
  if (options.ranks != nullptr && !options.ranks->is_leader()) return open;
  open.progress = TerminalProgress();
  open.on_note = [](const Note& note) { PrintNote(note); };
  return open;
}

StatusOr<std::string> PathOfModel(const std::string& named) {
  return FindModel(named, TerminalProgress(), [](const Note& note) { PrintNote(note); });
}

StatusOr<std::unique_ptr<Workspace>> OpenWorkspace(const ModelOptions& options) {
  KVL_ASSIGN_OR_RETURN(const OpenOptions open, OpenOptionsOf(options));
  return Workspace::Open(open);
}

StatusOr<std::unique_ptr<Workspace>> OpenRandomWorkspace(const std::string& config_path,
                                                         const ModelOptions& options,
                                                         std::optional<double> compression) {
  KVL_ASSIGN_OR_RETURN(const OpenOptions open, OpenOptionsOf(options));
  return Workspace::OpenRandom(config_path, open, compression);
}

}  // namespace kvlathe
