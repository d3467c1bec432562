#include "calibration/calibrate.h"

#include <algorithm>
#include <utility>

#include "analysis/statistics/positive.h"
#include "base/clock.h"
#include "base/random.h"
#include "calibration/accumulator.h"
#include "calibration/gradient_windows.h"
#include "calibration/joint_moments.h"
#include "calibration/position_shift.h"

namespace kvlathe {
namespace {

// Shows every view to all observers, takes their time and tells what share of all rows was seen.
class TimedObservers : public QkvObserver {
 public:
  TimedObservers(QkvObserver* moments, QkvObserver* joint_moments, const CalibrationJob& job,
                 int64_t n_tokens, CalibrationTimes* times)
      : moments_(moments),
        joint_moments_(joint_moments),
        job_(job),
        n_rows_(n_tokens * job.shape.n_layers),
        times_(times) {}
  void Observe(const QkvView& view) override {
    {
      const ScopedTimer timer(&times_->moments);
      moments_->Observe(view);
      joint_moments_->Observe(view);
    }
    n_seen_ += view.n_tokens;
    if (job_.on_progress) {
      job_.on_progress(static_cast<double>(n_seen_) / static_cast<double>(n_rows_));
    }
  }

 private:
  QkvObserver* moments_;
  QkvObserver* joint_moments_;
  const CalibrationJob& job_;
  int64_t n_rows_;
  int64_t n_seen_ = 0;
  CalibrationTimes* times_;
};

constexpr int kShortestSequence = kCalibrationSinks + 1;

Status CheckSequenceTokens(int sequence_tokens) {
  if (sequence_tokens >= kShortestSequence) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "calibration needs sequences of at least {} tokens, the context allows {}",
               kShortestSequence, sequence_tokens);
}

// Of every sequence: the shifts of the layers.
std::vector<std::vector<PositionShift>> ShiftsOf(const CalibrationJob& job, int64_t n_sequences,
                                                 int sequence_tokens, int n_positions) {
  std::vector<std::vector<PositionShift>> shifts;
  for (const int start : SpreadStarts(n_sequences, sequence_tokens, n_positions)) {
    std::vector<PositionShift>& of_layers = shifts.emplace_back();
    for (int l = 0; l < job.shape.n_layers; ++l) {
      of_layers.emplace_back(start, RopeFrequencies(job.attention.of(l).rope, job.rope_dim));
    }
  }
  return shifts;
}

// Fills JointMoments::fisher. Windows are shorter than sequences, so they are taken to start all
// over the n_positions on their own, those that are held back and the others.
Status MeasureGradients(const CalibrationJob& job, int n_positions,
                        CalibrationStatistics* statistics) {
  std::vector<int64_t> sequence_tokens;
  for (const auto& sequence : job.sequences) sequence_tokens.push_back(std::ssize(sequence));
  const std::vector<GradientWindow> windows =
      ChooseGradientWindows(sequence_tokens, job.gradient_tokens);
  int64_t n_windows[2] = {}, window_tokens = 0;
  for (const GradientWindow& window : windows) {
    ++n_windows[window.is_held_back ? 1 : 0];
    window_tokens = std::max(window_tokens, window.n_tokens);
  }
  std::vector<std::vector<PositionShift>> shifts[2];
  for (int part = 0; part < 2; ++part) {
    shifts[part] = ShiftsOf(job, n_windows[part], static_cast<int>(window_tokens), n_positions);
  }
  FisherSums sums(job.pool, statistics);
  size_t n_done[2] = {};
  uint64_t seed = 0;
  for (const GradientWindow& window : windows) {
    const int part = window.is_held_back ? 1 : 0;
    const std::vector<PositionShift>& of_layers = shifts[part][n_done[part]++];
    const auto sink = [&](const RowGradients& gradients) {
      sums.Add(gradients, of_layers[gradients.layer_idx], window.is_held_back);
    };
    const auto ids = std::span(job.sequences[window.sequence_idx]);
    KVL_RETURN_IF_ERROR(job.gradients(ids.subspan(window.begin, window.n_tokens), seed++, sink));
    sums.CountTokens(window.n_tokens, window.is_held_back);
  }
  return sums.Finish();
}

}  // namespace

