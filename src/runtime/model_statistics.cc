#include "runtime/model_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "io/files.h"
#include "io/model_place.h"
#include "model/weight_grams.h"
#include "runtime/calibration_run.h"
#include "runtime/shared_texts.h"
#include "runtime/workspace.h"

namespace kvlathe {
namespace {

// Whoever waits for the first use of a basis learns why, and how not to wait. How long it takes is
// said when it is known (RunCalibration).
std::string NoteOfCalibration(const CalibrationRun& run, const std::string& model,
                              const std::string& lacking) {
  const std::string kv = run.merge.has_value() ? fmt::format(" --kv '{}'", run.SpecText()) : "";
  const std::string why = lacking.empty() ? "" : fmt::format(" ({})", lacking);
  // Quantizers and retention need no statistics.
  constexpr const char* kWithout =
      "to do without: --basis FILE of the same model, or --kv 'kivi(bits=4)'";
  if (run.text_path.empty()) {
    return fmt::format(
        "calibrating {} on random tokens, once{}; {}; to have it done beforehand: kvlathe "
        "calibrate "
        "-m {}{}",
        model, why, kWithout, model, kv);
  }
  return fmt::format(
      "calibrating {} on {}, once{}; {}; to have it done beforehand on a text like yours: kvlathe "
      "calibrate -m {}{} --text FILE",
      model, run.text_path, why, kWithout, model, kv);
}

}  // namespace

const OpenOptions& ModelStatistics::options() const { return workspace_->options(); }
const ModelConfig& ModelStatistics::config() const { return workspace_->config(); }
bool ModelStatistics::is_random() const { return workspace_->has_random_weights(); }
ThreadPool* ModelStatistics::threads() { return workspace_->threads(); }

void ModelStatistics::Expect(std::span<const StatisticsNeed> needs) {
  for (const StatisticsNeed& need : needs) {
    if (std::ranges::find(expected_, need) == expected_.end()) expected_.push_back(need);
  }
}

bool ModelStatistics::HasOwnChoice(const CalibrationRun& run) const {
  return !options().basis.empty() ||
         (!options().model.empty() &&
          FileExists(BesideModel(options().model, StatisticsFileName(run.Merging()))));
}

// As KVzip's authors ask for it.
void ModelStatistics::AddRepeatWords(RepeatPlan* plan) {
  if (!workspace_->has_tokenizer()) return;
  const auto words = [this](std::string_view text) {
    return workspace_->tokenizer().Tokenize(text, /*add_bos=*/false, /*parse_special=*/false);
  };
  plan->first_words = words("\n\nRepeat the previous context exactly.");
  plan->later_words = words("\n\nRepeat the part of the previous context exactly, starting with");
  plan->end_words = words("\n");
}

template <typename F>
std::invoke_result_t<F, Workspace*> ModelStatistics::OnWholeModel(const F& measure) const {
  const RankGroup* const ranks = options().ranks;
  if (ranks == nullptr) return measure(workspace_);
  if (!ranks->is_leader()) {
    return Error(StatusCode::kFailedPrecondition,
                 "there are no statistics of the model on {}, which rank 0 has found or measured; "
                 "let all machines share rank 0's ~/.cache/kvlathe, or give all of them the file "
                 "that kvlathe calibrate writes with --basis",
                 ranks->all->host_of(ranks->rank()));
  }
  OpenOptions alone = options();
  alone.ranks = nullptr;
  alone.n_threads = ranks->n_threads_alone;
  alone.kv.clear();
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Workspace> whole, Workspace::Open(alone));
  return measure(whole.get());
}

StatusOr<CalibrationRun> ModelStatistics::RunFor(const StatisticsNeed& need) const {
  CalibrationRun run;
  run.merge = need.merge;
  run.across_heads = need.across_heads;
  run.gradients = need.gradients;
  run.key_values = need.key_values;
  run.outputs = need.outputs;
  for (const StatisticsNeed& other : expected_) {
    if (other.of_text != need.of_text || other.merge != need.merge) continue;
    run.across_heads |= other.across_heads;
    run.gradients |= other.gradients;
    run.key_values |= other.key_values;
    run.outputs |= other.outputs;
  }
  if (HasOwnChoice(run)) {  // what its method lacks is the need's own affair
    run.across_heads = need.across_heads;
    run.gradients = need.gradients;
    run.key_values = need.key_values;
    run.outputs = need.outputs;
  } else if (need.of_text) {
    KVL_ASSIGN_OR_RETURN(run.text_path, TextOfModel(options().model, "calibration.txt"));
  }
  return run;
}

