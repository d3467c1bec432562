#include "runtime/measuring/cache_inspection.h"

#include <numeric>

#include "analysis/bases/report.h"
#include "kv/capacity.h"
#include "kv/seal/seal_schedule.h"
#include "runtime/spec_models.h"

namespace kvlathe {
namespace {

nlohmann::ordered_json ModelJson(const Workspace& workspace) {
  const ModelConfig& c = workspace.config();
  return {{"model_type", c.model_type},   {"n_layers", c.n_layers},
          {"hidden_dim", c.hidden_dim},   {"n_heads", c.n_heads},
          {"n_kv_heads", c.n_kv_heads},   {"head_dim", c.head_dim},
          {"ffn_dim", c.ffn_dim},         {"vocab_size", c.vocab_size},
          {"max_seq_len", c.max_seq_len}, {"rope", c.DescribePositions()}};
}

nlohmann::ordered_json BytesJson(const Workspace& workspace, const Model& model,
                                 const KvBytes& bytes) {
  const double reference =
      static_cast<double>(ReferenceBytes(model.layout(), workspace.context_tokens()));
  return {{"context", workspace.context_tokens()},
          {"blocks", bytes.blocks},
          {"sinks", bytes.sinks},
          {"run_records", bytes.run_records},
          {"layer_records", bytes.layer_records},
          {"tables", bytes.tables},
          {"entries", bytes.entries},
          {"total", bytes.total()},
          {"kv_fraction", static_cast<double>(bytes.total()) / reference}};
}

nlohmann::ordered_json KindsJson(const std::vector<ByteKinds>& layers) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ByteKinds& kinds : layers) {
    nlohmann::ordered_json& layer = list.emplace_back();
    for (const auto& [name, member] : kByteKinds) layer[name] = kinds.*member;
  }
  return list;
}

nlohmann::ordered_json LossesJson(const PredictedLosses& losses) {
  const PredictedLosses parts = losses.InKl();
  return {{"keys", parts.keys}, {"values", parts.values}, {"open_rows", parts.open_rows}};
}

}  // namespace

KvBytes BytesAtFullContext(const Workspace& workspace, const Model& model) {
  const int64_t n = workspace.context_tokens();
  return SequenceParts(model.layout(), {.n_tokens = n, .n_prompt = n});
}

std::optional<KvBytes> BytesUnderPressure(const Workspace& workspace, const Model& model) {
  if (!model.layout().HasPressedRuns()) return std::nullopt;
  const int64_t n = workspace.context_tokens();
  std::vector<int> places(RunsOf(model.layout(), n, n).size());
  std::iota(places.begin(), places.end(), 0);
  return SequenceParts(model.layout(), {.n_tokens = n, .n_prompt = n, .pressed_runs = places});
}

std::vector<ByteKinds> KindsAtFullContext(const Workspace& workspace, const Model& model) {
  const int64_t n = workspace.context_tokens();
  return ByteKindsByLayer(model.layout(), {.n_tokens = n, .n_prompt = n});
}

std::optional<DeviceRoom> RoomOnDevice(const Workspace& workspace, const Model& model) {
  if (workspace.options().device.is_cpu()) return std::nullopt;
  const int64_t n = workspace.context_tokens();
  const int64_t budget = workspace.kv_budget_bytes();
  return DeviceRoom{budget, SequencesThatFit(model.layout(), {.n_tokens = n, .n_prompt = n}, budget,
                                             /*entry_shares=*/{})};
}

StatusOr<CacheInspection> InspectCache(Workspace* workspace, const std::string& kv) {
  CacheInspection inspection;
  KVL_ASSIGN_OR_RETURN(inspection.spec_model, workspace->MakeModel(kv));
  const Spec& spec = inspection.spec_model.spec;
  KVL_ASSIGN_OR_RETURN(inspection.losses, PredictedLossesOf(workspace, spec.ToString()));
  if (inspection.spec_model.ranks.has_value()) {
    KVL_ASSIGN_OR_RETURN(inspection.analysis, workspace->planner().analyses().Of(spec));
  }
  return inspection;
}

nlohmann::ordered_json InspectionJson(const Workspace& workspace, const std::string& kv,
                                      const CacheInspection& inspection) {
  const SpecModel& spec_model = inspection.spec_model;
  const Model& model = *spec_model.model;
  nlohmann::ordered_json json = {
      {"model", ModelJson(workspace)},
      {"kv", kv},
      {"kv_resolved", spec_model.spec.ToString()},
      {"kv_bytes", BytesJson(workspace, model, BytesAtFullContext(workspace, model))},
      {"kv_bytes_by_layer", KindsJson(KindsAtFullContext(workspace, model))},
      {"basis_bytes", model.basis_bytes()},
      {"device", workspace.device_name()}};
  if (const auto room = RoomOnDevice(workspace, model)) {
    json["device_room"] = {{"kv_budget_bytes", room->kv_budget_bytes},
                           {"sequences", room->n_sequences}};
  }
  if (const auto pressed = BytesUnderPressure(workspace, model)) {
    json["kv_bytes_under_pressure"] = BytesJson(workspace, model, *pressed);
  }
  if (inspection.losses.has_value()) {
    json["predicted_kl"] = inspection.losses->kl();
    json["predicted_kl_by_layer"] = LossesJson(*inspection.losses);
  }
  if (inspection.analysis != nullptr) {
    json["basis"] = BasisReportJson(*inspection.analysis, *spec_model.ranks);
  }
  return json;
}

}  // namespace kvlathe
