// A backend whose verbs run as late as their order allows: at Finish, or where the host waits for
// what a verb returns. Plans are copied, and what they pointed to may be gone by then.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "cpu/biting/work_queue.h"
#include "machine/backend.h"

namespace kvlathe {

class LateBackend : public Backend {
 public:
  // Both outlive it. The verbs are those of `backend`.
  LateBackend(Backend* backend, WorkQueue* queue) : backend_(*backend), queue_(*queue) {}

  // Said where a step begins: nothing may be left of the one before, of which the host would never
  // learn what came of it.
  void set_deterministic(bool deterministic) override;
  void set_exact_rows(bool exact) override;
  StatusOr<StepReport> Finish() override;
  std::vector<float> TakeChannel(const TakeChannelPlan& plan) override;
  RoutedRows Route(const RoutePlan& plan) override;
  void MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) override;

  void Embed(const EmbedPlan& plan) override;
  void TakeRows(const TakeRowsPlan& plan) override;
  void Project(const ProductPlan& plan) override;
  void ProjectHeads(const HeadProductsPlan& plan) override;
  void Normalise(std::span<const NormPlan> plans) override;
  void Gate(const GatePlan& plan) override;
  void Cap(const CapPlan& plan) override;
  void GatherRows(const GatherRowsPlan& plan) override;
  void ProjectExperts(const ExpertProductsPlan& plan) override;
  void AddWeighted(const WeightedRowsPlan& plan) override;
  void RotateAndMap(const RotatePlan& plan) override;
  void SumOverRanks(const SumPlan& plan) override;
  void Append(const AppendPlan& plan) override;
  void Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) override;
  void GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) override;
  void Prune(const PrunePlan& plan) override;
  void CutKeys(std::span<const CutItem> items) override;
  void Seal(const SealBatch& batch) override;
  void SealRotated(const RotatedBatch& batch) override;
  void Open(std::span<const OpenedRun> runs) override;
  void MeasureReencodings(std::span<const ReencodedRun> runs) override;

 private:
  void Late(std::function<void()> verb) {
    is_finished_ = false;
    queue_.Add(std::move(verb));
  }

  Backend& backend_;
  WorkQueue& queue_;
  bool is_finished_ = true;
};

}  // namespace kvlathe
