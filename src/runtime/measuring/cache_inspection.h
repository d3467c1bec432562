// What a model, a spec and its basis hold: shapes, bytes by part and by layer, ranks and spectra.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bases/lathe_maps.h"
#include "kv/byte_kinds.h"
#include "plan/loss_predictions.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct CacheInspection {
  SpecModel spec_model;
  std::optional<PredictedLosses> losses;    // where a KL is predicted
  const BasisAnalysis* analysis = nullptr;  // null without a basis; of the workspace
};

// Makes the model with its cache, and calibrates it where it needs that and nothing was kept.
StatusOr<CacheInspection> InspectCache(Workspace* workspace, const std::string& kv);

// What `kvlathe inspect --json` says of a cache (docs/cli.md).
nlohmann::ordered_json InspectionJson(const Workspace& workspace, const std::string& kv,
                                      const CacheInspection& inspection);

// Bytes of a sequence at the full context, by part: of a prompt that fills it.
KvBytes BytesAtFullContext(const Workspace& workspace, const Model& model);
// The same once all runs were sealed again because memory was short; none where that never happens.
std::optional<KvBytes> BytesUnderPressure(const Workspace& workspace, const Model& model);
// The same by what they are spent on, a layer each.
std::vector<ByteKinds> KindsAtFullContext(const Workspace& workspace, const Model& model);

// What a GPU has left for caches behind weights and a step, and how many prompts of the full
// context fit there. None on processors.
struct DeviceRoom {
  int64_t kv_budget_bytes = 0;
  int64_t n_sequences = 0;
};
std::optional<DeviceRoom> RoomOnDevice(const Workspace& workspace, const Model& model);

}  // namespace kvlathe
