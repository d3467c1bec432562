#include "cuda/mirror/shadow_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace kvlathe {
namespace {

constexpr int64_t kPinnedBytes = int64_t{8} << 20;
constexpr int kOfNan = 0xff;  // every byte of a NaN of any type

// Cuts ranges into pieces that fill the pinned memory: calls move(piece, place in it) for each, and
// filled() behind the last that fits.
template <typename Move, typename Filled>
Status ByPieces(std::span<const Range> ranges, const Move& move, const Filled& filled) {
  int64_t used = 0;
  for (const Range& range : ranges) {
    for (int64_t begin = range.begin; begin < range.end;) {
      const int64_t n = std::min(range.end - begin, kPinnedBytes - used);
      KVL_RETURN_IF_ERROR(move(Range{begin, begin + n}, used));
      begin += n;
      used += n;
      if (used < kPinnedBytes) continue;
      KVL_RETURN_IF_ERROR(filled());
      used = 0;
    }
  }
  return used == 0 ? OkStatus() : filled();
}

}  // namespace

StatusOr<std::unique_ptr<ShadowDevice>> ShadowDevice::Create(CudaDevice* memory,
                                                             bool fills_with_nan) {
  std::unique_ptr<ShadowDevice> made(new ShadowDevice(memory, fills_with_nan));
  void* const arena = mmap(nullptr, memory->n_bytes(), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    return Error(StatusCode::kResourceExhausted,
                 "no addresses on the host for the {} of the GPU (ulimit -v may be too low)",
                 FormatBytes(memory->n_bytes()));
  }
  made->arena_ = static_cast<std::byte*>(arena);
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaMallocHost(reinterpret_cast<void**>(&made->pinned_), kPinnedBytes),
                   "8 MiB of pinned memory for verbs without kernels"));
  return made;
}

ShadowDevice::~ShadowDevice() {
  if (is_pinned_busy_) memory_.stream().Note(Wait());
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
  if (arena_ != nullptr) munmap(arena_, memory_.n_bytes());
}

void ShadowDevice::Place(uint32_t region) {
  const int64_t begin = memory_.OffsetOf(region);
  const Range range = {begin, begin + memory_.BytesOf(region)};
  if (region >= placed_.size()) placed_.resize(region + 1);
  if (placed_[region].begin == range.begin && placed_[region].end == range.end) return;
  placed_[region] = range;
  PlaceRegion(region, arena_ + begin);
  if (fills_with_nan_) std::memset(arena_ + begin, kOfNan, range.end - range.begin);
}

Status ShadowDevice::Wait() {
  is_pinned_busy_ = false;
  memory_.stream().HandOver();
  return StatusOfCuda(cudaStreamSynchronize(memory_.stream().get()), "a verb without a kernel");
}

Status ShadowDevice::Bring(const VerbBytes& bytes) {
  for (const uint32_t region : bytes.regions()) Place(region);
  memory_.stream().HandOver();
  std::vector<std::pair<Range, int64_t>> moved;
  const cudaStream_t stream = memory_.stream().get();
  return ByPieces(
      bytes.read(),
      [&](const Range& piece, int64_t at) {
        moved.emplace_back(piece, at);
        return StatusOfCuda(
            cudaMemcpyAsync(pinned_ + at, memory_.base() + piece.begin, piece.end - piece.begin,
                            cudaMemcpyDeviceToHost, stream),
            "what a verb without a kernel reads");
      },
      [&] {
        KVL_RETURN_IF_ERROR(Wait());
        for (const auto& [piece, at] : std::exchange(moved, {})) {
          std::memcpy(arena_ + piece.begin, pinned_ + at, piece.end - piece.begin);
        }
        return OkStatus();
      });
}

void ShadowDevice::TakeBack(const VerbBytes& bytes) {
  memory_.stream().HandOver();
  const std::vector<Range> written = bytes.written();
  const cudaStream_t stream = memory_.stream().get();
  Status status = is_pinned_busy_ ? Wait() : OkStatus();
  if (status.ok()) {
    status = ByPieces(
        written,
        [&](const Range& piece, int64_t at) {
          if (at == 0 && is_pinned_busy_) KVL_RETURN_IF_ERROR(Wait());
          std::memcpy(pinned_ + at, arena_ + piece.begin, piece.end - piece.begin);
          return StatusOfCuda(
              cudaMemcpyAsync(memory_.base() + piece.begin, pinned_ + at, piece.end - piece.begin,
                              cudaMemcpyHostToDevice, stream),
              "what a verb without a kernel writes");
        },
        [&] {
          is_pinned_busy_ = true;
          return OkStatus();
        });
  }
  memory_.stream().Note(status);
  Forget(bytes.read());
  Forget(written);
}

void ShadowDevice::Forget(std::span<const Range> ranges) {
  const int64_t page = page_bytes();
  for (const Range& range : ranges) {
    if (fills_with_nan_) {
      std::memset(arena_ + range.begin, kOfNan, range.end - range.begin);
      continue;
    }
    // Nothing else of these pages is used any more.
    const int64_t begin = range.begin / page * page;
    madvise(arena_ + begin, std::min(RoundUp(range.end, page), memory_.n_bytes()) - begin,
            MADV_DONTNEED);
  }
}

}  // namespace kvlathe
