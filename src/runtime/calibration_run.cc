#include "runtime/calibration_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "analysis/statistics/statistics.h"
#include "calibration/basis_histograms.h"
#include "calibration/fingerprint.h"
#include "calibration/gradients/decoder_gradients.h"
#include "calibration/statistics_store.h"
#include "calibration/token_choice.h"
#include "calibration/weight_fisher.h"
#include "engine/engine.h"
#include "evaluation/quality.h"

namespace kvlathe {
namespace {

// Ids between the special tokens at both ends of the vocabulary.
std::pair<int32_t, int32_t> OrdinaryIds(const Workspace& workspace) {
  const int vocab_size = workspace.config().vocab_size;
  if (workspace.options().model.empty()) return {0, vocab_size};  // random weights, no tokenizer
  const Tokenizer& tokenizer = workspace.tokenizer();
  int32_t first = 0, end = std::min(vocab_size, tokenizer.vocab_size());
  while (first < end && tokenizer.TokenBytes(first).empty()) ++first;
  while (end > first && tokenizer.TokenBytes(end - 1).empty()) --end;
  return {first, end};
}

// Of the matrices that a token is multiplied with.
int64_t MatrixWeights(const ModelConfig& c) {
  const int64_t q = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim;
  int64_t n_rows = int64_t{c.n_layers} * (2 * q + 2 * kv) + c.vocab_size;
  for (int l = 0; l < c.n_layers; ++l) {
    if (!c.has_experts(l)) {
      n_rows += c.mlp_rows() + c.ffn_dim;
      continue;
    }
    const ExpertsConfig& e = *c.experts;
    n_rows += e.n_experts + 3 * (int64_t{e.n_used} * e.ffn_dim + e.shared_ffn_dim);
  }
  return n_rows * c.hidden_dim;
}

StatusOr<TokenSequences> Sequences(const Workspace& workspace, const CalibrationRun& run,
                                   std::string* token_source) {
  const ModelConfig& c = workspace.config();
  int n_tokens = CalibrationSequenceTokens(CalibratedContext(workspace));
  if (run.gradients) n_tokens = std::min(n_tokens, kGradientWindowTokens);
  if (run.text_path.empty()) {
    const auto [first, end] = OrdinaryIds(workspace);
    *token_source = "random";
    return DrawRandomSequences({run.n_random_tokens, run.seed, first, end, c.bos_id}, n_tokens);
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, workspace.TokenizeFile(run.text_path));
  *token_source = "text:" + TokenHash(ids);
  KVL_ASSIGN_OR_RETURN(TokenSequences all,
                       CutSequences(ids, n_tokens, workspace.leading_bos().value_or(-1)));
  const int64_t n_wanted =
      run.n_text_tokens > 0 ? run.n_text_tokens : CalibrationTokens(MatrixWeights(c));
  return ChooseSequences(std::move(all), n_wanted);
}

// Products with weights in blocks round rows while this is there.
class RoundedRows {
 public:
  explicit RoundedRows(Workspace* workspace) : workspace_(workspace) { Set(false); }
  ~RoundedRows() { Set(workspace_->options().exact_rows); }
  RoundedRows(const RoundedRows&) = delete;
  RoundedRows& operator=(const RoundedRows&) = delete;

 private:
  void Set(bool exact) { workspace_->weights().machine().backend().set_exact_rows(exact); }
  Workspace* workspace_;
};

// One sequence from position 0 on, in chunks.
Status RunForward(Model* model, BlockPool* blocks, size_t chunk_tokens,
                  std::span<const int32_t> ids, QkvObserver* observer) {
  SequenceCache cache(&model->layout(), blocks);
  for (size_t begin = 0; begin < ids.size(); begin += chunk_tokens) {
    const size_t n = std::min<size_t>(chunk_tokens, ids.size() - begin);
    KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(n)));
    const SequenceStep step{&cache, ids.subspan(begin, n), SequenceStep::Logits::kNone};
    KVL_RETURN_IF_ERROR(model->Forward({&step, 1}, observer));
  }
  return OkStatus();
}

