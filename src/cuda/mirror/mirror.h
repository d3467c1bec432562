// A backend for verbs that have no kernel: it brings what their plans name to the host, lets the
// CPU compute, and takes what was written back. So every verb and every kind of cache works on a
// GPU from the first day, slowly where something is missing.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cuda/mirror/shadow_device.h"
#include "cuda/residents/cuda_residents.h"
#include "machine/backend.h"

namespace kvlathe {

// Verbs return when they have run. Where the GPU fails they do nothing; its stream has noted why.
class Mirror : public Backend {
 public:
  // All outlive it. `verbs` computes in `shadow`, with the residents of the host beside
  // `residents`. on_verb is called with the name of a verb the first time that it runs here; null:
  // nothing is.
  struct Parts {
    CudaDevice* memory;
    CudaResidents* residents;
    ShadowDevice* shadow;
    CpuBackend* verbs;
    std::function<void(std::string_view verb)> on_verb;
  };
  explicit Mirror(Parts parts) : parts_(std::move(parts)) {}

  void set_deterministic(bool deterministic) override;
  void set_exact_rows(bool exact) override;
  void set_measures_waiting(bool measures) override;
  void Embed(const EmbedPlan& plan) override;
  void TakeRows(const TakeRowsPlan& plan) override;
  std::vector<float> TakeChannel(const TakeChannelPlan& plan) override;
  void Project(const ProductPlan& plan) override;
  void ProjectHeads(const HeadProductsPlan& plan) override;
  void Normalise(std::span<const NormPlan> plans) override;
  void Gate(const GatePlan& plan) override;
  void Cap(const CapPlan& plan) override;
  RoutedRows Route(const RoutePlan& plan) override;
  void GatherRows(const GatherRowsPlan& plan) override;
  void ProjectExperts(const ExpertProductsPlan& plan) override;
  void AddWeighted(const WeightedRowsPlan& plan) override;
  void RotateAndMap(const RotatePlan& plan) override;
  void SumOverRanks(const SumPlan& plan) override;
  // Only of the verbs that have run here.
  StatusOr<StepReport> Finish() override;
  void Append(const AppendPlan& plan) override;
  void Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) override;
  void GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) override;
  void MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) override;
  void Prune(const PrunePlan& plan) override;
  void CutKeys(std::span<const CutItem> items) override;
  void Seal(const SealBatch& batch) override;
  void SealRotated(const RotatedBatch& batch) override;
  void Open(std::span<const OpenedRun> runs) override;
  void MeasureReencodings(std::span<const ReencodedRun> runs) override;

 private:
  // Calls verb(), which reads and writes what the plan says; false where the GPU failed.
  template <typename Plan, typename F>
  bool Run(std::string_view name, const Plan& plan, const F& verb);
  // A copy whose items name the shadow.
  template <typename Item>
  std::vector<Item> Here(std::span<const Item> items) const;

  Parts parts_;
  std::set<std::string, std::less<>> announced_;
};

}  // namespace kvlathe
