#include "calibration/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "analysis/statistics/positive.h"
#include "base/clock.h"
#include "base/random.h"
#include "calibration/accumulator.h"
#include "calibration/checkpoint.h"
#include "calibration/fingerprint.h"
#include "calibration/joint_moments.h"
#include "calibration/outputs/output_moments.h"
#include "calibration/position_shift.h"
#include "format/keys.h"

namespace kvlathe {
namespace {

constexpr int kShortestSequence = kCalibrationSinks + 1;

Status CheckSequenceTokens(int sequence_tokens) {
  if (sequence_tokens >= kShortestSequence) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "calibration needs sequences of at least {} tokens, the context allows {}",
               kShortestSequence, sequence_tokens);
}

// All that calibration adds up.
struct CalibrationSums {
  explicit CalibrationSums(const CalibrationJob& job)
      : rows(job.shape, job.pool, job.isa, job.across_heads),
        joint(job.shape, MostTurningPairs(job.rope_dim), job.rope_dim / 2, job.pool) {
    if (job.outputs) outputs.emplace(job.shape, job.pool, job.isa);
    if (job.gradients) fisher.emplace(job.shape, MostTurningPairs(job.rope_dim), job.pool);
    if (!job.key_values || !job.gradients) return;
    key_values.emplace(job.shape, MostTurningPairs(job.rope_dim), job.rope_dim / 2, job.pool);
    joint.set_key_values(&*key_values);
    fisher->set_key_values(&*key_values);
  }
  SumBytes Bytes() {
    SumBytes bytes;
    rows.AppendTo(&bytes);
    joint.AppendTo(&bytes);
    if (outputs.has_value()) outputs->AppendTo(&bytes);
    if (fisher.has_value()) fisher->AppendTo(&bytes);
    if (key_values.has_value()) key_values->AppendTo(&bytes);
    return bytes;
  }

  StatisticsAccumulator rows;
  JointMomentSums joint;
  std::optional<OutputMoments> outputs;
  std::optional<FisherSums> fisher;
  std::optional<KeyValueSums> key_values;
};

// Everything that the sums of a job depend on, and how they are kept.
std::string CheckpointKey(const CalibrationJob& job) {
  constexpr uint64_t kVersion = 6;  // of what is summed up, and in which order
  Fingerprint key;
  key.Add(kVersion);
  for (const std::string* text : {&job.source.model_hash, &job.source.rope,
                                  &job.source.token_source, &job.source.merging, &job.settings}) {
    key.Add(*text);
  }
  const StatisticsShape& s = job.shape;
  for (const int64_t number :
       {int64_t{s.n_layers}, int64_t{s.n_heads}, int64_t{s.n_kv_heads}, int64_t{s.head_dim},
        int64_t{job.n_positions}, int64_t{job.turns_on}, int64_t{job.across_heads},
        int64_t{job.outputs}, int64_t{job.key_values}, int64_t{job.gradients != nullptr},
        static_cast<int64_t>(job.isa), static_cast<int64_t>(job.source.seed)}) {
    key.Add(static_cast<uint64_t>(number));
  }
  for (const auto& ids : job.sequences) key.Add(TokenHash(ids));
  return key.Hex();
}

// Runs the sequences of a job one after the other.
class CalibrationPass : public QkvObserver {
 public:
  CalibrationPass(const CalibrationJob& job, CalibrationTimes* times)
      : job_(job), times_(times), sums_(std::make_unique<CalibrationSums>(job)) {
    for (const auto& sequence : job.sequences) {
      n_tokens_ += std::ssize(sequence);
      sequence_tokens_ = std::max(sequence_tokens_, static_cast<int>(sequence.size()));
    }
    MakeShifts();
    if (!job.checkpoint_path.empty()) place_ = {job.checkpoint_path, CheckpointKey(job)};
  }
  Status Run();
  StatusOr<CalibrationStatistics> Finish();

