// A machine that computes nothing and has no memory. A model runs on it with all of its
// bookkeeping: caches take and give back what they would take anywhere, and every logit is zero. So
// what an engine decides can be seen in a thousandth of the time that computing it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "machine/machine.h"

namespace kvlathe {

// Hands out regions and forgets what is put there; whoever reads gets zeros.
class IdleDevice : public Device {
 public:
  uint32_t Allocate(int64_t) override { return ++last_region_; }
  void Free(uint32_t) override {}
  int64_t page_bytes() const override { return 4096; }
  void Discard(uint32_t, int64_t, int64_t) override {}
  void Upload(const ObjectPlace&, std::span<const std::byte>) override {}
  void Download(const ObjectPlace&, std::span<std::byte> to) override;
  void Copy(const ObjectPlace&, const ObjectPlace&, int64_t) override {}
  void Fill(const ObjectPlace&, std::byte, int64_t) override {}

 private:
  uint32_t last_region_ = 0;
};

// Knows what there is by number and keeps nothing of it.
class IdleResidents : public Residents {
 public:
  bool Multiplies(WeightType, DType) const override { return true; }
  StatusOr<WeightId> AddWeight(int64_t n_out, int64_t n_in, WeightType type) override;
  void WriteRows(const WeightId&, int64_t, int64_t, DType, const void*, int64_t) override {}
  void WriteBlocks(const WeightId&, int64_t, int64_t, const std::byte*, int64_t) override {}
  void ReadRow(const WeightId& weight, int64_t out, float* row) override;
  int64_t BytesOf(const WeightId&) const override { return 0; }
  void Remove(const WeightId&) override {}
  StatusOr<TableId> AddTable(HostTable) override { return TableId{++last_number_}; }
  void Remove(const TableId&) override {}
  LatentMapId AddLatentMap(LatentMap) override { return {++last_number_}; }
  void Remove(const LatentMapId&) override {}
  CodebooksId AddCodebooks(LayerCodebooks) override { return {++last_number_}; }
  void Remove(const CodebooksId&) override {}

 private:
  uint32_t last_number_ = 0;
  std::vector<int64_t> widths_;  // n_in of every matrix, by its number less one
};

// Every verb is done at once. For models that do not decide themselves what merges: no position
// would ever begin an entry.
class IdleBackend : public Backend {
 public:
  void set_deterministic(bool) override {}
  void Embed(const EmbedPlan&) override {}
  void TakeRows(const TakeRowsPlan&) override {}
  std::vector<float> TakeChannel(const TakeChannelPlan& plan) override;
  void Project(const ProductPlan&) override {}
  void ProjectHeads(const HeadProductsPlan&) override {}
  void Normalise(std::span<const NormPlan>) override {}
  void Gate(const GatePlan&) override {}
  void RotateAndMap(const RotatePlan&) override {}
  StatusOr<StepReport> Finish() override { return StepReport(); }
  void Append(const AppendPlan&) override {}
  void Attend(std::span<const HeadJob>, float, Schedule) override {}
  void GatherGrams(std::span<const GramPlan>, int64_t, DType) override {}
  void MergeRows(const MergeRowsPlan&, std::span<int> n_closed) override;
  void Prune(const PrunePlan&) override {}
  void CutKeys(std::span<const CutItem>) override {}
  void Seal(const SealBatch&) override {}
  void SealRotated(const RotatedBatch&) override {}
  void MeasureReencodings(std::span<const ReencodedRun>) override {}
};

class IdleMachine : public Machine {
 public:
  // `threads` outlives the machine.
  explicit IdleMachine(ThreadPool* threads) : threads_(*threads) {}

  Device& memory() override { return memory_; }
  Residents& residents() override { return residents_; }
  Backend& backend() override { return backend_; }
  ThreadPool& host_threads() override { return threads_; }

 private:
  ThreadPool& threads_;
  IdleDevice memory_;
  IdleResidents residents_;
  IdleBackend backend_;
};

}  // namespace kvlathe
