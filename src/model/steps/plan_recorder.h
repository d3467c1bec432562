// A backend that computes nothing and keeps the plans that steps hand it, for tests of steps.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "machine/backend.h"

namespace kvlathe {

class PlanRecorder : public Backend {
 public:
  void set_deterministic(bool) override {}
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
  void RotateAndMap(const RotatePlan& plan) override {
    rotation = plan;
    turns.assign(plan.heads.begin(), plan.heads.end());
  }
  void Append(const AppendPlan& plan, std::span<uint8_t> is_finite) override {
    append = plan;
    for (const int item : not_finite) is_finite[item] = 0;
  }
  Status Attend(std::span<const HeadJob> new_jobs, float, Schedule) override {
    jobs.assign(new_jobs.begin(), new_jobs.end());
    return OkStatus();
  }
  void GatherGrams(std::span<const GramPlan> plans, int64_t, DType) override {
    grams.assign(plans.begin(), plans.end());
  }
  void MergeRows(const MergeRowsPlan& plan) override {
    for (const MergeItem& item : plan.items) {
      merges.push_back(item);
      // As if no position joined another.
      for (int64_t t = 0; t < item.n_tokens; ++t) {
        item.n_closed[t] =
            static_cast<int>(t < item.n_sinks ? -1 : item.n_entries + t - item.n_sinks);
      }
    }
  }
  std::vector<int> Prune(const PrunePlan& plan) override {
    prune = plan;
    pruned.assign(plan.heads.begin(), plan.heads.end());
    return std::vector<int>(plan.heads.size());
  }
  void CutKeys(std::span<const CutItem> items) override { cuts.assign(items.begin(), items.end()); }
  // Fails where a run has one of the unsealable blocks.
  Status Seal(const SealBatch& batch) override {
    ++n_seals;
    for (const SealRunPlan& run : batch.runs) {
      if (std::ranges::find(unsealable, run.heads.front().blocks.front()) != unsealable.end()) {
        return Error(StatusCode::kDataLoss, "rows are not finite");
      }
    }
    return OkStatus();
  }
  Status SealRotated(std::span<const RotatedHeadPlan>) override { return OkStatus(); }
  void MeasureReencodings(std::span<const ReencodedRun>, std::span<Reencoding>) override {}

  static constexpr float kDecision = 0.5f;  // what every channel holds

  std::vector<TakeRowsPlan> takes;
  std::vector<TakeChannelPlan> channels;
  std::vector<ProductPlan> products;
  std::vector<HeadProductsPlan::Head> head_products;
  std::vector<NormPlan> norms;
  std::vector<GatePlan> gates;
  RotatePlan rotation;
  std::vector<HeadTurn> turns;
  AppendPlan append;
  std::vector<int> not_finite;  // items of Append that hold NaN
  std::vector<HeadJob> jobs;
  std::vector<GramPlan> grams;
  std::vector<MergeItem> merges;
  PrunePlan prune;
  std::vector<PruneHead> pruned;
  std::vector<CutItem> cuts;
  int n_seals = 0;
  std::vector<ObjectId> unsealable;
};

}  // namespace kvlathe
