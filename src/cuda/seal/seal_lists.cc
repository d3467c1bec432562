#include "cuda/seal/seal_lists.h"

#include <algorithm>
#include <variant>

#include "base/random.h"
#include "base/units.h"
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

cuda::SealedRepairs KeyRepairsOf(const PackedShape& s) {
  return {.n_outliers = s.key_outliers(),
          .lowrank = s.lowrank(),
          .count_offset = KeyCountOffset(s),
          .has_wide_counts = HasWideKeyCounts(s),
          .ends_offset = KeySparseEndsOffset(s),
          .difference_offset = KeySparseOffset(s),
          .place_offset = KeyPlacesOffset(s),
          .a_offset = KeyFactorOffset(s),
          .b_offset = KeyBasisOffset(s)};
}

cuda::SealedRepairs ValueRepairsOf(const PackedShape& s) {
  return {.n_outliers = s.value_outliers(),
          .lowrank = s.lowrank(),
          .count_offset = ValueCountOffset(s),
          .ends_offset = ValueSparseEndsOffset(s),
          .difference_offset = ValueSparseOffset(s),
          .place_offset = ValuePlacesOffset(s),
          .a_offset = ValueFactorOffset(s),
          .b_offset = ValueBasisOffset(s)};
}

bool HasExact(const cuda::SealedHeadRun& head, bool is_key) {
  return (is_key ? head.k : head.v).repairs.n_outliers > 0 ||
         (is_key && head.model.n_key_entries > 0);
}

// Bytes of `n` items, so that what follows is aligned.
template <typename T>
int64_t PartBytes(int64_t n) {
  return RoundUp(n * static_cast<int64_t>(sizeof(T)), int64_t{256});
}

// Numbers of the scratch of a fit: B, A and scales.
struct FitSizes {
  int64_t p, q, scales;
};
FitSizes SizesOf(const cuda::SealedHeadRun& head, const cuda::SealedSide& side) {
  const int64_t n_columns = side.repairs.lowrank;
  return {n_columns * side.rank, n_columns * head.n_blocks * kBlockSize, 5};
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
  run.k.repairs = KeyRepairsOf(s);
  run.v.repairs = ValueRepairsOf(s);
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

cuda::SealedModel SealLists::ModelOf(const SealBatch& batch, const SealRunPlan& run,
                                     int head) const {
  const CudaCodebooks& books = *residents_->At(run.codebooks);
  cuda::SealedModel model = {
      .books = books.books,
      .key_scales = books.key_scales[head],
      .n_key_entries = static_cast<int>(ShapeOf(batch, run, run.heads[head]).n_key_entries())};
  if (batch.format.seals_keys_before_rope()) {
    model.cos = memory_.As<const float>(run.rotation.cos);
    model.sin = memory_.As<const float>(run.rotation.sin);
    model.half = run.rotation.half;
    model.way_back = run.rotation.way_back;
  }
  return model;
}

SealLists::SealLists(const SealBatch& batch, const CudaDevice& memory,
                     const CudaResidents* residents)
    : memory_(memory), residents_(residents) {
  for (const SealRunPlan& run : batch.runs) AddRun(batch, run);
}

void SealLists::AddRun(const SealBatch& batch, const SealRunPlan& run) {
  const auto& cache = static_cast<const CudaDevice&>(*run.device);
  const int first = n_heads();
  uint64_t draws_in_run = 0;
  for (const SealHeadPlan& head : run.heads) {
    cuda::SealedHeadRun& added = heads_.emplace_back(HeadRunOf(ShapeOf(batch, run, head)));
    if (KeySide(batch.format.codec).has_codebook) {
      added.model = ModelOf(batch, run, static_cast<int>(draws_in_run));
    }
    has_exact_ = has_exact_ || HasExact(added, true) || HasExact(added, false);
    has_lowrank_ = has_lowrank_ || added.k.repairs.lowrank > 0;
    draws_.push_back({run.seed, static_cast<uint64_t>(run.first_head) + draws_in_run++});
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

int64_t SealLists::LayOutRepairs(std::byte* scratch) {
  int64_t n_bytes = 0;
  const auto take = [&](int64_t n) {
    std::byte* const part = scratch == nullptr ? nullptr : scratch + n_bytes;
    n_bytes += n;
    return part;
  };
  fits_.clear();
  for (int h = 0; h < n_heads(); ++h) {
    for (const bool is_key : {true, false}) {
      cuda::SealedSide& side = is_key ? heads_[h].k : heads_[h].v;
      const int64_t n = int64_t{heads_[h].n_blocks} * kBlockSize * side.rank;
      const bool has_exact = HasExact(heads_[h], is_key), has_factors = side.repairs.lowrank > 0;
      if (has_exact) {
        side.repairs.exact = reinterpret_cast<uint32_t*>(take(PartBytes<uint32_t>(n / 32)));
      }
      if (has_exact || has_factors) {
        side.repairs.residual = reinterpret_cast<float*>(take(PartBytes<float>(n)));
      }
      if (!has_factors) continue;
      const FitSizes sizes = SizesOf(heads_[h], side);
      fits_.push_back({h, is_key,
                       take(PartBytes<float>(sizes.p) + PartBytes<float>(sizes.q) +
                            PartBytes<float>(sizes.scales))});
    }
  }
  return n_bytes;
}

bool SealLists::SendFits(CudaStream* stream, cuda::LowRankParams* params) const {
  std::vector<cuda::LowRankFit> fits;
  for (const FitPlace& place : fits_) {
    const cuda::SealedHeadRun& head = heads_[place.head];
    const cuda::SealedSide& side = place.is_key ? head.k : head.v;
    const FitSizes sizes = SizesOf(head, side);
    Random random(draws_[place.head].seed,
                  2 * draws_[place.head].head_idx + (place.is_key ? 0 : 1));
    std::vector<float> start(sizes.p);
    for (float& x : start) x = static_cast<float>(random.Uniform());
    std::byte* const q = place.scratch + PartBytes<float>(sizes.p);
    fits.push_back({.head = place.head,
                    .is_key = place.is_key,
                    .p = reinterpret_cast<float*>(place.scratch),
                    .q = reinterpret_cast<float*>(q),
                    .scales = reinterpret_cast<float*>(q + PartBytes<float>(sizes.q))});
    if (!SendList(stream, start, &fits.back().start)) return false;
    params->most_blocks = std::max(params->most_blocks, head.n_blocks);
    params->most_columns = std::max(params->most_columns, side.repairs.lowrank);
  }
  params->n_fits = static_cast<int>(fits.size());
  return SendList(stream, fits, &params->fits);
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
