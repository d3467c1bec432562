// Copies of plans that outlive what their spans and pointers were made of.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "machine/attention/head_job.h"
#include "machine/expert_plans.h"
#include "machine/plans.h"

namespace kvlathe {

// Owns what copies of plans point to.
class KeptPlans {
 public:
  EmbedPlan Keep(EmbedPlan plan);
  HeadProductsPlan Keep(HeadProductsPlan plan);
  RotatePlan Keep(RotatePlan plan);
  TakeRowsPlan Keep(TakeRowsPlan plan);
  GatherRowsPlan Keep(GatherRowsPlan plan);
  ExpertProductsPlan Keep(ExpertProductsPlan plan);
  WeightedRowsPlan Keep(WeightedRowsPlan plan);
  PrunePlan Keep(PrunePlan plan);
  SealBatch Keep(SealBatch batch);
  RotatedBatch Keep(RotatedBatch batch);
  std::span<const HeadJob> KeepJobs(std::span<const HeadJob> jobs);
  std::span<const CutItem> KeepItems(std::span<const CutItem> items);
  std::span<const OpenedRun> KeepRuns(std::span<const OpenedRun> runs);
  std::span<const ReencodedRun> KeepRuns(std::span<const ReencodedRun> runs);
  // Of plans that point to nothing.
  template <typename T>
  std::span<const T> KeepAll(std::span<const T> items) {
    return *Own(std::vector<T>(items.begin(), items.end()));
  }

 private:
  template <typename T>
  std::vector<T>* Own(std::vector<T> items) {
    auto owned = std::make_shared<std::vector<T>>(std::move(items));
    std::vector<T>* const kept = owned.get();
    owned_.push_back(std::move(owned));
    return kept;
  }
  void KeepParts(SealedHead* head);
  void KeepParts(SealHeadPlan* head);

  std::vector<std::shared_ptr<void>> owned_;
};

}  // namespace kvlathe
