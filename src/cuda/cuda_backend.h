// The backend of a GPU. A verb whose plan its kernels take is put into the stream and returns; any
// other goes by the mirror (cuda/mirror/mirror.h), which waits.
#pragma once

#include <span>
#include <vector>

#include "cuda/attention/cuda_attention.h"
#include "cuda/attention/prompt_items.h"
#include "cuda/mirror/mirror.h"
#include "cuda/retain/cuda_pruner.h"
#include "cuda/rows/largest_finder.h"
#include "cuda/rows/row_verbs.h"
#include "cuda/seal/cuda_appender.h"
#include "cuda/seal/cuda_sealer.h"
#include "cuda/seal/gram_gatherer.h"
#include "machine/backend.h"

namespace kvlathe {

class CudaBackend : public Backend {
 public:
  // All outlive it. The GPU of the stream is made current on threads that call verbs.
  struct Parts {
    CudaStream* stream = nullptr;
    CudaDevice* memory = nullptr;
    CudaResidents* residents = nullptr;
    Mirror* mirror = nullptr;
    bool uses_kernels = true;  // else every verb goes by the mirror
    int n_multiprocessors = 1;
    int64_t shared_bytes = 0;  // that a block of threads may take
  };
  explicit CudaBackend(const Parts& parts);

  void set_deterministic(bool deterministic) override;
  void set_exact_rows(bool exact) override;
  void set_measures_waiting(bool measures) override;
  void Embed(const EmbedPlan& plan) override;
  void TakeRows(const TakeRowsPlan& plan) override;
  std::vector<LargestNumbers> FindLargest(const LargestPlan& plan) override;
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
  // kUnavailable where the GPU fails.
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
  // Kernels are launched from whichever thread calls.
  void Enter() const;
  // Of the jobs that kernels take not one is left to the mirror.
  enum class AttendedBy { kDecoding, kPrompts, kMirror };
  AttendedBy WhoAttends(const HeadJob& job) const;
  void AttendBy(AttendedBy who, std::span<const HeadJob> jobs, const ScoreRule& rule,
                Schedule schedule);
  // Hands over the work of the layers so far and collects that of the next ones, in steps of few
  // tokens.
  void CollectLayers();
  // Waits for the GPU and adds what kernels have found of rows to report_.
  void ReadFlags();

  bool uses_kernels_;
  bool is_deterministic_ = false;
  int64_t collected_tokens_ = 0;  // of the step at work; 0: its work is not collected
  int n_layers_ = 0;              // of the step so far
  CudaStream& stream_;
  Mirror& mirror_;
  // What has kernels. Each of them says which plans it takes.
  RowVerbs rows_;
  CudaAttention decoding_;
  PromptItems prompts_;
  LargestFinder largest_;
  CudaPruner pruner_;
  CudaAppender appender_;
  CudaSealer sealer_;
  GramGatherer grams_;
  StepReport report_;  // of kernels, since the last Finish
};

}  // namespace kvlathe
