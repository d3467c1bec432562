// A device that bites: host memory that the host cannot touch.
//
// Its pages have no access rights but while a CpuAccess exists, which is to say in a kernel or in a
// call of the device's own. So whatever reads or writes a cache's rows in between, past the
// backend, ends the program with SIGSEGV: what runs on this device would run on one whose memory
// the host does not share. Guarded is what the block pool allocates: plain and sealed blocks,
// sinks, run and layer records, entry tables, open entries and sums of queries. Weights and
// activations are ordinary memory still.
#pragma once

#include <map>
#include <mutex>

#include "cpu/memory/cpu_device.h"

namespace kvlathe {

class GuardedDevice : public CpuDevice {
 public:
  GuardedDevice();
  ~GuardedDevice() override;

  // The host shares nothing of it.
  const std::byte* HostView(const ObjectPlace& /*place*/) override { return nullptr; }

 private:
  std::byte* Map(int64_t n_bytes) override;
  void Unmap(std::byte* base, int64_t n_bytes) override;
  void Open() override;
  void Close() override;

  // All regions lie in one stretch of addresses, so that one call sets their rights.
  std::byte* arena_ = nullptr;
  std::map<int64_t, int64_t> free_;  // by offset, bytes
  std::mutex mutex_;
  int n_open_ = 0;  // accesses that exist
};

}  // namespace kvlathe