  void Observe(const QkvView& view) override {
    {
      const ScopedTimer timer(&times_->moments);
      sums_->rows.Observe(view);
      sums_->joint.Observe(view);
    }
    if (gradient_watch_.has_value()) forward_seconds_ = gradient_watch_->Seconds();
    CountWork(view.n_tokens);
  }
  bool wants_outputs() const override { return sums_->outputs.has_value(); }
  void ObserveOutputs(const OutputsView& view) override {
    if (!sums_->outputs.has_value()) return;
    const ScopedTimer timer(&times_->moments);
    sums_->outputs->Observe(view);
  }

 private:
  int64_t n_sequences() const { return std::ssize(job_.sequences); }
  bool observes_gradients() const { return job_.gradients && job_.source.merging.empty(); }
  // Work is counted in forwards of a token through a layer. The way back makes a layer anew, and
  // its products are F32.
  int64_t WorkOf(int64_t n_sequence_tokens) const {
    const int64_t n_back = job_.gradients ? kBack : 0;
    return n_sequence_tokens * job_.shape.n_layers * (1 + n_back);
  }
  void CountWork(int64_t work);
  void MakeShifts();
  void Resume();
  Status RunSequence(int64_t idx);
  Status RunGradients(int64_t idx);
  void Keep(int64_t n_done);
  void Tell(const std::string& line) const {
    if (job_.on_checkpoint) job_.on_checkpoint(line);
  }

  static constexpr int64_t kBack = 3;