std::string DescribeSeconds(double seconds) {
  return seconds < 100 ? fmt::format("{:.0f} s", seconds)
                       : fmt::format("{:.0f} minutes", seconds / 60);
}

// The job of a run, but for what it calls.
StatusOr<CalibrationJob> JobOf(const Workspace& workspace, const CalibrationRun& run) {
  CalibrationJob job;
  job.shape = ShapeOf(workspace.config());
  job.attention = workspace.config().attention;
  job.rope_dim = workspace.config().rope_dim();
  job.n_positions = CalibrationPositions(CalibratedContext(workspace));
  const std::optional<QkNormConfig>& qk_norms = workspace.config().norms.of_qk;
  job.turns_on = !qk_norms.has_value() || !qk_norms->weighs_turned_queries;
  job.source.model_hash = workspace.model_hash();
  job.source.rope = workspace.config().DescribePositions();
  job.source.seed = run.text_path.empty() ? run.seed : 0;
  job.source.merging = run.Merging();
  KVL_ASSIGN_OR_RETURN(job.sequences, Sequences(workspace, run, &job.source.token_source));
  job.across_heads = run.across_heads;
  job.key_values = run.key_values;
  job.outputs = run.outputs;
  job.checkpoint_path = run.checkpoint_path;
  job.settings = RowTypeName(workspace.options().row_type);
  return job;
}

// What a person is told while it runs.
void TellOf(Workspace* workspace, CalibrationJob* job) {
  if (const Progress& progress = workspace->progress()) {
    job->on_progress = [progress](double fraction) { progress("calibrating", fraction); };
  }
  job->on_estimate = [workspace](double seconds) {
    // What is nearly done needs no word.
    constexpr double kShort = 5;
    if (seconds < kShort) return;
    workspace->Notify(Note::Kind::kBegun,
                      fmt::format("calibrating takes {} more, by what its first "
                                  "sequence took",
                                  DescribeSeconds(seconds)));
  };
  job->on_checkpoint = [workspace](const std::string& line) {
    workspace->Notify(Note::Kind::kNote, "calibration: " + line);
  };
}

}  // namespace

std::string CalibrationRun::Describe() const {
  return (text_path.empty() ? fmt::format("random {} seed {}", n_random_tokens, seed)
                            : std::string("text")) +
         (merge.has_value() ? " merged by " + Merging() : "");
}

std::string CalibrationRun::SpecText() const {
  if (!merge.has_value()) return "none";
  const std::string of_pool = fmt::format("pool(n={},sink={})", merge->every, kCalibrationSinks);
  return merge->every > 0 ? of_pool
                          : fmt::format("dmc(window={},sink={})", merge->window, kCalibrationSinks);
}

std::string CalibrationRun::Merging() const {
  return merge.has_value() ? NameOf(*merge) : std::string();
}

StatisticsShape ShapeOf(const ModelConfig& config) {
  return {config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim};
}

int CalibratedContext(const Workspace& workspace) {
  return CalibrationContext(workspace.context_tokens(), workspace.config().max_seq_len);
}

StatusOr<CalibrationStatistics> RunCalibration(Workspace* workspace, const CalibrationRun& run,
                                               CalibrationTimes* times) {
  KVL_ASSIGN_OR_RETURN(CalibrationJob job, JobOf(*workspace, run));
  job.pool = workspace->threads();
  job.isa = workspace->isa();
  KVL_ASSIGN_OR_RETURN(const SpecModel baseline, workspace->MakeModel(run.SpecText()));
  BlockPool blocks(MeasuringBudgetBytes(*workspace), &baseline.model->machine().memory());
  // Which rows stay is known where a sequence ends.
  const size_t chunk_tokens = run.merge.has_value() ? job.sequences[0].size() : kChunkTokens;
  job.forward = [&](std::span<const int32_t> ids, QkvObserver* observer) {
    return RunForward(baseline.model.get(), &blocks, chunk_tokens, ids, observer);
  };
  std::optional<DecoderGradients> gradients;
  if (run.gradients) {
    gradients.emplace(&workspace->weights(), workspace->threads(), workspace->isa(),
                      kCalibrationNewest);
    job.gradients = [&gradients](std::span<const int32_t> ids, uint64_t seed, QkvObserver* observer,
                                 const DecoderGradients::Sink& sink) {
      return gradients->Run(ids, seed, sink, observer).status();
    };
  }
  TellOf(workspace, &job);
  const RoundedRows rounded(workspace);
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics statistics, Calibrate(job, times));
  if (job.on_progress) job.on_progress(1);
  return statistics;
}

