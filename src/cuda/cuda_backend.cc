#include "cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <utility>

namespace kvlathe {
namespace {

constexpr int64_t kMostCollected = 64;  // tokens of a step whose work is collected
// The GPU computes so many layers while the host plans the next ones.
constexpr int kLayersAGraph = 8;
constexpr int kMostGraphsAStep = 32;

}  // namespace

CudaBackend::CudaBackend(const Parts& parts)
    : uses_kernels_(parts.uses_kernels),
      stream_(*parts.stream),
      mirror_(*parts.mirror),
      rows_(parts.stream, parts.memory, parts.residents),
      decoding_(parts.stream, parts.memory, parts.n_multiprocessors, parts.shared_bytes),
      prompts_(parts.memory, parts.residents,
               {.n_processors = parts.n_multiprocessors, .shared_bytes = parts.shared_bytes}),
      largest_(parts.memory),
      pruner_(parts.memory),
      appender_(parts.stream, parts.memory),
      sealer_(parts.stream, parts.memory, parts.residents),
      grams_(parts.stream, parts.memory) {}

void CudaBackend::Enter() const { stream_.Enter(); }

void CudaBackend::set_deterministic(bool deterministic) {
  is_deterministic_ = deterministic;
  rows_.set_deterministic(deterministic);
  decoding_.set_deterministic(deterministic);
  prompts_.set_deterministic(deterministic);
  mirror_.set_deterministic(deterministic);
}
void CudaBackend::set_exact_rows(bool exact) { mirror_.set_exact_rows(exact); }
void CudaBackend::set_measures_waiting(bool measures) { mirror_.set_measures_waiting(measures); }

StatusOr<StepReport> CudaBackend::Finish() {
  Enter();
  ReadFlags();
  // All of them forget what failed, whichever tells of it.
  StepReport of_kernels = std::exchange(report_, {});
  const Status of_gpu = stream_.Finish();
  StatusOr<StepReport> report = mirror_.Finish();
  if (!of_gpu.ok()) return of_gpu;
  KVL_RETURN_IF_ERROR(report.status());
  report->failures.insert(report->failures.begin(), of_kernels.failures.begin(),
                          of_kernels.failures.end());
  const auto layer_of = [](const StepReport::Failure& failure) { return failure.layer_idx; };
  std::ranges::stable_sort(report->failures, {}, layer_of);
  return report;
}

void CudaBackend::ReadFlags() {
  appender_.Report(&report_);
  sealer_.Report(&report_);
}

void CudaBackend::Embed(const EmbedPlan& plan) {
  Enter();
  if (!uses_kernels_) return mirror_.Embed(plan);
  // Every step begins here. Those of few tokens are short, and most of their time would be that of
  // asking for one launch after the other.
  collected_tokens_ = std::ssize(plan.tokens) <= kMostCollected ? std::ssize(plan.tokens) : 0;
  n_layers_ = 0;
  CollectLayers();
  rows_.Embed(plan);
}

void CudaBackend::CollectLayers() {
  if (collected_tokens_ == 0) return;
  stream_.HandOver();
  stream_.Collect(collected_tokens_ * kMostGraphsAStep +
                  std::min(n_layers_ / kLayersAGraph, kMostGraphsAStep - 1));
}

void CudaBackend::TakeRows(const TakeRowsPlan& plan) {
  Enter();
  uses_kernels_ ? rows_.TakeRows(plan) : mirror_.TakeRows(plan);
}

// Without the kernel the host looks through all of them itself.
std::vector<LargestNumbers> CudaBackend::FindLargest(const LargestPlan& plan) {
  Enter();
  if (!uses_kernels_) return {};
  return largest_.Find(plan);
}

std::vector<float> CudaBackend::TakeChannel(const TakeChannelPlan& plan) {
  Enter();
  return uses_kernels_ ? rows_.TakeChannel(plan) : mirror_.TakeChannel(plan);
}

void CudaBackend::Project(const ProductPlan& plan) {
  Enter();
  uses_kernels_ ? rows_.Project(plan) : mirror_.Project(plan);
}

void CudaBackend::ProjectHeads(const HeadProductsPlan& plan) {
  Enter();
  uses_kernels_ ? rows_.ProjectHeads(plan) : mirror_.ProjectHeads(plan);
}

void CudaBackend::Normalise(std::span<const NormPlan> plans) {
  Enter();
  uses_kernels_ ? rows_.Normalise(plans) : mirror_.Normalise(plans);
}

void CudaBackend::Gate(const GatePlan& plan) {
  Enter();
  uses_kernels_ ? rows_.Gate(plan) : mirror_.Gate(plan);
}

void CudaBackend::Cap(const CapPlan& plan) {
  Enter();
  uses_kernels_ ? rows_.Cap(plan) : mirror_.Cap(plan);
}

RoutedRows CudaBackend::Route(const RoutePlan& plan) {
  Enter();
  if (!uses_kernels_ || !RowVerbs::Takes(plan)) return mirror_.Route(plan);
  const RoutedRows routed = rows_.Route(plan);
  CollectLayers();  // the host has waited for the work that was collected
  return routed;
}

void CudaBackend::GatherRows(const GatherRowsPlan& plan) {
  Enter();
  uses_kernels_ ? rows_.GatherRows(plan) : mirror_.GatherRows(plan);
}

void CudaBackend::ProjectExperts(const ExpertProductsPlan& plan) {
  Enter();
  uses_kernels_ ? rows_.ProjectExperts(plan) : mirror_.ProjectExperts(plan);
}

void CudaBackend::AddWeighted(const WeightedRowsPlan& plan) {
  Enter();
  uses_kernels_ ? rows_.AddWeighted(plan) : mirror_.AddWeighted(plan);
}

void CudaBackend::RotateAndMap(const RotatePlan& plan) {
  Enter();
  uses_kernels_ ? rows_.RotateAndMap(plan) : mirror_.RotateAndMap(plan);
}

void CudaBackend::SumOverRanks(const SumPlan& plan) {
  Enter();
  mirror_.SumOverRanks(plan);
}

void CudaBackend::Append(const AppendPlan& plan) {
  Enter();
  // Once a layer.
  if (++n_layers_ % kLayersAGraph == 0) CollectLayers();
  if (uses_kernels_) return appender_.Append(plan);
  mirror_.Append(plan);
}

void CudaBackend::Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) {
  Enter();
  if (jobs.empty()) return;
  // Nearly always all go the same way.
  const AttendedBy first = WhoAttends(jobs.front());
  const auto goes_along = [&](const HeadJob& job) { return WhoAttends(job) == first; };
  if (std::ranges::all_of(jobs, goes_along)) return AttendBy(first, jobs, rule, schedule);
  std::array<std::vector<HeadJob>, 3> by_who;
  for (const HeadJob& job : jobs) by_who[static_cast<size_t>(WhoAttends(job))].push_back(job);
  for (size_t who = 0; who < by_who.size(); ++who) {
    if (by_who[who].empty()) continue;
    AttendBy(static_cast<AttendedBy>(who), by_who[who], rule, schedule);
  }
}