StatusOr<TokenSequences> DrawRandomSequences(const RandomTokens& tokens, int sequence_tokens) {
  KVL_RETURN_IF_ERROR(CheckSequenceTokens(sequence_tokens));
  if (tokens.first_id < 0 || tokens.first_id >= tokens.vocab_size) {
    return Error(StatusCode::kInvalidArgument, "no token ids to draw from in [{}, {})",
                 tokens.first_id, tokens.vocab_size);
  }
  if (tokens.n_tokens < kShortestSequence || tokens.n_tokens > (1 << 24)) {
    return Error(StatusCode::kInvalidArgument,
                 "{} random tokens: calibration takes {} to {}, and {} are usual", tokens.n_tokens,
                 kShortestSequence, 1 << 24, kDefaultCalibrationTokens);
  }
  Random random(tokens.seed);
  const auto n_ids = static_cast<uint64_t>(tokens.vocab_size - tokens.first_id);
  TokenSequences sequences;
  for (int64_t n_left = tokens.n_tokens; n_left >= kShortestSequence;) {
    std::vector<int32_t> sequence(std::min<int64_t>(n_left, sequence_tokens));
    for (int32_t& id : sequence) id = tokens.first_id + static_cast<int32_t>(random.Below(n_ids));
    if (tokens.bos_id >= 0) sequence[0] = tokens.bos_id;
    n_left -= static_cast<int64_t>(sequence.size());
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

StatusOr<TokenSequences> CutSequences(std::span<const int32_t> token_ids, int sequence_tokens,
                                      int32_t bos_id) {
  KVL_RETURN_IF_ERROR(CheckSequenceTokens(sequence_tokens));
  const size_t n_bos = bos_id >= 0 ? 1 : 0;
  TokenSequences sequences;
  while (token_ids.size() + n_bos >= size_t{kShortestSequence}) {
    const size_t n_ids = std::min(token_ids.size(), size_t(sequence_tokens) - n_bos);
    std::vector<int32_t> sequence;
    if (n_bos > 0) sequence.push_back(bos_id);
    sequence.insert(sequence.end(), token_ids.begin(), token_ids.begin() + n_ids);
    token_ids = token_ids.subspan(n_ids);
    sequences.push_back(std::move(sequence));
  }
  if (sequences.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "the calibration text has fewer than {} tokens; {} are usual", kShortestSequence,
                 kDefaultCalibrationTokens);
  }
  return sequences;
}

StatusOr<CalibrationStatistics> Calibrate(const CalibrationJob& job, CalibrationTimes* times) {
  int64_t n_tokens = 0;
  size_t sequence_tokens = 0;
  for (const auto& sequence : job.sequences) {
    n_tokens += static_cast<int64_t>(sequence.size());
    sequence_tokens = std::max(sequence_tokens, sequence.size());
  }
  CalibrationTimes of_parts;
  if (times == nullptr) times = &of_parts;
  StatisticsAccumulator accumulator(job.shape, job.pool, job.isa, job.across_heads);
  JointMomentSums joint_moments(job.shape, job.pool);
  TimedObservers observers(&accumulator, &joint_moments, job, n_tokens, times);
  const auto n_sequences = std::ssize(job.sequences);
  const std::vector<std::vector<PositionShift>> shifts =
      ShiftsOf(job, n_sequences, static_cast<int>(sequence_tokens), job.n_positions);
  Stopwatch watch;
  for (int64_t i = 0; i < n_sequences; ++i) {
    accumulator.SetShifts(shifts[i]);
    joint_moments.BeginSequence(shifts[i], IsHeldBack(i, n_sequences));
    KVL_RETURN_IF_ERROR(job.forward(job.sequences[i], &observers));
    KVL_RETURN_IF_ERROR(accumulator.status());
  }
  times->forward = watch.Seconds() - times->moments;
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics statistics, accumulator.Finish());
  joint_moments.Finish(&statistics);
  statistics.source = job.source;
  statistics.source.n_tokens = n_tokens;
  statistics.source.sequence_tokens = static_cast<int>(sequence_tokens);
  statistics.source.n_positions = std::max(job.n_positions, static_cast<int>(sequence_tokens));
  if (job.gradients) {
    watch.Restart();
    KVL_RETURN_IF_ERROR(MeasureGradients(job, statistics.source.n_positions, &statistics));
    times->gradients = watch.Seconds();
  }
  KVL_RETURN_IF_ERROR(CheckCovariances(statistics, job.pool));
  return statistics;
}

}  // namespace kvlathe
