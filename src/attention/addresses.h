// The ids of a job (attention.h) as addresses, which is what kernels take.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/latents.h"
#include "device/cpu_device.h"
#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/attend/resolve.h"

namespace kvlathe {

// Costs a look at the device's table of regions for each block of an item, which is read
// afterwards. Each worker has one and keeps its memory.
class JobAddresses {
 public:
  // Of the item's job, for the entries from entry_begin up to entry_end; blocks before them are
  // undefined. The access outlives what is read through this.
  void Resolve(const CpuAccess& access, const HeadJob& job, int entry_begin, int entry_end);

  const std::byte* const* blocks() const { return blocks_.list.data(); }
  // Null where all blocks are plain.
  const PackedHead* packed() const {
    return packed_.n_runs > 0 || packed_.open.n_blocks > 0 ? &packed_ : nullptr;
  }
  const LatentHead& latents() const { return latents_; }
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
  std::vector<LatentSlice> slices_;
  std::vector<BlockList> slice_blocks_;
  std::vector<std::vector<PackedRun>> slice_runs_;
  const std::byte* sink_k_ = nullptr;
  const std::byte* sink_v_ = nullptr;
};

}  // namespace kvlathe
