// A guarded device (cpu/memory/guarded_device.h) on which nothing happens before it has to: what
// the host asks for waits in a queue with the verbs of the machine, and runs where the host
// downloads. Bytes that are forgotten become NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/biting/work_queue.h"
#include "cpu/memory/guarded_device.h"

namespace kvlathe {

class LateDevice : public GuardedDevice {
 public:
  // The queue outlives the device.
  explicit LateDevice(WorkQueue* queue) : queue_(*queue) {}
  ~LateDevice() override { queue_.Run(); }

  void Free(uint32_t region) override;
  void Discard(uint32_t region, int64_t offset, int64_t n_bytes) override;
  void Upload(const ObjectPlace& to, std::span<const std::byte> from) override;
  void Download(const ObjectPlace& from, std::span<std::byte> to) override;
  void Copy(const ObjectPlace& to, const ObjectPlace& from, int64_t n_bytes) override;
  void Fill(const ObjectPlace& to, std::byte value, int64_t n_bytes) override;
  void Forget(const ObjectPlace& place, int64_t n_bytes) override;

 private:
  WorkQueue& queue_;
};

}  // namespace kvlathe
