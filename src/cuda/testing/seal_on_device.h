// Runs of layers that are sealed on a GPU, for tests: objects go there, a CudaSealer seals them,
// and come back.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/memory/cpu_device.h"
#include "cuda/memory/cuda_device.h"
#include "cuda/memory/cuda_stream.h"
#include "cuda/residents/cuda_residents.h"
#include "cuda/seal/cuda_sealer.h"
#include "machine/backend.h"
#include "machine/plans.h"

namespace kvlathe {

// A GPU with memory of its own, whose objects are never freed.
class SealDevice {
 public:
  SealDevice() {
    auto stream = CudaStream::Create();
    KVL_CHECK(stream.ok());
    stream_ = std::move(stream).value();
    auto memory = CudaDevice::Create(stream_.get(), int64_t{512} << 20);
    KVL_CHECK(memory.ok());
    memory_ = std::move(memory).value();
    residents_ = std::make_unique<CudaResidents>(memory_.get(), &host_residents_);
  }

  CudaStream* stream() const { return stream_.get(); }
  CudaDevice* memory() const { return memory_.get(); }
  CudaResidents* residents() const { return residents_.get(); }

  // A new object that holds the bytes; null where there are none.
  ObjectId Put(const std::vector<std::byte>& bytes) {
    if (bytes.empty()) return {};
    const ObjectId id = {.region = memory_->Allocate(std::ssize(bytes))};
    KVL_CHECK(!id.is_null());
    regions_.push_back(id.region);
    memory_->Upload({.object = id}, bytes);
    return id;
  }
  std::vector<std::byte> Get(const ObjectId& id, int64_t n_bytes) {
    std::vector<std::byte> bytes(n_bytes);
    if (n_bytes > 0) memory_->Download({.object = id}, bytes);
    return bytes;
  }
  void FreeAll() {
    for (const uint32_t region : regions_) memory_->Free(region);
    regions_.clear();
  }

 private:
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaDevice> memory_;
  CpuDevice host_;
  CpuResidents host_residents_{&host_};
  std::unique_ptr<CudaResidents> residents_;
  std::vector<uint32_t> regions_;
};

// A run on its way through a device.
struct RunOnDevice {
  // [head], [head][block] and so on; packed objects and records are written where they are large
  // enough to be there.
  struct Head {
    BlockShape shape;
    HeadStorage storage;
    std::vector<std::vector<std::byte>> blocks;
    std::vector<std::vector<std::byte>*> packed;
    std::vector<std::byte>* record = nullptr;
  };
  std::vector<Head> heads;
  std::vector<std::byte>* layer_record = nullptr;
  SealRunPlan plan;  // without heads and objects

  // Puts all objects on the device; the plan is good until this moves.
  const SealRunPlan& Put(SealDevice* device) {
    plans_.clear();
    block_ids_.assign(heads.size(), {});
    packed_ids_.assign(heads.size(), {});
    for (size_t h = 0; h < heads.size(); ++h) {
      const Head& head = heads[h];
      for (const auto& block : head.blocks) block_ids_[h].push_back(device->Put(block));
      for (const auto* packed : head.packed) packed_ids_[h].push_back(device->Put(*packed));
      plans_.push_back({.shape = head.shape,
                        .storage = head.storage,
                        .blocks = block_ids_[h],
                        .packed = packed_ids_[h],
                        .record = head.record == nullptr ? ObjectId() : device->Put(*head.record)});
    }
    plan.device = device->memory();
    plan.heads = plans_;
    plan.layer_record = layer_record == nullptr ? ObjectId() : device->Put(*layer_record);
    return plan;
  }
  // Reads what was sealed.
  void Get(SealDevice* device) {
    for (size_t h = 0; h < heads.size(); ++h) {
      for (size_t b = 0; b < packed_ids_[h].size(); ++b) {
        std::vector<std::byte>& packed = *heads[h].packed[b];
        packed = device->Get(packed_ids_[h][b], std::ssize(packed));
      }
      if (heads[h].record == nullptr) continue;
      *heads[h].record = device->Get(plans_[h].record, std::ssize(*heads[h].record));
    }
    if (layer_record == nullptr) return;
    *layer_record = device->Get(plan.layer_record, std::ssize(*layer_record));
  }

 private:
  std::vector<SealHeadPlan> plans_;
  std::vector<std::vector<ObjectId>> block_ids_, packed_ids_;
};

// Seals runs on a device, which has room for them afterwards again, and returns which failed.
inline std::vector<StepReport::Failure> SealOnDevice(SealDevice* device, SealBatch batch,
                                                     std::vector<RunOnDevice*> runs) {
  std::vector<SealRunPlan> plans;
  for (RunOnDevice* run : runs) plans.push_back(run->Put(device));
  batch.runs = plans;
  CudaSealer sealer(device->stream(), device->memory(), device->residents());
  KVL_CHECK(sealer.Takes(batch));
  sealer.Seal(batch);
  StepReport report;
  sealer.Report(&report);
  KVL_CHECK(device->stream()->Finish().ok());
  for (RunOnDevice* run : runs) run->Get(device);
  device->FreeAll();
  return report.failures;
}

}  // namespace kvlathe
