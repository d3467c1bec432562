#include "runtime/spec_models.h"

#include <fmt/format.h>

#include <utility>

#include "calibration/fingerprint.h"

namespace kvlathe {

StatusOr<std::optional<PredictedLosses>> PredictedLossesOf(Workspace* workspace,
                                                           const std::string& kv) {
  const std::optional<PredictedLosses> kNothing;
  KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
  if (workspace->has_random_weights() || !CheckIsPredicted(spec).ok()) return kNothing;
  StatusOr<PredictedLosses> predicted = workspace->planner().PredictLosses(spec);
  if (predicted.status().code() == StatusCode::kFailedPrecondition) return kNothing;
  KVL_RETURN_IF_ERROR(predicted.status());
  return std::optional(*std::move(predicted));
}

StatusOr<std::optional<double>> PredictedKlOf(Workspace* workspace, const std::string& kv) {
  KVL_ASSIGN_OR_RETURN(const std::optional<PredictedLosses> losses,
                       PredictedLossesOf(workspace, kv));
  return losses.has_value() ? std::optional(losses->kl()) : std::nullopt;
}

Status PredictKlOf(Workspace* workspace, SpecModel* spec_model) {
  if (spec_model->predicted_kl.has_value()) return OkStatus();
  KVL_ASSIGN_OR_RETURN(spec_model->predicted_kl,
                       PredictedKlOf(workspace, spec_model->spec.ToString()));
  return OkStatus();
}

StatusOr<SequenceIdentity> IdentityOf(Workspace* workspace, const SpecModel& spec_model) {
  std::string model =
      fmt::format("{} {}", workspace->model_hash(), workspace->config().DescribePositions());
  if (spec_model.model->layout().SweepsEntries() && !workspace->dms_hash().empty()) {
    model += " dms " + workspace->dms_hash();
  }
  if (spec_model.ranks.has_value()) {
    KVL_ASSIGN_OR_RETURN(const ModelBasis basis,
                         workspace->planner().BasisAt(spec_model.spec, *spec_model.ranks));
    model += " basis " + BasisHash(basis);
  }
  if (!spec_model.model->key_offset(0, 0).empty()) model += " keys less their mean biases";
  const ModelCodebooks& codebooks = spec_model.model->codebooks();
  if (!codebooks.empty()) model += " codebooks " + CodebooksHash(codebooks);
  return SequenceIdentity{spec_model.spec.ToString(), std::move(model)};
}

}  // namespace kvlathe
