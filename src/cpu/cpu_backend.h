// The backend of this machine's processors. It computes in host memory, with a pool of workers and
// the kernels of one instruction set.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpu/attention/attention.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "cpu/kernels/linear/linear.h"
#include "cpu/kernels/seal/seal.h"
#include "cpu/memory/cpu_residents.h"
#include "machine/backend.h"

namespace kvlathe {

// Computes on the workers of `pool` with the kernels of `isa`. Activations and tables lie in
// `memory`, weights and maps are among `residents`; all three outlive it.
class CpuBackend : public Backend {
 public:
  CpuBackend(ThreadPool* pool, Isa isa, CpuDevice* memory, const CpuResidents* residents);

  void set_deterministic(bool deterministic) override;
  void TakeRows(const TakeRowsPlan& plan) override;
  std::vector<float> TakeChannel(const TakeChannelPlan& plan) override;
  void Project(const ProductPlan& plan) override;
  void ProjectHeads(const HeadProductsPlan& plan) override;
  void Normalise(std::span<const NormPlan> plans) override;
  void Gate(const GatePlan& plan) override;
  void RotateAndMap(const RotatePlan& plan) override;
  void Append(const AppendPlan& plan, std::span<uint8_t> is_finite) override;
  Status Attend(std::span<const HeadJob> jobs, float sm_scale, Schedule schedule) override;
  void GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) override;
  void MergeRows(const MergeRowsPlan& plan) override;
  std::vector<int> Prune(const PrunePlan& plan) override;
  void CutKeys(std::span<const CutItem> items) override;
  Status Seal(const SealBatch& batch) override;
  Status SealRotated(std::span<const RotatedHeadPlan> heads) override;
  void MeasureReencodings(std::span<const ReencodedRun> runs,
                          std::span<Reencoding> errors) override;

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
  // A RotatePlan with addresses.
  struct HeadTurnAt {
    const HeadTurn& plan;
    const float *q, *k;
    std::byte *turned_q, *turned_k;
    const float* key_offset;
    const PackedMatrix *query_map, *key_map;
    std::byte* mapped_q;
    const std::byte* joined_k;
    std::byte* mapped_k;
  };
  struct RotationAt {
    const RotatePlan& plan;
    const float *cos, *sin;
    std::vector<HeadTurnAt> heads;
  };

  RotationAt Resolve(const RotatePlan& plan, const CpuAccess& own) const;
  void NormaliseRows(const NormPlan& plan, const CpuAccess& own, Range rows) const;
  void TurnRow(const RotationAt& turn, const float* row, int position, DType out_type,
               void* out) const;
  void TurnKey(const RotationAt& turn, const HeadTurnAt& head, int64_t token_idx, float* centred,
               std::byte* out) const;
  void TurnRows(const RotationAt& turn, const HeadTurnAt& head, Range tokens) const;
  void MapQueries(const RotationAt& turn, const HeadTurnAt& head, Range tokens, int worker_id);
  void MapRows(const RotationAt& turn, const HeadTurnAt& head, Range tokens, int worker_id);
  // Maps the tokens that do not meet whole keys, for heads that share a map.
  void MapHeads(const RotationAt& turn, std::span<const HeadTurnAt> heads, Range tokens,
                int worker_id);
  class SealAddresses;
  bool AppendItem(const AppendPlan& plan, const AppendPlan::Item& item,
                  const CpuLookup& lookup) const;
  void MergeItemRows(const MergeRowsPlan& plan, const MergeItem& item,
                     const CpuLookup& lookup) const;
  void CutKeysOfHead(const CutItem& item, const CpuAccess& access, int worker_id);

  ThreadPool* pool_;
  Isa isa_;
  CpuDevice* memory_;
  const CpuResidents& residents_;
  Linear linear_;
  Attention attention_;
  const ElementwiseKernels* elementwise_;
  std::optional<KnownSealer> sealer_;
};

}  // namespace kvlathe
