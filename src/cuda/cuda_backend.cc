#include "cuda/cuda_backend.h"

#include <utility>

namespace kvlathe {

CudaBackend::CudaBackend(const Parts& parts)
    : device_(parts.device), stream_(*parts.stream), mirror_(*parts.mirror) {}

void CudaBackend::Enter() const {
  thread_local int current = -1;
  if (current == device_) return;
  stream_.Note(cudaSetDevice(device_), "choosing the GPU");
  current = device_;
}

void CudaBackend::set_deterministic(bool deterministic) {
  mirror_.set_deterministic(deterministic);
}
void CudaBackend::set_exact_rows(bool exact) { mirror_.set_exact_rows(exact); }
void CudaBackend::set_measures_waiting(bool measures) { mirror_.set_measures_waiting(measures); }

StatusOr<StepReport> CudaBackend::Finish() {
  Enter();
  // Both forget what failed, whichever tells of it.
  const Status of_gpu = stream_.Finish();
  StatusOr<StepReport> report = mirror_.Finish();
  if (!of_gpu.ok()) return of_gpu;
  return report;
}

void CudaBackend::Embed(const EmbedPlan& plan) {
  Enter();
  mirror_.Embed(plan);
}

void CudaBackend::TakeRows(const TakeRowsPlan& plan) {
  Enter();
  mirror_.TakeRows(plan);
}

std::vector<float> CudaBackend::TakeChannel(const TakeChannelPlan& plan) {
  Enter();
  return mirror_.TakeChannel(plan);
}

void CudaBackend::Project(const ProductPlan& plan) {
  Enter();
  mirror_.Project(plan);
}

void CudaBackend::ProjectHeads(const HeadProductsPlan& plan) {
  Enter();
  mirror_.ProjectHeads(plan);
}

void CudaBackend::Normalise(std::span<const NormPlan> plans) {
  Enter();
  mirror_.Normalise(plans);
}

void CudaBackend::Gate(const GatePlan& plan) {
  Enter();
  mirror_.Gate(plan);
}

void CudaBackend::RotateAndMap(const RotatePlan& plan) {
  Enter();
  mirror_.RotateAndMap(plan);
}

void CudaBackend::SumOverRanks(const SumPlan& plan) {
  Enter();
  mirror_.SumOverRanks(plan);
}

void CudaBackend::Append(const AppendPlan& plan) {
  Enter();
  mirror_.Append(plan);
}

void CudaBackend::Attend(std::span<const HeadJob> jobs, float sm_scale, Schedule schedule) {
  Enter();
  mirror_.Attend(jobs, sm_scale, schedule);
}

void CudaBackend::GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) {
  Enter();
  mirror_.GatherGrams(plans, n_dims, type);
}

void CudaBackend::MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) {
  Enter();
  mirror_.MergeRows(plan, n_closed);
}

void CudaBackend::Prune(const PrunePlan& plan) {
  Enter();
  mirror_.Prune(plan);
}

void CudaBackend::CutKeys(std::span<const CutItem> items) {
  Enter();
  mirror_.CutKeys(items);
}

void CudaBackend::Seal(const SealBatch& batch) {
  Enter();
  mirror_.Seal(batch);
}

void CudaBackend::SealRotated(const RotatedBatch& batch) {
  Enter();
  mirror_.SealRotated(batch);
}

void CudaBackend::Open(std::span<const OpenedRun> runs) {
  Enter();
  mirror_.Open(runs);
}

void CudaBackend::MeasureReencodings(std::span<const ReencodedRun> runs) {
  Enter();
  mirror_.MeasureReencodings(runs);
}

}  // namespace kvlathe