  const CalibrationJob& job_;
  CalibrationTimes* times_;
  int64_t n_tokens_ = 0;
  int sequence_tokens_ = 0;                         // of the longest
  std::vector<std::vector<PositionShift>> shifts_;  // of sequences and layers
  std::unique_ptr<CalibrationSums> sums_;
  int64_t n_resumed_ = 0;  // sequences
  int64_t work_done_ = 0;
  std::optional<Stopwatch>
      gradient_watch_;          // since a sequence began, while its gradients are taken
  double forward_seconds_ = 0;  // of it, until the last layer was shown
  std::optional<CheckpointPlace> place_;
  Stopwatch since_kept_;
  double keeping_seconds_ = 0;  // that the last checkpoint took
};

void CalibrationPass::MakeShifts() {
  const int n_positions = job_.turns_on ? job_.n_positions : 0;
  for (const int start : SpreadStarts(n_sequences(), sequence_tokens_, n_positions)) {
    std::vector<PositionShift>& of_layers = shifts_.emplace_back();
    for (int l = 0; l < job_.shape.n_layers; ++l) {
      const RopeConfig& rope = job_.attention.of(l).rope;
      of_layers.emplace_back(start, RopeFrequencies(rope, job_.rope_dim), rope.amplitude);
    }
  }
}

void CalibrationPass::CountWork(int64_t work) {
  work_done_ += work;
  if (!job_.on_progress) return;
  job_.on_progress(static_cast<double>(work_done_) / static_cast<double>(WorkOf(n_tokens_)));
}

void CalibrationPass::Resume() {
  if (!place_.has_value()) return;
  const StatusOr<int64_t> n_done = ReadCheckpoint(*place_, sums_->Bytes());
  if (!n_done.ok() || *n_done > n_sequences()) {
    Tell(fmt::format("{}; calibration begins anew",
                     n_done.ok() ? place_->path : MessageOf(n_done.status())));
    sums_ = std::make_unique<CalibrationSums>(job_);
    return;
  }
  n_resumed_ = *n_done;
  if (n_resumed_ == 0) return;
  for (int64_t i = 0; i < n_resumed_; ++i) work_done_ += WorkOf(std::ssize(job_.sequences[i]));
  Tell(fmt::format("goes on behind {} of {} sequences, which {} holds", n_resumed_, n_sequences(),
                   place_->path));
}

// Writing takes a twentieth of the time at most.
void CalibrationPass::Keep(int64_t n_done) {
  constexpr double kShare = 20;
  const bool is_always = job_.checkpoint_seconds == 0;
  const double least = is_always ? 0 : std::max(job_.checkpoint_seconds, kShare * keeping_seconds_);
  if (!place_.has_value() || n_done == n_sequences() || since_kept_.Seconds() < least) return;
  const Stopwatch watch;
  const Status status = WriteCheckpoint(*place_, n_done, sums_->Bytes());
  if (!status.ok()) {
    Tell("calibration cannot go on where it is, should it be interrupted: " + MessageOf(status));
    place_.reset();
    return;
  }
  keeping_seconds_ = watch.Seconds();
  since_kept_.Restart();
}

Status CalibrationPass::RunGradients(int64_t idx) {
  const bool is_held_back = IsHeldBack(idx, n_sequences());
  const double moments_before = times_->moments;
  forward_seconds_ = 0;
  gradient_watch_.emplace();
  const auto sink = [&](const RowGradients& gradients) {
    sums_->fisher->Add(gradients, shifts_[idx][gradients.layer_idx], sums_->joint.turning_means(),
                       is_held_back);
    CountWork(kBack * gradients.n_tokens);
  };
  QkvObserver* const observer = observes_gradients() ? this : nullptr;
  const std::vector<int32_t>& ids = job_.sequences[idx];
  KVL_RETURN_IF_ERROR(job_.gradients(ids, static_cast<uint64_t>(idx), observer, sink));
  sums_->fisher->CountTokens(std::ssize(ids), is_held_back);
  times_->gradients += gradient_watch_->Seconds() - forward_seconds_;
  times_->forward += forward_seconds_ - (times_->moments - moments_before);
  gradient_watch_.reset();
  return OkStatus();
}

Status CalibrationPass::RunSequence(int64_t idx) {
  sums_->rows.SetShifts(shifts_[idx]);
  sums_->joint.BeginSequence(shifts_[idx], IsHeldBack(idx, n_sequences()));
  if (!observes_gradients()) {
    const Stopwatch watch;
    const double moments_before = times_->moments;
    KVL_RETURN_IF_ERROR(job_.forward(job_.sequences[idx], this));
    times_->forward += watch.Seconds() - (times_->moments - moments_before);
    KVL_RETURN_IF_ERROR(sums_->rows.status());
  }
  if (job_.gradients) KVL_RETURN_IF_ERROR(RunGradients(idx));
  return sums_->rows.status();
}

Status CalibrationPass::Run() {
  Resume();
  const int64_t work_before = work_done_;
  const Stopwatch watch;
  for (int64_t i = n_resumed_; i < n_sequences(); ++i) {
    KVL_RETURN_IF_ERROR(RunSequence(i));
    Keep(i + 1);
    if (i > n_resumed_ || i + 1 == n_sequences() || !job_.on_estimate) continue;
    const auto left = static_cast<double>(WorkOf(n_tokens_) - work_done_);
    job_.on_estimate(watch.Seconds() * left / static_cast<double>(work_done_ - work_before));
  }
  return OkStatus();
}

StatusOr<CalibrationStatistics> CalibrationPass::Finish() {
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics statistics, sums_->rows.Finish());
  if (sums_->fisher.has_value()) {
    sums_->joint.SettleTurningMeans(sums_->fisher->keys_before_rope());
    if (sums_->key_values.has_value()) {
      KVL_RETURN_IF_ERROR(sums_->key_values->Finish(sums_->joint.turning_means(),
                                                    sums_->fisher->n_tokens(), &statistics));
    }
    KVL_RETURN_IF_ERROR(sums_->fisher->Finish(sums_->joint.turning_means(), &statistics));
  }
  if (sums_->outputs.has_value()) {
    KVL_RETURN_IF_ERROR(sums_->outputs->Finish(&statistics));
  }
  sums_->joint.Finish(&statistics);
  statistics.source = job_.source;
  statistics.source.n_tokens = n_tokens_;
  statistics.source.sequence_tokens = sequence_tokens_;
  statistics.source.n_positions = std::max(job_.n_positions, sequence_tokens_);
  KVL_RETURN_IF_ERROR(CheckCovariances(statistics, job_.pool));
  return statistics;
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
  CalibrationTimes of_parts;
  CalibrationPass pass(job, times != nullptr ? times : &of_parts);
  KVL_RETURN_IF_ERROR(pass.Run());
  return pass.Finish();
}

}  // namespace kvlathe
