#include "cuda/mirror/mirror.h"

#include <algorithm>

#include "cuda/mirror/list_bytes.h"
#include "cuda/rows/first_experts.h"

namespace kvlathe {

template <typename Plan, typename F>
bool Mirror::Run(std::string_view name, const Plan& plan, const F& verb) {
  if (!announced_.contains(name)) {
    announced_.emplace(name);
    if (parts_.on_verb) parts_.on_verb(name);
  }
  VerbBytes bytes(*parts_.memory, *parts_.residents);
  ListBytes(plan, &bytes);
  for (const WeightId& weight : bytes.weights()) parts_.residents->HoldOnHost(weight);
  const Status brought = parts_.shadow->Bring(bytes);
  parts_.memory->stream().Note(brought);
  if (brought.ok()) {
    verb();
    parts_.shadow->TakeBack(bytes);
  }
  parts_.residents->ReleaseHost();
  return brought.ok();
}

template <typename Item>
std::vector<Item> Mirror::Here(std::span<const Item> items) const {
  std::vector<Item> copies(items.begin(), items.end());
  for (Item& item : copies) item.device = parts_.shadow;
  return copies;
}

void Mirror::set_deterministic(bool deterministic) {
  parts_.verbs->set_deterministic(deterministic);
}
void Mirror::set_exact_rows(bool exact) { parts_.verbs->set_exact_rows(exact); }
void Mirror::set_measures_waiting(bool measures) { parts_.verbs->set_measures_waiting(measures); }

StatusOr<StepReport> Mirror::Finish() { return parts_.verbs->Finish(); }

void Mirror::Embed(const EmbedPlan& plan) {
  Run("Embed", plan, [&] { parts_.verbs->Embed(plan); });
}

void Mirror::TakeRows(const TakeRowsPlan& plan) {
  Run("TakeRows", plan, [&] { parts_.verbs->TakeRows(plan); });
}

std::vector<float> Mirror::TakeChannel(const TakeChannelPlan& plan) {
  std::vector<float> channel(plan.n_rows);
  Run("TakeChannel", plan, [&] { channel = parts_.verbs->TakeChannel(plan); });
  return channel;
}

void Mirror::Project(const ProductPlan& plan) {
  Run("Project", plan, [&] { parts_.verbs->Project(plan); });
}

void Mirror::ProjectHeads(const HeadProductsPlan& plan) {
  Run("ProjectHeads", plan, [&] { parts_.verbs->ProjectHeads(plan); });
}

void Mirror::Normalise(std::span<const NormPlan> plans) {
  Run("Normalise", plans, [&] { parts_.verbs->Normalise(plans); });
}

void Mirror::Gate(const GatePlan& plan) {
  Run("Gate", plan, [&] { parts_.verbs->Gate(plan); });
}

void Mirror::Cap(const CapPlan& plan) {
  Run("Cap", plan, [&] { parts_.verbs->Cap(plan); });
}

RoutedRows Mirror::Route(const RoutePlan& plan) {
  RoutedRows routed;
  const bool has_run = Run("Route", plan, [&] { routed = parts_.verbs->Route(plan); });
  if (has_run) return routed;
  return ToFirstExperts(plan);
}

void Mirror::GatherRows(const GatherRowsPlan& plan) {
  Run("GatherRows", plan, [&] { parts_.verbs->GatherRows(plan); });
}

void Mirror::ProjectExperts(const ExpertProductsPlan& plan) {
  Run("ProjectExperts", plan, [&] { parts_.verbs->ProjectExperts(plan); });
}

void Mirror::AddWeighted(const WeightedRowsPlan& plan) {
  Run("AddWeighted", plan, [&] { parts_.verbs->AddWeighted(plan); });
}

void Mirror::RotateAndMap(const RotatePlan& plan) {
  Run("RotateAndMap", plan, [&] { parts_.verbs->RotateAndMap(plan); });
}

void Mirror::SumOverRanks(const SumPlan& plan) {
  Run("SumOverRanks", plan, [&] { parts_.verbs->SumOverRanks(plan); });
}

void Mirror::Append(const AppendPlan& plan) {
  Run("Append", plan, [&] {
    AppendPlan here = plan;
    for (AppendPlan::Item& item : here.items) item.device = parts_.shadow;
    parts_.verbs->Append(here);
  });
}

void Mirror::Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) {
  Run("Attend", jobs, [&] { parts_.verbs->Attend(Here(jobs), rule, schedule); });
}

void Mirror::GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) {
  Run("GatherGrams", GramBatch{plans, n_dims, type},
      [&] { parts_.verbs->GatherGrams(Here(plans), n_dims, type); });
}

void Mirror::MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) {
  const bool has_run = Run("MergeRows", plan, [&] {
    MergeRowsPlan here = plan;
    const std::vector<MergeItem> items = Here(plan.items);
    here.items = items;
    parts_.verbs->MergeRows(here, n_closed);
  });
  if (has_run) return;
  // As if nothing merged, so that lengths stay possible until Finish tells of the failure.
  for (const MergeItem& item : plan.items) {
    for (int64_t t = 0; t < item.n_tokens; ++t) {
      const bool is_kept_apart = t < item.n_sinks;
      n_closed[item.first_closed + t] =
          is_kept_apart ? -1 : item.n_entries + static_cast<int>(t - item.n_sinks);
    }
  }
}

void Mirror::Prune(const PrunePlan& plan) {
  Run("Prune", plan, [&] {
    PrunePlan here = plan;
    here.device = parts_.shadow;
    parts_.verbs->Prune(here);
  });
}

void Mirror::CutKeys(std::span<const CutItem> items) {
  Run("CutKeys", items, [&] { parts_.verbs->CutKeys(Here(items)); });
}

void Mirror::Seal(const SealBatch& batch) {
  Run("Seal", batch, [&] {
    SealBatch here = batch;
    const std::vector<SealRunPlan> runs = Here(batch.runs);
    here.runs = runs;
    parts_.verbs->Seal(here);
  });
}

void Mirror::SealRotated(const RotatedBatch& batch) {
  Run("SealRotated", batch, [&] {
    RotatedBatch here = batch;
    const std::vector<RotatedHeadPlan> heads = Here(batch.heads);
    here.heads = heads;
    parts_.verbs->SealRotated(here);
  });
}

void Mirror::Open(std::span<const OpenedRun> runs) {
  Run("Open", runs, [&] { parts_.verbs->Open(Here(runs)); });
}

void Mirror::MeasureReencodings(std::span<const ReencodedRun> runs) {
  Run("MeasureReencodings", runs, [&] { parts_.verbs->MeasureReencodings(Here(runs)); });
}

}  // namespace kvlathe
