// A run that was sealed is decoded and sealed again in fewer bits, where memory is short.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "model/model.h"
#include "model/steps/sealed_head.h"

namespace kvlathe {
namespace {

// The KV memory may be full: what is made before anything is given up lies beside it.
constexpr int64_t kScratchBytes = std::numeric_limits<int64_t>::max() / 2;

// The pressed codes of one run of a cache, in memory of their own.
class PressedCodes {
 public:
  PressedCodes(const SequenceCache& cache, int run_idx)
      : cache_(cache),
        run_(ExtentOf(cache.head(0, 0).runs()[run_idx])),
        run_idx_(run_idx),
        scratch_(kScratchBytes, &cache.device()) {
    run_.entry_class = EntryClass::kPressed;
  }

  // Asks for the codes of a layer, in the order of layers. kResourceExhausted when the system has
  // no memory.
  Status Make(const Layer& layer, Backend* backend);
  // Puts them into the blocks of the run, which are pressed ones by now.
  void Place() const;

 private:
  // What a layer holds of the run in one head.
  struct HeadPart {
    std::span<const ObjectId> blocks;  // of the run, without those that left the window
    std::vector<ObjectId> plain, packed;
    SealedRun run;  // that the blocks are, from the first on
  };
  struct PlacedHead {
    int layer_idx, kv_head_idx;
    int64_t n_bytes;  // of a block
    std::vector<ObjectId> packed;
  };

  StatusOr<HeadPart> MakePart(int layer_idx, int kv_head_idx);
  StatusOr<std::vector<ObjectId>> Take(size_t n, int64_t n_bytes);
  PackedShape ShapeOf(int layer_idx, int kv_head_idx) const {
    return PackedShapeOf(cache_.layout(), layer_idx, kv_head_idx, run_);
  }

  const SequenceCache& cache_;
  RunExtent run_;
  int run_idx_;
  BlockPool scratch_;
  std::vector<PlacedHead> made_;
};

StatusOr<std::vector<ObjectId>> PressedCodes::Take(size_t n, int64_t n_bytes) {
  std::vector<ObjectId> objects;
  while (objects.size() < n) {
    objects.push_back(scratch_.Allocate(ObjectKind::kBlock, n_bytes));
    if (!objects.back().is_null()) continue;
    return Error(StatusCode::kResourceExhausted,
                 "no memory to seal {} positions again in fewer bits", run_.n_blocks * kBlockSize);
  }
  return objects;
}

StatusOr<PressedCodes::HeadPart> PressedCodes::MakePart(int layer_idx, int kv_head_idx) {
  const CacheHead head = cache_.head(layer_idx, kv_head_idx);
  HeadPart part = {.blocks = head.blocks().subspan(run_.first_block, run_.n_blocks),
                   .plain = {},
                   .packed = {},
                   .run = head.runs()[run_idx_]};
  const auto first = std::ranges::find_if_not(part.blocks, &ObjectId::is_null);
  part.blocks = part.blocks.subspan(first - part.blocks.begin());
  part.run.first_block = 0;
  part.run.n_blocks = static_cast<int>(part.blocks.size());
  KVL_ASSIGN_OR_RETURN(part.plain,
                       Take(part.blocks.size(), int64_t{kBlockSize} * TokenBytes(head.shape())));
  KVL_ASSIGN_OR_RETURN(part.packed, Take(part.blocks.size(),
                                         PackedBlockObjectBytes(ShapeOf(layer_idx, kv_head_idx))));
  return part;
}

Status PressedCodes::Make(const Layer& layer, Backend* backend) {
  const CacheLayout& layout = cache_.layout();
  std::vector<HeadPart> parts;
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    KVL_ASSIGN_OR_RETURN(HeadPart part, MakePart(layer.idx, g));
    if (part.blocks.empty()) return OkStatus();  // as in every head of the layer
    parts.push_back(std::move(part));
  }
  std::vector<OpenedRun> opened;
  std::vector<SealHeadPlan> heads;
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    const HeadPart& part = parts[g];
    opened.push_back({.device = &cache_.device(),
                      .shape = layout.shape(layer.idx, g),
                      .sealed = SealedHeadOf(layer, layout, g, {&part.run, 1}, /*rotation=*/{}),
                      .blocks = part.blocks,
                      .plain = part.plain});
    heads.push_back({.shape = layout.shape(layer.idx, g),
                     .storage = layout.storage(layer.idx, g),
                     .blocks = part.plain,
                     .packed = part.packed,
                     .record = {}});
  }
  backend->Open(opened);
  // Rows lie in the plain blocks whatever the cache keeps in its open one.
  PackedFormat format = layout.seal->format;
  std::get<SplitBitsCodec>(format.codec).codes_open_rows = false;
  const SealRunPlan run = {.device = &cache_.device(),
                           .heads = heads,
                           .n_blocks = parts.front().run.n_blocks,
                           .is_prompt = run_.is_prompt,
                           .is_repaired = run_.is_repaired,
                           .entry_class = run_.entry_class};
  backend->Seal({layer.idx, format, layer.row_type, layout.seal->power_loops, {&run, 1}});
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    for (const ObjectId& block : parts[g].plain) scratch_.Release(block);
    made_.push_back(
        {layer.idx, g, PackedBlockBytes(ShapeOf(layer.idx, g)), std::move(parts[g].packed)});
  }
  return OkStatus();
}

void PressedCodes::Place() const {
  for (const PlacedHead& head : made_) {
    const auto blocks = cache_.head(head.layer_idx, head.kv_head_idx)
                            .blocks()
                            .subspan(run_.first_block, run_.n_blocks)
                            .last(head.packed.size());
    for (size_t b = 0; b < blocks.size(); ++b) {
      cache_.device().Copy({blocks[b]}, {head.packed[b]}, head.n_bytes);
    }
  }
}

}  // namespace

Status Model::PressHeld(SequenceCache* cache, int run_idx) {
  const ScopedTimer timer(&profile_.seal);
  PressedCodes codes(*cache, run_idx);
  Status made = OkStatus();
  for (size_t l = 0; made.ok() && l < programs_.size(); ++l) {
    made = codes.Make(programs_[l].layer(), &machine().backend());
  }
  KVL_ASSIGN_OR_RETURN(const StepReport report, machine().backend().Finish());
  KVL_RETURN_IF_ERROR(made);
  if (!report.failures.empty()) return report.failures.front().status;
  KVL_RETURN_IF_ERROR(cache->PressRun(run_idx));
  codes.Place();
  return OkStatus();
}

}  // namespace kvlathe
