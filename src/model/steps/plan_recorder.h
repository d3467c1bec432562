// A backend that computes nothing and keeps the plans that steps hand it, for tests of steps.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "machine/backend.h"

namespace kvlathe {

class PlanRecorder : public Backend {
 public:
  void set_deterministic(bool) override {}
  void Embed(const EmbedPlan&) override {}
  void TakeRows(const TakeRowsPlan& plan) override { takes.push_back(plan); }
  std::vector<float> TakeChannel(const TakeChannelPlan& plan) override {
    channels.push_back(plan);
    return std::vector<float>(plan.n_rows, kDecision);
  }
  void Project(const ProductPlan& plan) override { products.push_back(plan); }
  void ProjectHeads(const HeadProductsPlan& plan) override {
    head_products.assign(plan.heads.begin(), plan.heads.end());
  }
  void Normalise(std::span<const NormPlan> plans) override {
    norms.insert(norms.end(), plans.begin(), plans.end());
  }
  void Gate(const GatePlan& plan) override { gates.push_back(plan); }
  void Cap(const CapPlan& plan) override { caps.push_back(plan); }
  // Every row goes to the first experts, which weigh the same.
  RoutedRows Route(const RoutePlan& plan) override {
    routes.push_back(plan);
    RoutedRows routed;
    for (int64_t i = 0; i < plan.n_rows * plan.rule.n_used; ++i) {
      routed.experts.push_back(static_cast<int32_t>(i % plan.rule.n_used));
      routed.weights.push_back(1.0f / static_cast<float>(plan.rule.n_used));
    }
    if (plan.has_gate_row) routed.gates.assign(plan.n_rows, kDecision);
    return routed;
  }
  void GatherRows(const GatherRowsPlan& plan) override {
    gathers.emplace_back(plan.from.begin(), plan.from.end());
  }
  void ProjectExperts(const ExpertProductsPlan& plan) override {
    expert_products.emplace_back(plan.items.begin(), plan.items.end());
  }
  void AddWeighted(const WeightedRowsPlan& plan) override {
    weighted.push_back(plan);
    weighted_rows.emplace_back(plan.rows.begin(), plan.rows.end());
  }
  void RotateAndMap(const RotatePlan& plan) override {
    rotation = plan;
    turns.assign(plan.heads.begin(), plan.heads.end());
  }
  void SumOverRanks(const SumPlan& plan) override { sums.push_back(plan); }
  StatusOr<StepReport> Finish() override { return std::exchange(report, {}); }
  void Append(const AppendPlan& plan) override { append = plan; }
  void Attend(std::span<const HeadJob> new_jobs, const ScoreRule&, Schedule) override {
    jobs.assign(new_jobs.begin(), new_jobs.end());
  }
  void GatherGrams(std::span<const GramPlan> plans, int64_t, DType) override {
    grams.assign(plans.begin(), plans.end());
  }
  void MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) override {
    for (const MergeItem& item : plan.items) {
      merges.push_back(item);
      // As if no position joined another.
      for (int64_t t = 0; t < item.n_tokens; ++t) {
        n_closed[item.first_closed + t] =
            static_cast<int>(t < item.n_sinks ? -1 : item.n_entries + t - item.n_sinks);
      }
    }
  }
  void Prune(const PrunePlan& plan) override {
    prune = plan;
    pruned.assign(plan.heads.begin(), plan.heads.end());
  }
  void CutKeys(std::span<const CutItem> items) override { cuts.assign(items.begin(), items.end()); }
  void Seal(const SealBatch& batch) override {
    ++n_seals;
    seals.assign(batch.runs.begin(), batch.runs.end());
  }
  void SealRotated(const RotatedBatch&) override {}
  void Open(std::span<const OpenedRun>) override {}
  void MeasureReencodings(std::span<const ReencodedRun>) override {}

  static constexpr float kDecision = 0.5f;  // what every channel holds

  std::vector<TakeRowsPlan> takes;
  std::vector<TakeChannelPlan> channels;
  std::vector<ProductPlan> products;
  std::vector<HeadProductsPlan::Head> head_products;
  std::vector<NormPlan> norms;
  std::vector<GatePlan> gates;
  std::vector<CapPlan> caps;
  std::vector<RoutePlan> routes;
  std::vector<std::vector<int64_t>> gathers;  // GatherRowsPlan::from
  std::vector<std::vector<ExpertProductsPlan::Item>> expert_products;
  std::vector<WeightedRowsPlan> weighted;  // what their spans point to may be gone
  std::vector<std::vector<int64_t>> weighted_rows;
  std::vector<SumPlan> sums;
  RotatePlan rotation;
  std::vector<HeadTurn> turns;
  AppendPlan append;
  std::vector<HeadJob> jobs;
  std::vector<GramPlan> grams;
  std::vector<MergeItem> merges;
  PrunePlan prune;
  std::vector<PruneHead> pruned;
  std::vector<CutItem> cuts;
  int n_seals = 0;
  std::vector<SealRunPlan> seals;  // of the last call; what their spans point to may be gone
  StepReport report;               // of the next Finish
};

}  // namespace kvlathe
