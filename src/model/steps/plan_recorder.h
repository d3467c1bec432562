// A backend that computes nothing and keeps the plans that steps hand it, for tests of steps.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"

namespace kvlathe {

class PlanRecorder : public Backend {
 public:
  void set_deterministic(bool) override {}
  void Project(const LinearParams& plan) override { products.push_back(plan); }
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
      for (int64_t t = 0; t < item.n_tokens; ++t) item.n_closed[t] = -1;
    }
  }
  StatusOr<std::vector<int>> Prune(const CacheLayout& layout, int, std::span<const SealedHead>,
                                   SequenceCache*) override {
    return std::vector<int>(layout.n_kv_heads);
  }
  void CutKeys(std::span<const CutItem> items) override { cuts.assign(items.begin(), items.end()); }
  Status Seal(const SealBatch& batch) override {
    ++n_seals;
    return batch.runs.empty() ? OkStatus() : seal_status;
  }
  Status SealRotated(std::span<const RotatedHeadPlan>) override { return OkStatus(); }
  void MeasureReencodings(std::span<const ReencodedRun>, std::span<Reencoding>) override {}

  std::vector<LinearParams> products;
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
  std::vector<CutItem> cuts;
  int n_seals = 0;
  Status seal_status = OkStatus();
};

}  // namespace kvlathe
