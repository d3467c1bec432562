#include "cpu/biting/late_backend.h"

#include <memory>

#include "base/check.h"
#include "cpu/biting/kept_plans.h"

namespace kvlathe {

void LateBackend::set_deterministic(bool deterministic) {
  KVL_CHECK(is_finished_);
  backend_.set_deterministic(deterministic);
}

void LateBackend::set_exact_rows(bool exact) {
  KVL_CHECK(is_finished_);
  backend_.set_exact_rows(exact);
}

StatusOr<StepReport> LateBackend::Finish() {
  queue_.Run();
  is_finished_ = true;
  return backend_.Finish();
}

std::vector<float> LateBackend::TakeChannel(const TakeChannelPlan& plan) {
  queue_.Run();
  return backend_.TakeChannel(plan);
}

RoutedRows LateBackend::Route(const RoutePlan& plan) {
  queue_.Run();
  return backend_.Route(plan);
}

void LateBackend::MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) {
  queue_.Run();
  backend_.MergeRows(plan, n_closed);
}

void LateBackend::Embed(const EmbedPlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.Embed(copy); });
}

void LateBackend::TakeRows(const TakeRowsPlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.TakeRows(copy); });
}

void LateBackend::Project(const ProductPlan& plan) {
  Late([this, plan] { backend_.Project(plan); });
}

void LateBackend::ProjectHeads(const HeadProductsPlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.ProjectHeads(copy); });
}

void LateBackend::Normalise(std::span<const NormPlan> plans) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->KeepAll(plans)] { backend_.Normalise(copy); });
}

void LateBackend::Gate(const GatePlan& plan) {
  Late([this, plan] { backend_.Gate(plan); });
}

void LateBackend::Cap(const CapPlan& plan) {
  Late([this, plan] { backend_.Cap(plan); });
}

void LateBackend::GatherRows(const GatherRowsPlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.GatherRows(copy); });
}

void LateBackend::ProjectExperts(const ExpertProductsPlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.ProjectExperts(copy); });
}

void LateBackend::AddWeighted(const WeightedRowsPlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.AddWeighted(copy); });
}

void LateBackend::RotateAndMap(const RotatePlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.RotateAndMap(copy); });
}

void LateBackend::SumOverRanks(const SumPlan& plan) {
  Late([this, plan] { backend_.SumOverRanks(plan); });
}

void LateBackend::Append(const AppendPlan& plan) {
  Late([this, plan] { backend_.Append(plan); });
}

void LateBackend::Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, rule, schedule, copy = kept->KeepJobs(jobs)] {
    backend_.Attend(copy, rule, schedule);
  });
}

void LateBackend::GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, n_dims, type, copy = kept->KeepAll(plans)] {
    backend_.GatherGrams(copy, n_dims, type);
  });
}

void LateBackend::Prune(const PrunePlan& plan) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(plan)] { backend_.Prune(copy); });
}

void LateBackend::CutKeys(std::span<const CutItem> items) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->KeepItems(items)] { backend_.CutKeys(copy); });
}

void LateBackend::Seal(const SealBatch& batch) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(batch)] { backend_.Seal(copy); });
}

void LateBackend::SealRotated(const RotatedBatch& batch) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->Keep(batch)] { backend_.SealRotated(copy); });
}

void LateBackend::Open(std::span<const OpenedRun> runs) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->KeepRuns(runs)] { backend_.Open(copy); });
}

void LateBackend::MeasureReencodings(std::span<const ReencodedRun> runs) {
  const auto kept = std::make_shared<KeptPlans>();
  Late([this, kept, copy = kept->KeepRuns(runs)] { backend_.MeasureReencodings(copy); });
}

}  // namespace kvlathe