CudaBackend::AttendedBy CudaBackend::WhoAttends(const HeadJob& job) const {
  if (!uses_kernels_) return AttendedBy::kMirror;
  // A row gets other bits from each of the kernels, and the faster one takes few rows alone.
  if (!is_deterministic_ && decoding_.Takes(job)) return AttendedBy::kDecoding;
  return prompts_.Takes(job) ? AttendedBy::kPrompts : AttendedBy::kMirror;
}

void CudaBackend::AttendBy(AttendedBy who, std::span<const HeadJob> jobs, const ScoreRule& rule,
                           Schedule schedule) {
  switch (who) {
    case AttendedBy::kDecoding:
      return decoding_.Attend(jobs, rule, schedule);
    case AttendedBy::kPrompts:
      return prompts_.Attend(jobs, rule);
    case AttendedBy::kMirror:
      return mirror_.Attend(jobs, rule, schedule);
  }
}

void CudaBackend::GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) {
  Enter();
  if (uses_kernels_) return grams_.Gather(plans, n_dims, type);
  mirror_.GatherGrams(plans, n_dims, type);
}

void CudaBackend::MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) {
  Enter();
  mirror_.MergeRows(plan, n_closed);
}

void CudaBackend::Prune(const PrunePlan& plan) {
  Enter();
  if (uses_kernels_ && CudaPruner::Takes(plan)) return pruner_.Prune(plan);
  mirror_.Prune(plan);
}

void CudaBackend::CutKeys(std::span<const CutItem> items) {
  Enter();
  mirror_.CutKeys(items);
}

void CudaBackend::Seal(const SealBatch& batch) {
  Enter();
  if (uses_kernels_ && sealer_.Takes(batch)) return sealer_.Seal(batch);
  mirror_.Seal(batch);
}

void CudaBackend::SealRotated(const RotatedBatch& batch) {
  Enter();
  mirror_.SealRotated(batch);
}

void CudaBackend::Open(std::span<const OpenedRun> runs) {
  Enter();
  mirror_.Open(runs);
}

void CudaBackend::MeasureReencodings(std::span<const ReencodedRun> runs) {
  Enter();
  // What could not be sealed holds nothing that can be read.
  ReadFlags();
  std::vector<ReencodedRun> sound;
  for (const ReencodedRun& run : runs) {
    const auto has_failed = [&](const auto& f) { return f.sequence == run.sequence; };
    if (std::ranges::none_of(report_.failures, has_failed)) sound.push_back(run);
  }
  mirror_.MeasureReencodings(sound);
}

}  // namespace kvlathe
