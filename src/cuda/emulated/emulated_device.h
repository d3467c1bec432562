// The one device of the emulated runtime: memory that has no access rights but while work runs,
// and the works that wait for somebody to wait for them.
#pragma once

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace kvlathe::emulated {

using Work = std::function<void()>;

}  // namespace kvlathe::emulated

struct KvlatheStream {
  int device = 0;
  std::deque<kvlathe::emulated::Work> works;
  std::vector<kvlathe::emulated::Work>* captured = nullptr;  // that a graph is being made of

  void Add(kvlathe::emulated::Work work) {
    if (captured != nullptr) {
      captured->push_back(std::move(work));
    } else {
      works.push_back(std::move(work));
    }
  }
};

namespace kvlathe::emulated {

class EmulatedDevice {
 public:
  static EmulatedDevice& Get() {
    static auto* const device = new EmulatedDevice;
    return *device;
  }

  int count = 1;
  size_t n_bytes = size_t{1} << 30;
  bool has_kernels = true;

  size_t n_free() const { return n_bytes - std::min(n_bytes, used_); }

  void* Allocate(size_t size) {
    const std::lock_guard lock(mutex_);
    const size_t with_zone = RoundUp(size, kGranule) + kRedZone;
    if (size == 0 || RoundUp(size, kGranule) > n_free()) return nullptr;
    // First fit. Memory of huge pages shares none of them with others, whose edges would break them
    // up.
    const size_t alignment = size >= kHugePage ? kHugePage : kGranule;
    size_t offset = 0;
    for (const auto& [begin, taken] : taken_) {
      if (begin >= offset + with_zone) break;
      offset = RoundUp(begin + WithZone(taken), alignment);
    }
    if (offset + with_zone > kArenaBytes) return nullptr;
    taken_[offset] = size;
    used_ += RoundUp(size, kGranule);
    highest_ = std::max<size_t>(highest_, RoundUp(offset + with_zone, kHugePage));
    std::byte* const memory = arena_ + offset;
    GiveRights();
    Allow(memory, with_zone);
    // Large memory is not filled: it would take all its pages.
    std::memset(memory, kOfNan, std::min(size, size_t{1} << 22));
    std::memset(memory + size, kOfNan, with_zone - size);
    Forbid(memory + size, with_zone - size);
    if (n_open_ == 0) TakeRights();
    return memory;
  }
  bool Free(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = taken_.find(static_cast<size_t>(static_cast<std::byte*>(memory) - arena_));
    if (found == taken_.end()) return false;
    GiveRights();
    CheckZone(*found);
    Forbid(arena_ + found->first, WithZone(found->second));
    if (n_open_ == 0) TakeRights();
    // Whole huge pages: what is left of one that is broken up would be many small ones.
    const size_t begin = RoundUp(found->first, kHugePage);
    const size_t end = (found->first + found->second) / kHugePage * kHugePage;
    if (begin < end) madvise(arena_ + begin, end - begin, MADV_DONTNEED);
    used_ -= RoundUp(found->second, kGranule);
    taken_.erase(found);
    return true;
  }
  bool Holds(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= arena_ && byte < arena_ + kArenaBytes;
  }
  bool HoldsAll(const void* address, size_t size) {
    const std::lock_guard lock(mutex_);
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(address) - arena_);
    auto found = taken_.upper_bound(offset);
    if (found == taken_.begin()) return false;
    --found;
    return offset + size <= found->first + found->second;
  }

  void Run(KvlatheStream* stream) {
    if (stream->works.empty()) return;
    Open();
    while (!stream->works.empty()) {
      const Work work = std::move(stream->works.front());
      stream->works.pop_front();
      work();
    }
    Close();
  }

 private:
  static constexpr size_t kArenaBytes = size_t{64} << 30;  // of addresses
  static constexpr size_t kPage = size_t{4} << 10;
  static constexpr size_t kGranule = 256;  // as cudaMalloc aligns
  static constexpr size_t kRedZone = 256;  // behind what is taken, at least
  static constexpr int kOfNan = 0xff;
  static constexpr size_t kHugePage = size_t{2} << 20;  // whose rights are set in one step

  EmulatedDevice() {
    // A page before it never has rights.
    void* const arena = mmap(nullptr, kArenaBytes + 2 * kHugePage, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVL_CHECK(arena != MAP_FAILED);
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(arena));
    arena_ = reinterpret_cast<std::byte*>(RoundUp(address + int64_t{kPage}, int64_t{kHugePage}));
    madvise(arena_, kArenaBytes, MADV_HUGEPAGE);
    if (const char* text = std::getenv("KVLATHE_EMULATED_DEVICES")) count = std::atoi(text);
    if (const char* text = std::getenv("KVLATHE_EMULATED_BYTES")) {
      n_bytes = std::strtoull(text, nullptr, 10);
    }
  }
  static size_t WithZone(size_t size) { return RoundUp(size, kGranule) + kRedZone; }
  // To AddressSanitizer, which knows every byte.
  static void Allow([[maybe_unused]] std::byte* memory, [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(memory, size);
#endif
  }
  static void Forbid([[maybe_unused]] std::byte* memory, [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(memory, size);
#endif
  }
  // Without it, who writes a little beyond what he has is found when he is done.
  void CheckZone([[maybe_unused]] const std::pair<const size_t, size_t>& taken) const {
#if !defined(__SANITIZE_ADDRESS__)
    const std::byte* const zone = arena_ + taken.first + taken.second;
    const size_t n_bytes = WithZone(taken.second) - taken.second;
    for (size_t i = 0; i < n_bytes; ++i) {
      if (zone[i] == std::byte{kOfNan}) continue;
      std::fprintf(stderr, "emulated device: byte %zu of memory of %zu was written\n",
                   taken.second + i, taken.second);
      std::abort();
    }
#endif
  }
  // The pages of what is taken.
  void GiveRights() {
    size_t begin = 0, end = 0;  // of pages that lie together
    const auto give = [&] {
      if (end > begin) mprotect(arena_ + begin, end - begin, PROT_READ | PROT_WRITE);
    };
    for (const auto& [offset, size] : taken_) {
      const size_t first = offset / kPage * kPage;
      if (first > end) {
        give();
        begin = first;
      }
      end = RoundUp(offset + WithZone(size), kPage);
    }
    give();
  }
  void TakeRights() { mprotect(arena_, highest_, PROT_NONE); }
  void Open() {
    const std::lock_guard lock(mutex_);
    if (++n_open_ == 1) GiveRights();
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    if (--n_open_ > 0) return;
    for (const auto& taken : taken_) CheckZone(taken);
    TakeRights();
  }

  std::mutex mutex_;
  std::byte* arena_ = nullptr;
  std::map<size_t, size_t> taken_;  // bytes by offset
  size_t used_ = 0;
  size_t highest_ = 0;  // the end of the pages that anybody ever had
  int n_open_ = 0;      // streams at work
};

}  // namespace kvlathe::emulated
