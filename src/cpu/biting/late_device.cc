#include "cpu/biting/late_device.h"

#include <vector>

namespace kvlathe {
namespace {

constexpr std::byte kOfNan{0xff};  // of a number of any type whose bytes are all this

}  // namespace

void LateDevice::Free(uint32_t region) {
  queue_.Add([this, region] { GuardedDevice::Free(region); });
}

void LateDevice::Discard(uint32_t region, int64_t offset, int64_t n_bytes) {
  queue_.Add([=, this] { GuardedDevice::Discard(region, offset, n_bytes); });
}

void LateDevice::Upload(const ObjectPlace& to, std::span<const std::byte> from) {
  queue_.Add([this, to, bytes = std::vector<std::byte>(from.begin(), from.end())] {
    GuardedDevice::Upload(to, bytes);
  });
}

void LateDevice::Download(const ObjectPlace& from, std::span<std::byte> to) {
  queue_.Run();
  GuardedDevice::Download(from, to);
}

void LateDevice::Copy(const ObjectPlace& to, const ObjectPlace& from, int64_t n_bytes) {
  queue_.Add([=, this] { GuardedDevice::Copy(to, from, n_bytes); });
}

void LateDevice::Fill(const ObjectPlace& to, std::byte value, int64_t n_bytes) {
  queue_.Add([=, this] { GuardedDevice::Fill(to, value, n_bytes); });
}

void LateDevice::Forget(const ObjectPlace& place, int64_t n_bytes) { Fill(place, kOfNan, n_bytes); }

}  // namespace kvlathe
