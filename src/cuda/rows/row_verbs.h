// The verbs of a step that are neither attention nor sealing, on a GPU: embeddings, products,
// norms, gates, and queries and keys on their way to the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/memory/cuda_device.h"
#include "cuda/residents/cuda_residents.h"
#include "cuda/rows/cublaslt_product.h"
#include "cuda/rows/placed_product.h"
#include "machine/expert_plans.h"
#include "machine/machine_buffer.h"
#include "machine/plans.h"

namespace kvlathe {

// Functions as those of Backend; none but TakeChannel waits, and the stream notes what fails.
//
// Dense weights are multiplied by cuBLASLt; with few rows, maps of heads by a kernel that has all
// heads at once. Weights in blocks are multiplied as they are with few rows, to the last bits of
// F32; with many they become BF16 first, a range of outputs at a time.
class RowVerbs {
 public:
  // All outlive the verbs, which take up to 64 MiB of the device at once.
  RowVerbs(CudaStream* stream, CudaDevice* device, const CudaResidents* residents);

  // Every product then goes row by row through kernels that give a row the bits it has alone.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }

  void Embed(const EmbedPlan& plan);
  void TakeRows(const TakeRowsPlan& plan);
  std::vector<float> TakeChannel(const TakeChannelPlan& plan);
  void Project(const ProductPlan& plan);
  void ProjectHeads(const HeadProductsPlan& plan);
  void Normalise(std::span<const NormPlan> plans);
  void Gate(const GatePlan& plan);
  void Cap(const CapPlan& plan);
  // Routers of very many experts go by the mirror.
  static bool Takes(const RoutePlan& plan);
  RoutedRows Route(const RoutePlan& plan);
  void GatherRows(const GatherRowsPlan& plan);
  void ProjectExperts(const ExpertProductsPlan& plan);
  void AddWeighted(const WeightedRowsPlan& plan);
  void RotateAndMap(const RotatePlan& plan);

 private:
  PlacedProduct Resolve(const ProductPlan& plan) const;
  void Multiply(const PlacedProduct& product);
  void MultiplyDense(const PlacedProduct& product);
  void MultiplyWidened(const PlacedProduct& product);
  void MultiplyFew(const PlacedProduct& product);
  // Of which none reads what another writes.
  void MultiplyHeads(std::span<const PlacedProduct> products);
  // False where the device has no memory, which the stream notes.
  bool Hold(MachineBuffer* buffer, int64_t n_bytes, const char* what);
  void FindLogits(const RoutePlan& plan, float* logits);
  const float* SendTableRows(const EmbedPlan& plan, const HostTable& table, bool of_positions);
  void TurnRows(const RotatePlan& plan);
  void MapRows(const RotatePlan& plan);
  void AddQueryMaps(const RotatePlan& plan, const HeadTurn& head, Range tokens,
                    std::vector<PlacedProduct>* products) const;

  CudaStream& stream_;
  CudaDevice& device_;
  const CudaResidents& residents_;
  bool deterministic_ = false;
  std::unique_ptr<CublasltProduct> dense_;  // null where cuBLASLt does not start
  MachineBuffer wide_;                      // weights out of blocks
  MachineBuffer sums_;                      // F32 products that are rounded once
  MachineBuffer channel_;
  MachineBuffer routed_;  // logits of routers, and what is chosen by them
};

}  // namespace kvlathe