std::vector<int> ModelStatistics::ModelPositions() const {
  if (config().rope_dim() == 0) return {0};
  std::vector<int> positions;
  const int least = CalibrationContext(0, config().max_seq_len);
  for (int n = CalibrationPositions(config().max_seq_len); n > least; n /= 2)
    positions.push_back(n);
  positions.push_back(least);
  return positions;
}

StatusOr<StatisticsRequest> ModelStatistics::RequestFor(const CalibrationRun& run,
                                                        const StatisticsNeed& need) const {
  StatisticsRequest request;
  request.basis_path = options().basis;
  if (!options().model.empty()) {
    request.model_basis_path = BesideModel(options().model, StatisticsFileName(run.Merging()));
  }
  request.merging = run.Merging();
  request.shape = ShapeOf(config());
  request.model_hash = workspace_->model_hash();
  request.rope = config().DescribePositions();
  request.contents = {.gradients = run.gradients,
                      .across_heads = run.across_heads,
                      .key_values = run.key_values,
                      .outputs = run.outputs};
  if (config().rope_dim() > 0) {
    request.contents.n_positions = CalibrationPositions(CalibratedContext(*workspace_));
    request.context_positions = CalibrationPositions(workspace_->context_tokens());
  }
  request.any_positions = !need.after_rope;
  request.maps_of = need.maps_of;
  // Maps that come with kvlathe are of its own text: a model that brings one is calibrated on it.
  if (need.maps_of.has_value() && run.text_path == SharedText("calibration.txt").value_or("")) {
    request.maps_path = MapsOfModel(request.model_hash, *need.maps_of);
  }
  request.model_positions = ModelPositions();
  request.settings = fmt::format("{} {}", run.Describe(), RowTypeName(options().row_type));
  if (!run.text_path.empty()) {
    KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, workspace_->TokenizeFile(run.text_path));
    request.settings += " " + TokenHash(ids);
  }
  return request;
}

const ModelStatistics::Held* ModelStatistics::FindHeld(const CalibrationRun& run,
                                                       const StatisticsNeed& need) const {
  for (const Held& held : held_) {
    const bool is_same = held.merging == run.Merging() && held.source == run.text_path;
    const StatisticsContents& contents = held.contents;
    const bool has_all = HoldsAllOf(contents, {.gradients = need.gradients,
                                               .across_heads = need.across_heads,
                                               .key_values = need.key_values,
                                               .outputs = need.outputs});
    const bool has_positions =
        held.is_chosen || !need.after_rope || config().rope_dim() == 0 ||
        contents.n_positions == CalibrationPositions(CalibratedContext(*workspace_));
    const std::optional<KeyRows>& maps_of = held.statistics->maps_of;
    const bool has_rows = !maps_of.has_value() || maps_of == need.maps_of;
    if (is_same && has_all && has_positions && has_rows) return &held;
  }
  return nullptr;
}

StatusOr<const CalibrationStatistics*> ModelStatistics::Statistics(const StatisticsNeed& need) {
  KVL_ASSIGN_OR_RETURN(CalibrationRun run, RunFor(need));
  if (const Held* const held = FindHeld(run, need); held != nullptr) return held->statistics.get();
  KVL_ASSIGN_OR_RETURN(const StatisticsRequest request, RequestFor(run, need));
  KVL_ASSIGN_OR_RETURN(
      FoundStatistics found, FindOrCalibrate(request, [&](const CalibrationCall& call) {
        workspace_->Notify(Note::Kind::kBegun,
                           NoteOfCalibration(run, options().model, call.lacking));
        if (!call.keeping.ok()) {
          workspace_->Notify(Note::Kind::kWarning, "the calibration that begins cannot be kept: " +
                                                       MessageOf(call.keeping));
        }
        run.checkpoint_path = call.checkpoint_path;
        return OnWholeModel([&](Workspace* whole) { return RunCalibration(whole, run); });
      }));
  if (!found.warning.empty()) workspace_->Notify(Note::Kind::kWarning, found.warning);
  if (found.is_new && !found.path.empty()) {
    workspace_->Notify(
        Note::Kind::kDone,
        fmt::format("calibrated on {}; kept in {}",
                    run.text_path.empty() ? "random tokens" : run.text_path, found.path));
  }
  const bool is_chosen = HasOwnChoice(run);
  StatisticsContents contents = request.contents;
  contents.n_positions = found.statistics.source.n_positions;
  // Whether gradients are missing in a chosen file, the method says that needs them.
  contents.gradients |= is_chosen || found.statistics.joint.n_tokens > 0;
  contents.across_heads |= !found.statistics.k_pre_across_heads.empty();
  contents.key_values |= !found.statistics.key_values.covariance.empty();
  contents.outputs |= !found.statistics.outputs.covariance.empty();
  held_.push_back({run.text_path, run.Merging(), contents, is_chosen,
                   std::make_unique<const CalibrationStatistics>(std::move(found.statistics))});
  return held_.back().statistics.get();
}

