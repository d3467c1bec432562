#include "runtime/calibration_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "analysis/statistics/statistics.h"
#include "calibration/fingerprint.h"
#include "calibration/gradient_windows.h"
#include "calibration/gradients/decoder_gradients.h"
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

StatusOr<TokenSequences> Sequences(const Workspace& workspace, const CalibrationRun& run,
                                   std::string* token_source) {
  const ModelConfig& c = workspace.config();
  const int n_tokens = CalibrationSequenceTokens(CalibratedContext(workspace));
  if (run.text_path.empty()) {
    const auto [first, end] = OrdinaryIds(workspace);
    *token_source = "random";
    return DrawRandomSequences({run.n_random_tokens, run.seed, first, end, c.bos_id}, n_tokens);
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, workspace.TokenizeFile(run.text_path));
  *token_source = "text:" + TokenHash(ids);
  return CutSequences(ids, n_tokens, workspace.leading_bos().value_or(-1));
}

// What calibration runs, in tokens; those of gradients are 0 where none are taken.
struct CalibrationWork {
  int64_t n_tokens = 0;
  int64_t n_gradient_tokens = 0;
};

// Tells of calibration as one piece of work: statistics first, gradients after them.
class CalibrationProgress {
 public:
  // Work is counted in layers that a token runs.
  CalibrationProgress(Progress to, const StatisticsShape& shape, const CalibrationWork& work)
      : to_(std::move(to)) {
    constexpr double kOfStatistics = 2;  // a forward, and as much to gather what it shows
    constexpr double kOfGradients = 8;   // three forwards in F32
    const double n_layers = shape.n_layers;
    const double statistics = kOfStatistics * static_cast<double>(work.n_tokens) * n_layers;
    const double gradients = kOfGradients * static_cast<double>(work.n_gradient_tokens) * n_layers;
    statistics_end_ = statistics / (statistics + gradients);
  }
  std::function<void(double)> OfStatistics() const { return Part(0, statistics_end_); }
  std::function<void(double)> OfGradients() const { return Part(statistics_end_, 1); }
  void End() const {
    if (to_) to_(kWhat, 1);
  }

 private:
  static constexpr const char* kWhat = "calibrating";
  std::function<void(double)> Part(double begin, double end) const {
    if (!to_) return nullptr;
    return [to = to_, begin, end](double fraction) { to(kWhat, begin + fraction * (end - begin)); };
  }

  Progress to_;
  double statistics_end_ = 1;
};

// Of the matrices that a token is multiplied with.
int64_t MatrixWeights(const ModelConfig& c) {
  const int64_t q = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim;
  const int64_t of_layer = int64_t{c.hidden_dim} * (2 * q + 2 * kv + c.mlp_rows() + c.ffn_dim);
  return c.n_layers * of_layer + int64_t{c.vocab_size} * c.hidden_dim;
}

// How many tokens of its sequences a job takes gradients of.
int64_t TokensWithGradients(const CalibrationJob& job) {
  std::vector<int64_t> sequence_tokens;
  for (const auto& ids : job.sequences) sequence_tokens.push_back(std::ssize(ids));
  int64_t n = 0;
  for (const GradientWindow& window : ChooseGradientWindows(sequence_tokens, job.gradient_tokens)) {
    n += window.n_tokens;
  }
  return n;
}

// Gradients of one window after the other, with the share of all that is done.
class GradientPass {
 public:
  GradientPass(Workspace* workspace, int64_t n_tokens, std::function<void(double)> on_progress)
      : gradients_(&workspace->weights(), workspace->threads(), workspace->isa(),
                   kCalibrationNewest),
        n_layer_tokens_(2 * n_tokens * workspace->config().n_layers),
        on_progress_(std::move(on_progress)) {}

  Status Run(std::span<const int32_t> ids, uint64_t seed, const DecoderGradients::Sink& sink) {
    const auto on_layer = [&] {
      n_done_ += std::ssize(ids);
      if (!on_progress_) return;
      on_progress_(static_cast<double>(n_done_) / static_cast<double>(n_layer_tokens_));
    };
    return gradients_.Run(ids, seed, sink, on_layer).status();
  }

 private:
  DecoderGradients gradients_;
  int64_t n_layer_tokens_;  // tokens times layers, forwards and back
  int64_t n_done_ = 0;
  std::function<void(double)> on_progress_;
};

// The job of a run, but for what it calls.
StatusOr<CalibrationJob> JobOf(const Workspace& workspace, const CalibrationRun& run) {
  CalibrationJob job;
  job.shape = ShapeOf(workspace.config());
  job.attention = workspace.config().attention;
  job.rope_dim = workspace.config().rope_dim();
  job.n_positions = CalibrationPositions(CalibratedContext(workspace));
  job.source.model_hash = workspace.model_hash();
  job.source.rope = workspace.config().DescribePositions();
  job.source.seed = run.text_path.empty() ? run.seed : 0;
  job.source.merging = run.Merging();
  KVL_ASSIGN_OR_RETURN(job.sequences, Sequences(workspace, run, &job.source.token_source));
  job.across_heads = run.across_heads;
  return job;
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
  job.forward = [&](std::span<const int32_t> ids, QkvObserver* observer) -> Status {
    SequenceCache cache(&baseline.model->layout(), &blocks);
    for (size_t begin = 0; begin < ids.size(); begin += chunk_tokens) {
      const size_t n = std::min<size_t>(chunk_tokens, ids.size() - begin);
      KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(n)));
      const SequenceStep step{&cache, ids.subspan(begin, n), SequenceStep::Logits::kNone};
      KVL_RETURN_IF_ERROR(baseline.model->Forward({&step, 1}, observer));
    }
    return OkStatus();
  };
  CalibrationWork work;
  for (const auto& ids : job.sequences) work.n_tokens += std::ssize(ids);
  if (run.gradients) {
    job.gradient_tokens = GradientTokens(MatrixWeights(workspace->config()));
    work.n_gradient_tokens = TokensWithGradients(job);
  }
  const CalibrationProgress progress(workspace->progress(), job.shape, work);
  job.on_progress = progress.OfStatistics();
  if (run.gradients) {
    const auto pass =
        std::make_shared<GradientPass>(workspace, work.n_gradient_tokens, progress.OfGradients());
    job.gradients = [pass](std::span<const int32_t> ids, uint64_t seed,
                           const DecoderGradients::Sink& sink) {
      return pass->Run(ids, seed, sink);
    };
  }
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics statistics, Calibrate(job, times));
  progress.End();
  return statistics;
}

}  // namespace kvlathe
