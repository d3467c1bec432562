// Memory of the host that stands in for that of a GPU while a verb runs on the CPU: ids of the
// GPU's memory mean the same objects here. Of these there are only the bytes that the verb names,
// and only while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "cpu/memory/cpu_device.h"
#include "cuda/memory/cuda_device.h"
#include "cuda/mirror/verb_bytes.h"

namespace kvlathe {

class ShadowDevice : public CpuDevice {
 public:
  // `memory` outlives it. With fills_with_nan, everything that was not brought is NaN, so that a
  // verb shows it which reads what it did not name; all regions take memory of the host then.
  // kResourceExhausted.
  static StatusOr<std::unique_ptr<ShadowDevice>> Create(CudaDevice* memory, bool fills_with_nan);
  ~ShadowDevice() override;

  // Brings what a verb reads. Waits for the GPU; what it says, if that fails, is noted with its
  // stream too.
  Status Bring(const VerbBytes& bytes);
  // Takes what the verb has written to the GPU, and gives all pages back.
  void TakeBack(const VerbBytes& bytes);

 private:
  ShadowDevice(CudaDevice* memory, bool fills_with_nan)
      : memory_(*memory), fills_with_nan_(fills_with_nan) {}

  void Place(uint32_t region);
  void Forget(std::span<const Range> ranges);
  // Waits until the GPU has done with the pinned memory.
  Status Wait();

  CudaDevice& memory_;
  bool fills_with_nan_;
  std::byte* arena_ = nullptr;   // addresses for all of the GPU's memory
  std::byte* pinned_ = nullptr;  // through which bytes travel
  bool is_pinned_busy_ = false;
  std::vector<Range> placed_;  // by region, what of the arena it is
};

}  // namespace kvlathe
