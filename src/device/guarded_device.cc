#include "device/guarded_device.h"

#include <sys/mman.h>

#include "base/check.h"

namespace kvlathe {
namespace {

void SetRights(std::byte* base, int64_t n_bytes, int rights) {
  if (n_bytes > 0) KVL_CHECK_EQ(mprotect(base, n_bytes, rights), 0);
}

}  // namespace

uint32_t GuardedDevice::Allocate(int64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  const uint32_t region = CpuDevice::Allocate(n_bytes);
  if (region != 0 && n_open_ == 0) {
    SetRights(regions()[region].base, regions()[region].n_bytes, PROT_NONE);
  }
  return region;
}

void GuardedDevice::Open() {
  const std::lock_guard lock(mutex_);
  if (n_open_++ > 0) return;
  for (const Region& r : regions()) SetRights(r.base, r.n_bytes, PROT_READ | PROT_WRITE);
}

void GuardedDevice::Close() {
  const std::lock_guard lock(mutex_);
  if (--n_open_ > 0) return;
  for (const Region& r : regions()) SetRights(r.base, r.n_bytes, PROT_NONE);
}

}  // namespace kvlathe
