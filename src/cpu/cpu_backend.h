// The backend of this machine's processors. It computes in host memory, with a pool of workers and
// the kernels of one instruction set.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "cpu/attention/attention.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "cpu/kernels/linear/linear.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/kernels/seal/seal.h"
#include "machine/backend.h"

namespace kvlathe {

// Computes on the workers of `pool` with the kernels of `isa`. Activations and tables lie in
// `memory`, weights and maps are among `residents`; all three outlive it.
class CpuBackend : public Backend {
 public:
  CpuBackend(ThreadPool* pool, Isa isa, CpuDevice* memory, const CpuResidents* residents);

  void set_deterministic(bool deterministic) override;
  void set_exact_rows(bool exact) override { linear_.set_exact_rows(exact); }
  void set_exact_attention(bool exact) { attention_.set_exact(exact); }
  // The machines that hold other parts of the same layers, which outlive this; null: none.
  void set_ranks(Communicator* ranks) { ranks_ = ranks; }
  void set_measures_waiting(bool measures) override { measures_waiting_ = measures; }
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
  // A sealer and what it was made for.
  struct KnownSealer {
    PackedFormat format;
    DType row_type;
    int power_loops;
    std::unique_ptr<Sealer> sealer;
  };

  // Calls fn(Range) over shares of n_rows, on the calling thread alone when there is one row.
  template <typename F>
  void ForRowShares(int64_t n_rows, const F& fn) {
    if (n_rows == 1) {
      fn(Range{0, 1});
      return;
    }
    pool_->Run([&](int worker_id) {
      const Range rows = ShareOf(n_rows, 1, worker_id, pool_->n_workers());
      if (rows.begin < rows.end) fn(rows);
    });
  }
  // Calls fn(item, worker_id) for every item, on all workers.
  template <typename F>
  void ForItems(int64_t n_items, const F& fn) {
    pool_->Run([&](int worker_id) {
      const Range items = ShareOf(n_items, 1, worker_id, pool_->n_workers());
      for (int64_t i = items.begin; i < items.end; ++i) fn(i, worker_id);
    });
  }
  void NormaliseRows(const NormPlan& plan, const CpuAccess& own, Range rows) const;
  class SealAddresses;
  bool AppendItem(const AppendPlan& plan, const AppendPlan::Item& item,
                  const CpuLookup& lookup) const;
  void MergeItemRows(const MergeRowsPlan& plan, const MergeItem& item, const CpuLookup& lookup,
                     int* n_closed) const;
  Status SealTogether(std::span<const SealRunPlan> runs);  // by sealer_
  Status SealTogether(std::span<const RotatedHeadPlan> heads);
  // Calls seal(items) with all of them. Where that fails, what was written is undefined and plain
  // rows are still there: then with those of each sequence alone, which tells whose rows they are.
  template <typename Item, typename F>
  void SealEach(int layer_idx, std::span<const Item> items, const F& seal);
  void CutKeysOfHead(const CutItem& item, const CpuAccess& access, int worker_id);

  ThreadPool* pool_;
  Isa isa_;
  CpuDevice* memory_;
  const CpuResidents& residents_;
  Linear linear_;
  Attention attention_;
  const ElementwiseKernels* elementwise_;
  std::optional<KnownSealer> sealer_;
  std::vector<float> router_logits_;
  std::vector<float> ones_, zeros_;  // of norms without weights or biases
  StepReport report_;                // since the last Finish
  Status failure_;                   // of all sequences
  Communicator* ranks_ = nullptr;
  bool measures_waiting_ = false;
  // By sequence and head, how many of the entries that the last Prune left were sealed before it.
  std::map<std::pair<int, int>, int> sealed_before_;
};

}  // namespace kvlathe