Status CalibrateInto(Workspace* workspace, CalibrationRun run, const std::string& path) {
  KVL_RETURN_IF_ERROR(CheckCanKeep(path, ShapeOf(workspace->config()), {}));
  run.checkpoint_path = CheckpointPathOf(path);
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics statistics, RunCalibration(workspace, run));
  KVL_RETURN_IF_ERROR(WriteStatistics(statistics, path));
  std::error_code ignored;  // there may be none
  std::filesystem::remove(run.checkpoint_path, ignored);
  return OkStatus();
}

StatusOr<FisherWeights> RunFisher(Workspace* workspace, const CalibrationRun& run) {
  std::string token_source;
  KVL_ASSIGN_OR_RETURN(const TokenSequences sequences, Sequences(*workspace, run, &token_source));
  const ModelConfig& c = workspace->config();
  WeightFisherSums sums(c.n_layers, c.hidden_dim, int64_t{c.n_kv_heads} * c.head_dim,
                        workspace->threads());
  DecoderGradients gradients(&workspace->weights(), workspace->threads(), workspace->isa(),
                             /*newest=*/0);
  const RoundedRows rounded(workspace);
  int64_t n_tokens = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (workspace->progress()) {
      workspace->progress()("Fisher weights",
                            static_cast<double>(i) / static_cast<double>(sequences.size()));
    }
    KVL_RETURN_IF_ERROR(
        gradients.Run(sequences[i], i, [&](const RowGradients& rows) { sums.Add(rows); }).status());
    n_tokens += std::ssize(sequences[i]);
  }
  KVL_ASSIGN_OR_RETURN(FisherWeights weights, sums.Finish(std::ssize(sequences)));
  weights.model_hash = workspace->model_hash();
  weights.token_source = token_source;
  weights.n_tokens = n_tokens;
  return weights;
}

StatusOr<BasisHistograms> RunBasisHistograms(Workspace* workspace, const CalibrationRun& run,
                                             const ModelBasis& basis) {
  KVL_ASSIGN_OR_RETURN(const CalibrationJob job, JobOf(*workspace, run));
  KVL_ASSIGN_OR_RETURN(const SpecModel baseline, workspace->MakeModel("none"));
  BlockPool blocks(MeasuringBudgetBytes(*workspace), &baseline.model->machine().memory());
  const RoundedRows rounded(workspace);
  BasisHistogramSums sums(&basis, workspace->threads());
  const auto n_sequences = std::ssize(job.sequences);
  const std::vector<int> starts =
      SpreadStarts(n_sequences, static_cast<int>(job.sequences.front().size()), job.n_positions);
  for (int64_t i = 0; i < n_sequences; ++i) {
    std::vector<PositionShift> shifts;
    for (int l = 0; l < job.shape.n_layers; ++l) {
      const RopeConfig& rope = job.attention.of(l).rope;
      shifts.emplace_back(starts[i], RopeFrequencies(rope, job.rope_dim), rope.amplitude);
    }
    sums.SetShifts(shifts);
    KVL_RETURN_IF_ERROR(
        RunForward(baseline.model.get(), &blocks, kChunkTokens, job.sequences[i], &sums));
  }
  return sums.histograms();
}

}  // namespace kvlathe
