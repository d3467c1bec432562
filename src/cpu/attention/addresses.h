// Turns the ids and places of a job (machine/attention/head_job.h) into addresses, which is what
// kernels take.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cpu/attention/attention.h"
#include "cpu/attention/frames.h"
#include "cpu/attention/latents.h"
#include "cpu/attention/rebuilt.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/resolve.h"
#include "cpu/memory/cpu_device.h"

namespace kvlathe {

// Resolving costs a look at the device's table of regions for each block of an item. Each worker
// has one of these and keeps its memory from item to item.
class JobAddresses {
 public:
  // Finds the addresses that the item's job needs for the entries from entry_begin up to entry_end.
  // Addresses of blocks before these entries are undefined. The lookup outlives what is read
  // through the addresses.
  void Resolve(const CpuLookup& lookup, const HeadJob& job, int entry_begin, int entry_end);

  const std::byte* const* blocks() const { return blocks_.list.data(); }
  // Null where all blocks are plain.
  const PackedHead* packed() const {
    return packed_.n_runs > 0 || packed_.open.n_blocks > 0 ? &packed_ : nullptr;
  }
  const LatentHead& latents() const { return latents_; }
  // Without q, which is of an item.
  const FramesOfHead& frames() const { return frames_; }
  // Of one KV head of the model.
  RebuiltHead rebuilt(int map) const {
    return {.key = rebuilt_keys_[map],
            .value = rebuilt_values_.empty() ? nullptr : rebuilt_values_[map],
            .output = rebuilt_outputs_.empty() ? nullptr : rebuilt_outputs_[map],
            .head_dim = rebuilt_head_dim_,
            .map = map};
  }
  const std::byte* q() const { return q_; }
  const std::byte* q_full() const { return q_full_; }
  const std::byte* merged_k() const { return merged_k_; }
  const std::byte* merged_v() const { return merged_v_; }
  const std::byte* sink_k() const { return sink_k_; }
  const std::byte* sink_v() const { return sink_v_; }

 private:
  struct BlockList {
    std::vector<const std::byte*> list;
    void Resolve(const CpuAccess& access, std::span<const ObjectId> ids, int begin, int end);
  };

  BlockList blocks_;
  PackedHead packed_;
  std::vector<PackedRun> runs_;
  LatentHead latents_;
  FramesOfHead frames_;
  std::vector<const PackedMatrix*> rebuilt_keys_, rebuilt_values_, rebuilt_outputs_;
  int rebuilt_head_dim_ = 0;
  std::vector<LatentSlice> slices_;
  std::vector<BlockList> slice_blocks_;
  std::vector<std::vector<PackedRun>> slice_runs_;
  const std::byte *q_ = nullptr, *q_full_ = nullptr;
  const std::byte *merged_k_ = nullptr, *merged_v_ = nullptr;
  const std::byte* sink_k_ = nullptr;
  const std::byte* sink_v_ = nullptr;
};

}  // namespace kvlathe
