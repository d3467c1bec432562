#include "cpu/memory/cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/units.h"

namespace kvlathe {

CpuDevice::CpuDevice() : regions_(1) {}

CpuDevice::~CpuDevice() {
  for (const Region& region : regions_) {
    if (region.n_bytes > 0) munmap(region.base, region.n_bytes);
  }
}

int64_t CpuDevice::page_bytes() const {
  static const int64_t n_bytes = sysconf(_SC_PAGESIZE);
  return n_bytes;
}

// Under the lowest free number, so that a pool which fills low regions first fills old ones.
uint32_t CpuDevice::Enter(const Region& region) {
  if (free_numbers_.empty()) {
    regions_.push_back(region);
    return static_cast<uint32_t>(regions_.size() - 1);
  }
  const uint32_t number = *free_numbers_.begin();
  free_numbers_.erase(free_numbers_.begin());
  regions_[number] = region;
  return number;
}

uint32_t CpuDevice::Allocate(int64_t n_bytes) {
  KVL_CHECK_GT(n_bytes, 0);
  // Pages cost nothing until something touches them, so a region with few objects holds few pages.
  const int64_t mapped_bytes = RoundUp(n_bytes, page_bytes());
  std::byte* const base = Map(mapped_bytes);
  return base == nullptr ? 0 : Enter({base, mapped_bytes});
}

std::byte* CpuDevice::Map(int64_t n_bytes) {
  // What is large is a weight or an activation, which is used whole: the system says at once
  // whether there is room, and gives huge pages where it can.
  constexpr int64_t kLargeBytes = int64_t{4} << 20;
  const bool is_large = n_bytes >= kLargeBytes;
  void* const base = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | (is_large ? 0 : MAP_NORESERVE), -1, 0);
  if (base == MAP_FAILED) return nullptr;
  if (is_large) madvise(base, n_bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(base);
}

void CpuDevice::Unmap(std::byte* base, int64_t n_bytes) { munmap(base, n_bytes); }

uint32_t CpuDevice::Adopt(std::byte* memory) {
  KVL_CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % kDeviceAlignment, 0u);
  return Enter({memory, 0});
}

void CpuDevice::PlaceRegion(uint32_t number, std::byte* memory) {
  if (number >= regions_.size()) regions_.resize(number + 1);
  regions_[number] = {memory, 0};
}

void CpuDevice::Free(uint32_t region) {
  KVL_CHECK(region < regions_.size() && regions_[region].base != nullptr);
  if (regions_[region].n_bytes > 0) Unmap(regions_[region].base, regions_[region].n_bytes);
  regions_[region] = {};
  free_numbers_.insert(region);
}

void CpuDevice::Discard(uint32_t region, int64_t offset, int64_t n_bytes) {
  KVL_CHECK_LE(offset + n_bytes, regions_[region].n_bytes);
  madvise(regions_[region].base + offset, n_bytes, MADV_DONTNEED);
}

void CpuDevice::Upload(const ObjectPlace& to, std::span<const std::byte> from) {
  if (from.empty()) return;
  const CpuAccess access(*this);
  std::memcpy(access.At(to), from.data(), from.size());
}

void CpuDevice::Download(const ObjectPlace& from, std::span<std::byte> to) {
  if (to.empty()) return;
  const CpuAccess access(*this);
  std::memcpy(to.data(), access.At(from), to.size());
}

void CpuDevice::Copy(const ObjectPlace& to, const ObjectPlace& from, int64_t n_bytes) {
  const CpuAccess access(*this);
  std::memcpy(access.At(to), access.At(from), static_cast<size_t>(n_bytes));
}

void CpuDevice::Fill(const ObjectPlace& to, std::byte value, int64_t n_bytes) {
  const CpuAccess access(*this);
  std::memset(access.At(to), static_cast<int>(value), static_cast<size_t>(n_bytes));
}

const std::byte* CpuDevice::HostView(const ObjectPlace& place) {
  return CpuAccess(*this).At(place);
}

std::vector<std::byte*> CpuAccess::At(std::span<const ObjectId> ids) const {
  std::vector<std::byte*> addresses;
  addresses.reserve(ids.size());
  for (const ObjectId& id : ids) addresses.push_back(At(id));
  return addresses;
}

void CpuAccesses::Open(Device* device) {
  const auto is_it = [&](const auto& known) { return known.first == device; };
  if (std::ranges::any_of(accesses_, is_it)) return;
  accesses_.emplace_back(device, std::make_unique<CpuAccess>(*device));
}

const CpuAccess& CpuAccesses::Of(const Device* device) const {
  const auto is_it = [&](const auto& known) { return known.first == device; };
  const auto found = std::ranges::find_if(accesses_, is_it);
  KVL_CHECK(found != accesses_.end());
  return *found->second;
}

}  // namespace kvlathe
