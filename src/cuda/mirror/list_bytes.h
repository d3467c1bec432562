// What each verb reads and writes, as its plan says and the backend of the CPU does it
// (cpu/cpu_backend.h). Lists may name more than a verb uses of what it reads.
#pragma once

#include <span>

#include "cuda/mirror/verb_bytes.h"
#include "machine/attention/head_job.h"
#include "machine/expert_plans.h"
#include "machine/plans.h"

namespace kvlathe {

// Rows of activations (row_verb_bytes.cc).
void ListBytes(const EmbedPlan& plan, VerbBytes* bytes);
void ListBytes(const TakeRowsPlan& plan, VerbBytes* bytes);
void ListBytes(const TakeChannelPlan& plan, VerbBytes* bytes);
void ListBytes(const ProductPlan& plan, VerbBytes* bytes);
void ListBytes(const HeadProductsPlan& plan, VerbBytes* bytes);
void ListBytes(std::span<const NormPlan> plans, VerbBytes* bytes);
void ListBytes(const GatePlan& plan, VerbBytes* bytes);
void ListBytes(const CapPlan& plan, VerbBytes* bytes);
void ListBytes(const RoutePlan& plan, VerbBytes* bytes);
void ListBytes(const GatherRowsPlan& plan, VerbBytes* bytes);
void ListBytes(const ExpertProductsPlan& plan, VerbBytes* bytes);
void ListBytes(const WeightedRowsPlan& plan, VerbBytes* bytes);
void ListBytes(const RotatePlan& plan, VerbBytes* bytes);
void ListBytes(const SumPlan& plan, VerbBytes* bytes);

// Caches (cache_verb_bytes.cc, attention_bytes.cc).
void ListBytes(const AppendPlan& plan, VerbBytes* bytes);
void ListBytes(std::span<const HeadJob> jobs, VerbBytes* bytes);
struct GramBatch {
  std::span<const GramPlan> plans;
  int64_t n_dims;
  DType type;
};
void ListBytes(const GramBatch& batch, VerbBytes* bytes);
void ListBytes(const MergeRowsPlan& plan, VerbBytes* bytes);
void ListBytes(const PrunePlan& plan, VerbBytes* bytes);
void ListBytes(std::span<const CutItem> items, VerbBytes* bytes);
void ListBytes(const SealBatch& batch, VerbBytes* bytes);
void ListBytes(const RotatedBatch& batch, VerbBytes* bytes);
void ListBytes(std::span<const OpenedRun> runs, VerbBytes* bytes);
void ListBytes(std::span<const ReencodedRun> runs, VerbBytes* bytes);

// Blocks [begin, end) of a head, with what the sealed ones among them are read by. Those that are
// not there are left out.
struct StoredBlocks {
  BlockShape shape;
  const SealedHead& sealed;
  std::span<const ObjectId> blocks;
};
void ReadsBlocks(const StoredBlocks& stored, Range blocks, VerbBytes* bytes);
// The angles of n_blocks blocks.
void ReadsAngles(const KeyRotationId& rotation, int64_t n_blocks, VerbBytes* bytes);

}  // namespace kvlathe
