#include "cpu/attention/addresses.h"

#include <algorithm>

namespace kvlathe {

void JobAddresses::BlockList::Resolve(const CpuAccess& access, std::span<const ObjectId> ids,
                                      int begin, int end) {
  end = std::min(end, static_cast<int>(ids.size()));
  list.resize(std::max(0, end));
  for (int b = begin; b < end; ++b) list[b] = access.At(ids[b]);
}

void JobAddresses::Resolve(const CpuLookup& lookup, const HeadJob& job, int entry_begin,
                           int entry_end) {
  const CpuAccess& access = lookup.cache;
  const int begin = entry_begin / kBlockSize, end = (entry_end + kBlockSize - 1) / kBlockSize;
  blocks_.Resolve(access, job.blocks, begin, end);
  packed_ = PackedHeadAt(lookup, job.packed, &runs_);
  q_ = lookup.own.At(job.q);
  q_full_ = lookup.own.At(job.q_full);
  merged_k_ = lookup.own.At(job.merged.k);
  merged_v_ = lookup.own.At(job.merged.v);
  sink_k_ = access.At(job.sinks.k);
  sink_v_ = access.At(job.sinks.v);
  const FrameIds& frames = job.frames;
  frames_ = {.maps = {},
             .n_joined = frames.n_joined,
             .key_offset = lookup.own.As<const float>(frames.key_offset),
             .turning_mean = lookup.own.As<const float>(frames.turning_mean),
             .mean_angles = {},
             .cos = lookup.own.As<const float>(frames.cos),
             .sin = lookup.own.As<const float>(frames.sin),
             .half = frames.half,
             .n_absolute = frames.n_absolute,
             .way_back = frames.way_back,
             .head_dim = frames.head_dim,
             .first_position = frames.first_position,
             .first_place = frames.first_place};
  if (frames.n_pairs > 0) {
    frames_.mean_angles =
        MeanAngles(lookup.own.As<const float>(frames.mean_angles), frames.n_pairs);
  }
  for (const WeightId& map : frames.maps) frames_.maps.push_back(lookup.residents.At(map));
  rebuilt_head_dim_ = job.rebuilt.head_dim;
  const auto find_all = [&](std::span<const WeightId> ids, std::vector<const PackedMatrix*>* to) {
    to->clear();
    for (const WeightId& id : ids) to->push_back(lookup.residents.At(id));
  };
  find_all(job.rebuilt.keys, &rebuilt_keys_);
  find_all(job.rebuilt.values, &rebuilt_values_);
  find_all(job.rebuilt.outputs, &rebuilt_outputs_);
  if (job.latents.empty()) return;
  const size_t n_slices = job.latents.slices.size();
  slices_.resize(n_slices);
  slice_blocks_.resize(std::max(slice_blocks_.size(), n_slices));
  slice_runs_.resize(std::max(slice_runs_.size(), n_slices));
  for (size_t i = 0; i < n_slices; ++i) {
    const LatentSliceIds& slice = job.latents.slices[i];
    slice_blocks_[i].Resolve(access, slice.blocks, begin, end);
    slices_[i] = {.blocks = slice_blocks_[i].list.data(),
                  .packed = PackedHeadAt(lookup, slice.packed, &slice_runs_[i]),
                  .sink_v = access.At(slice.sink_v)};
  }
  latents_ = {.map = lookup.residents.At(job.latents.map),
              .slices = slices_,
              .rotation = KeyRotationAt(lookup.own, job.latents.rotation),
              .positions = EntryTableAt(access, job.latents.positions),
              .sorted = SortedPositionsAt(access, job.latents.sorted),
              .cos = lookup.own.As<const float>(job.latents.cos),
              .sin = lookup.own.As<const float>(job.latents.sin)};
}

}  // namespace kvlathe
