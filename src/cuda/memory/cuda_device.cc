#include "cuda/memory/cuda_device.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvlathe {
namespace {

// Of regions: as cudaMalloc aligns, for loads of any width.
constexpr int64_t kRegionAlignment = 256;

}  // namespace

StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(CudaStream* stream, int64_t n_bytes) {
  KVL_CHECK_LE(n_bytes, kMostBytes);
  n_bytes -= n_bytes % kRegionAlignment;
  void* base = nullptr;
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaMalloc(&base, static_cast<size_t>(n_bytes)), FormatBytes(n_bytes)));
  return std::unique_ptr<CudaDevice>(
      new CudaDevice(stream, static_cast<std::byte*>(base), n_bytes));
}

CudaDevice::~CudaDevice() {
  stream_.Wait("the last work");
  cudaFree(base_);
}

uint32_t CudaDevice::Allocate(int64_t n_bytes) {
  KVL_CHECK_GT(n_bytes, 0);
  n_bytes = RoundUp(n_bytes, kRegionAlignment);
  const auto found =
      std::ranges::find_if(free_, [&](const auto& range) { return range.second >= n_bytes; });
  if (found == free_.end()) return 0;
  const auto [offset, size] = *found;
  free_.erase(found);
  if (size > n_bytes) free_[offset + n_bytes] = size - n_bytes;
  n_free_ -= n_bytes;
  if (free_numbers_.empty()) {
    regions_.push_back(offset);
    sizes_.push_back(n_bytes);
    return static_cast<uint32_t>(regions_.size() - 1);
  }
  const uint32_t number = free_numbers_.back();
  free_numbers_.pop_back();
  regions_[number] = offset;
  sizes_[number] = n_bytes;
  return number;
}

void CudaDevice::Free(uint32_t region) {
  KVL_CHECK(region < sizes_.size() && sizes_[region] > 0);
  int64_t offset = regions_[region], size = std::exchange(sizes_[region], 0);
  free_numbers_.push_back(region);
  n_free_ += size;
  // Joined with what is free beside it.
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

void CudaDevice::Discard(uint32_t region, int64_t offset, int64_t n_bytes) {
  KVL_CHECK_LE(offset + n_bytes, sizes_[region]);
}

void CudaDevice::Upload(const ObjectPlace& to, std::span<const std::byte> from) {
  if (from.empty()) return;
  // Pageable memory: the runtime has copied it when the call returns.
  stream_.Enter();
  stream_.HandOver();
  stream_.Note(
      cudaMemcpyAsync(At(to), from.data(), from.size(), cudaMemcpyHostToDevice, stream_.get()),
      "an upload");
}

void CudaDevice::Download(const ObjectPlace& from, std::span<std::byte> to) {
  if (to.empty()) return;
  stream_.Enter();
  stream_.HandOver();
  stream_.Note(
      cudaMemcpyAsync(to.data(), At(from), to.size(), cudaMemcpyDeviceToHost, stream_.get()),
      "a download");
  stream_.Wait("a download");
}

void CudaDevice::Copy(const ObjectPlace& to, const ObjectPlace& from, int64_t n_bytes) {
  stream_.Enter();
  stream_.Note(cudaMemcpyAsync(At(to), At(from), static_cast<size_t>(n_bytes),
                               cudaMemcpyDeviceToDevice, stream_.get()),
               "a copy");
}

void CudaDevice::Fill(const ObjectPlace& to, std::byte value, int64_t n_bytes) {
  stream_.Enter();
  stream_.Note(
      cudaMemsetAsync(At(to), static_cast<int>(value), static_cast<size_t>(n_bytes), stream_.get()),
      "a fill");
}

void CudaDevice::Forget(const ObjectPlace& place, int64_t n_bytes) {
  constexpr std::byte kOfNan{0xff};  // of a number of any type whose bytes are all this
  if (marks_forgotten_) Fill(place, kOfNan, n_bytes);
}

}  // namespace kvlathe
