#include "cuda/seal/seal_lists.h"

#include <algorithm>
#include <variant>

#include "cuda/memory/cuda_device.h"
#include "format/split_bits/coded_rows.h"

namespace kvlathe {
namespace {

// What of K shares scales, as sealing on the CPU has it (cpu/kernels/seal/seal_codes.cc).
void SetKeyGroups(const PackedShape& s, cuda::SealedSide* side) {
  const bool is_by_channel = s.k.sharing == ScaleSharing::kChannel;
  const int whole = is_by_channel ? s.n_tokens() : s.rank_k;
  const int asked = s.k.group == 0 ? whole : std::min(s.k.group, whole);
  side->group = is_by_channel ? std::min(asked, kBlockSize) : asked;
  side->span_blocks = is_by_channel ? std::max(1, asked / kBlockSize) : 1;
}

void SetValueGroups(const PackedShape& s, cuda::SealedSide* side) {
  const bool is_whole = s.v.sharing != ScaleSharing::kToken || s.v.group == 0;
  side->group = is_whole ? s.rank_v : s.v.group;
}

cuda::SealedHeadRun HeadRunOf(const PackedShape& s) {
  const BlockShape rows = {.rank_k = s.rank_k, .rank_v = s.rank_v, .has_one_side = s.has_one_side};
  const int64_t element = FactsOf(s.format.codec).codes_open_rows ? 1 : SizeOf(s.row_type);
  cuda::SealedHeadRun run = {.n_blocks = s.n_blocks};
  run.k = {.rank = s.rank_k,
           .coded_scale_offset = CodedKeyScaleOffset(rows, 0),
           .scale_offset = KeyTokenScaleOffset(s)};
  run.v = {.rank = s.rank_v,
           .row_offset = kBlockSize * s.rank_k * element,
           .coded_scale_offset = CodedKeyScaleOffset(rows, 0) + kBlockSize,
           .code_offset = PackedValueOffset(s),
           .scale_offset = ValueTokenScaleOffset(s)};
  SetKeyGroups(s, &run.k);
  SetValueGroups(s, &run.v);
  if (const auto* const bits = std::get_if<EntryBits>(&s.storage)) {
    run.k.split = bits->k;
    run.v.split = bits->v;
  }
  return run;
}

template <typename T>
bool SendList(CudaStream* stream, const std::vector<T>& list, const T** on_device) {
  *on_device = stream->Send(std::span<const T>(list));
  return list.empty() || *on_device != nullptr;
}

}  // namespace

PackedShape ShapeOf(const SealBatch& batch, const SealRunPlan& run, const SealHeadPlan& head) {
  RunOfLayer of_layer = {.n_kv_heads = static_cast<int>(run.heads.size()),
                         .n_blocks = run.n_blocks,
                         .is_prompt = run.is_prompt,
                         .is_repaired = run.is_repaired,
                         .entry_class = run.entry_class};
  for (const SealHeadPlan& other : run.heads) of_layer.layer_rank_v += other.shape.rank_v;
  BlockShape rows = head.shape;
  rows.row_type = batch.row_type;
  return MakePackedShape(batch.format, rows, head.storage, of_layer);
}

SealLists::SealLists(const SealBatch& batch) {
  for (const SealRunPlan& run : batch.runs) AddRun(batch, run);
}

void SealLists::AddRun(const SealBatch& batch, const SealRunPlan& run) {
  const auto& cache = static_cast<const CudaDevice&>(*run.device);
  const int first = n_heads();
  for (const SealHeadPlan& head : run.heads) {
    cuda::SealedHeadRun& added = heads_.emplace_back(HeadRunOf(ShapeOf(batch, run, head)));
    added.record = cache.At(head.record);
    added.layer_record = cache.At(run.layer_record);
    added.first_of_layer = first;
    added.n_of_layer = static_cast<int>(run.heads.size());
    AddBlocks(run, head);
    for (int b = 0; b < run.n_blocks; ++b) {
      places_.push_back({.head = n_heads() - 1, .block = b});
      if (b % added.k.span_blocks == 0) spans_.push_back(places_.back());
    }
  }
  for (int b = 0; b < run.n_blocks; ++b) layer_places_.push_back({.head = first, .block = b});
}

void SealLists::AddBlocks(const SealRunPlan& run, const SealHeadPlan& head) {
  const auto& cache = static_cast<const CudaDevice&>(*run.device);
  const auto first_there =
      std::ranges::find_if(head.blocks, [](const ObjectId& block) { return !block.is_null(); });
  for (int b = 0; b < run.n_blocks; ++b) {
    const ObjectId& block = head.blocks[b];
    blocks_.push_back(cache.At(block.is_null() ? *first_there : block));
    packed_.push_back(cache.At(head.packed[b]));
  }
}

bool SealLists::Send(CudaStream* stream, cuda::SealKernelParams* params) {
  const std::byte* const* blocks = nullptr;
  std::byte* const* packed = nullptr;
  if (!SendList(stream, blocks_, &blocks) || !SendList(stream, packed_, &packed)) return false;
  for (cuda::SealedHeadRun& head : heads_) {
    head.blocks = blocks;
    head.packed = packed;
    blocks += head.n_blocks;
    packed += head.n_blocks;
  }
  params->n_places = static_cast<int>(places_.size());
  return SendList(stream, heads_, &params->heads) && SendList(stream, places_, &params->places);
}

}  // namespace kvlathe
