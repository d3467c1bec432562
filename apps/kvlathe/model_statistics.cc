#include "kvlathe/model_statistics.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "io/files.h"
#include "io/model_place.h"
#include "kvlathe/calibration_run.h"
#include "kvlathe/shared_texts.h"
#include "kvlathe/workspace.h"

namespace kvlathe {
namespace {

// Whoever waits for the first use of a basis learns why, and how not to wait.
void SayThatItCalibrates(const CalibrationRun& run, const std::string& model) {
  const std::string kv = run.merge.has_value() ? fmt::format(" --kv '{}'", run.SpecText()) : "";
  if (run.text_path.empty()) {
    fmt::print(
        stderr,
        "kvlathe: calibrating {} on random tokens, once; to have it done beforehand: kvlathe "
        "calibrate -m {}{}\n",
        model, model, kv);
    return;
  }
  fmt::print(
      stderr,
      "kvlathe: calibrating {} on {}, once; to have it done beforehand on a text like yours: "
      "kvlathe calibrate -m {}{} --text FILE\n",
      model, run.text_path, model, kv);
}

}  // namespace

const ModelOptions& ModelStatistics::options() const { return workspace_->options(); }
const ModelConfig& ModelStatistics::config() const { return workspace_->config(); }
bool ModelStatistics::is_random() const { return workspace_->has_random_weights(); }
ThreadPool* ModelStatistics::threads() { return workspace_->threads(); }

StatusOr<CalibrationStatistics> ModelStatistics::FindStatistics(const CalibrationRun& run) {
  StatisticsRequest request;
  request.basis_path = options().basis;
  if (!options().model.empty()) {
    request.model_basis_path = BesideModel(options().model, StatisticsFileName(run.Merging()));
  }
  request.merging = run.Merging();
  request.shape = ShapeOf(config());
  request.model_hash = workspace_->model_hash();
  request.rope = config().DescribePositions();
  const int n_tokens = CalibrationSequenceTokens(workspace_->context_tokens());
  if (config().rope_dim() > 0) {
    request.n_positions = CalibrationPositions(workspace_->context_tokens());
  }
  request.settings = fmt::format("{} sequence {} {}", run.Describe(), n_tokens, options().dtype);
  if (request.n_positions > n_tokens) {
    request.settings += fmt::format(" positions {}", request.n_positions);
  }
  if (!run.text_path.empty()) {
    KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, workspace_->TokenizeFile(run.text_path));
    request.settings += " " + TokenHash(ids);
  }
  KVL_ASSIGN_OR_RETURN(FoundStatistics found, FindOrCalibrate(request, [&] {
                         SayThatItCalibrates(run, options().model);
                         return RunCalibration(workspace_, workspace_->model_hash(), run);
                       }));
  if (!found.warning.empty()) fmt::print(stderr, "kvlathe: warning: {}\n", found.warning);
  if (found.is_new && !found.path.empty()) {
    fmt::print(stderr, "calibrated on {}; kept in {}\n",
               run.text_path.empty() ? "random tokens" : run.text_path, found.path);
  }
  return std::move(found.statistics);
}

StatusOr<const CalibrationStatistics*> ModelStatistics::Hold(const CalibrationRun& run,
                                                             HeldStatistics* held) {
  const auto is_enough = [&](const CalibrationStatistics& known) {
    if (run.across_heads && known.k_pre_across_heads.empty()) return false;
    return !run.gradients || known.joint.n_tokens > 0;
  };
  const auto known = held->find(run.Merging());
  if (known != held->end() && is_enough(known->second)) return &known->second;
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics found, FindStatistics(run));
  CalibrationStatistics& kept = (*held)[run.Merging()];
  kept = std::move(found);
  return &kept;
}

StatusOr<const CalibrationStatistics*> ModelStatistics::TextStatistics(CalibrationRun run) {
  const bool has_own_choice =
      !options().basis.empty() ||
      FileExists(BesideModel(options().model, StatisticsFileName(run.Merging())));
  if (has_own_choice) return Hold(run, &statistics_);
  KVL_ASSIGN_OR_RETURN(run.text_path, TextOfModel(options().model, "calibration.txt"));
  return Hold(run, &text_statistics_);
}

StatusOr<const FisherWeights*> ModelStatistics::Fisher(const Spec& spec) {
  if (fisher_.has_value()) return &*fisher_;
  std::string path = BesideModel(options().model, "fisher.json");
  if (!options().basis.empty()) {
    const std::filesystem::path beside =
        std::filesystem::path(options().basis).parent_path() / "fisher.json";
    if (FileExists(beside)) path = beside;
  }
  if (!FileExists(path)) {
    return Error(StatusCode::kNotFound,
                 "--kv '{}': {} is not there; make it: kvlathe retrofit fisher -m {} --text FILE",
                 spec.text(), path, options().model);
  }
  KVL_ASSIGN_OR_RETURN(FisherWeights weights, ReadFisherWeights(path));
  KVL_RETURN_IF_ERROR(CheckFisherMatch(weights, path, config().n_layers, workspace_->model_hash()));
  fisher_ = std::move(weights);
  return &*fisher_;
}

StatusOr<const CalibrationStatistics*> ModelStatistics::Statistics(const StatisticsNeed& need) {
  CalibrationRun run;
  run.across_heads = need.across_heads;
  run.gradients = need.gradients;
  run.merge = need.merge;
  return need.of_text ? TextStatistics(run) : Hold(run, &statistics_);
}

StatusOr<std::vector<std::vector<double>>> ModelStatistics::ValueGrams(int n_joined) {
  return workspace_->weights().AllValueGrams(n_joined);
}

StatusOr<std::vector<std::vector<double>>> ModelStatistics::KeyGrams(int n_joined) {
  return workspace_->weights().AllKeyGrams(n_joined);
}

StatusOr<std::vector<std::vector<double>>> ModelStatistics::OutputGrams() {
  return workspace_->weights().AllOutputGrams(threads());
}

StatusOr<std::vector<std::vector<float>>> ModelStatistics::ValueBiases() {
  return workspace_->weights().AllValueBiases();
}

std::vector<std::vector<float>> ModelStatistics::KeyBiases() {
  return workspace_->weights().AllKeyBiases();
}

}  // namespace kvlathe
