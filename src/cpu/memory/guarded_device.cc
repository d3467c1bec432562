#include "cpu/memory/guarded_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace kvlathe {
namespace {

// Addresses, of which only those of touched pages take memory.
constexpr int64_t kArenaBytes = int64_t{1} << 30;

}  // namespace

GuardedDevice::GuardedDevice() {
  void* const base =
      mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KVL_CHECK(base != MAP_FAILED);
  arena_ = static_cast<std::byte*>(base);
  free_.emplace(0, kArenaBytes);
}

GuardedDevice::~GuardedDevice() {
  for (size_t region = 1; region < regions().size(); ++region) {
    if (regions()[region].base != nullptr) Free(static_cast<uint32_t>(region));
  }
  munmap(arena_, kArenaBytes);
}

// The first stretch that is long enough.
std::byte* GuardedDevice::Map(int64_t n_bytes) {
  const auto found =
      std::ranges::find_if(free_, [&](const auto& stretch) { return stretch.second >= n_bytes; });
  if (found == free_.end()) return nullptr;
  const auto [offset, free_bytes] = *found;
  free_.erase(found);
  if (free_bytes > n_bytes) free_.emplace(offset + n_bytes, free_bytes - n_bytes);
  return arena_ + offset;
}

void GuardedDevice::Unmap(std::byte* base, int64_t n_bytes) {
  madvise(base, n_bytes, MADV_DONTNEED);
  auto stretch = free_.emplace(base - arena_, n_bytes).first;
  const auto next = std::next(stretch);
  if (next != free_.end() && stretch->first + stretch->second == next->first) {
    stretch->second += next->second;
    free_.erase(next);
  }
  if (stretch == free_.begin()) return;
  const auto before = std::prev(stretch);
  if (before->first + before->second != stretch->first) return;
  before->second += stretch->second;
  free_.erase(stretch);
}

void GuardedDevice::Open() {
  const std::lock_guard lock(mutex_);
  if (n_open_++ > 0) return;
  KVL_CHECK_EQ(mprotect(arena_, kArenaBytes, PROT_READ | PROT_WRITE), 0);
}

void GuardedDevice::Close() {
  const std::lock_guard lock(mutex_);
  if (--n_open_ > 0) return;
  KVL_CHECK_EQ(mprotect(arena_, kArenaBytes, PROT_NONE), 0);
}

}  // namespace kvlathe