StatusOr<FisherWeights> ModelStatistics::FindOrMeasureFisher(const Spec& spec) {
  std::string path = BesideModel(options().model, "fisher.json");
  if (!options().basis.empty()) {
    const std::filesystem::path beside =
        std::filesystem::path(options().basis).parent_path() / "fisher.json";
    if (FileExists(beside)) path = beside;
  }
  CalibrationRun run = {.n_random_tokens = kFisherTokens, .n_text_tokens = kFisherTokens};
  if (!FileExists(path)) {
    KVL_ASSIGN_OR_RETURN(run.text_path, TextOfModel(options().model, "calibration.txt"));
    KVL_ASSIGN_OR_RETURN(const StatisticsRequest request, RequestFor(run, {}));
    path = KeptFisherPath(request);
  }
  if (!path.empty() && FileExists(path)) {
    KVL_ASSIGN_OR_RETURN(FisherWeights weights, ReadFisherWeights(path));
    KVL_RETURN_IF_ERROR(
        CheckFisherMatch(weights, path, config().n_layers, workspace_->model_hash()));
    return weights;
  }
  workspace_->Notify(
      Note::Kind::kBegun,
      fmt::format("--kv '{}': measuring how much the loss hangs on each layer on {}, "
                  "once; to do without: ranks=adaptive",
                  spec.text(), run.text_path.empty() ? "random tokens" : run.text_path));
  KVL_ASSIGN_OR_RETURN(FisherWeights weights,
                       OnWholeModel([&](Workspace* whole) { return RunFisher(whole, run); }));
  if (path.empty()) return weights;
  std::error_code ignored;  // what cannot be kept is no error
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const Status kept = WriteFisherWeights(weights, path);
  if (!kept.ok()) workspace_->Notify(Note::Kind::kWarning, MessageOf(kept));
  return weights;
}

StatusOr<const FisherWeights*> ModelStatistics::Fisher(const Spec& spec) {
  if (!fisher_.has_value()) {
    KVL_ASSIGN_OR_RETURN(fisher_, FindOrMeasureFisher(spec));
  }
  return &*fisher_;
}

StatusOr<std::optional<BasisHistograms>> ModelStatistics::HistogramsIn(const ModelBasis& basis) {
  CalibrationRun run = {.n_text_tokens = kHistogramTokens, .gradients = false};
  KVL_ASSIGN_OR_RETURN(run.text_path, TextOfModel(options().model, "calibration.txt"));
  KVL_ASSIGN_OR_RETURN(BasisHistograms histograms, OnWholeModel([&](Workspace* whole) {
                         return RunBasisHistograms(whole, run, basis);
                       }));
  return histograms;
}

StatusOr<std::vector<std::vector<double>>> ModelStatistics::ValueGrams(int n_joined) {
  return WeightGrams(&workspace_->weights()).ValueGrams(n_joined);
}

StatusOr<std::vector<std::vector<double>>> ModelStatistics::KeyGrams(int n_joined) {
  return WeightGrams(&workspace_->weights()).KeyGrams(n_joined);
}

StatusOr<std::vector<std::vector<double>>> ModelStatistics::OutputGrams() {
  return WeightGrams(&workspace_->weights()).OutputGrams(threads());
}

StatusOr<std::vector<std::vector<float>>> ModelStatistics::ValueBiases() {
  return WeightGrams(&workspace_->weights()).ValueBiases();
}

StatusOr<std::vector<std::vector<float>>> ModelStatistics::KeyBiases() {
  return WeightGrams(&workspace_->weights()).KeyBiases();
}

}  // namespace kvlathe
