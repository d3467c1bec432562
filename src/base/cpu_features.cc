#include "base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

namespace kvlathe {
namespace {

struct CpuidLeaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

uint64_t EnabledStateComponents() {
  if ((Cpuid(1, 0).ecx & (1u << 27)) == 0) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool HasAvx2() {
  constexpr uint64_t kYmmState = 0x6;  // SSE, AVX
  if ((EnabledStateComponents() & kYmmState) != kYmmState) return false;
  constexpr uint32_t kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr uint32_t kNeeded = kFma | kAvx | kF16c;
  return (Cpuid(1, 0).ecx & kNeeded) == kNeeded && (Cpuid(7, 0).ebx & (1u << 5)) != 0;
}

bool HasAvx512Bf16() {
  constexpr uint64_t kZmmState = 0xe6;  // SSE, AVX, opmask, ZMM
  if ((EnabledStateComponents() & kZmmState) != kZmmState) return false;
  const CpuidLeaf l7 = Cpuid(7, 0);
  constexpr uint32_t kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31, kBmi2 = 1u << 8;
  constexpr uint32_t kNeeded = kF | kDq | kBw | kVl | kBmi2;
  constexpr uint32_t kVbmi = 1u << 1, kVbmi2 = 1u << 6, kVnni = 1u << 11, kBf16 = 1u << 5;
  constexpr uint32_t kBytes = kVbmi | kVbmi2 | kVnni;
  return (l7.ebx & kNeeded) == kNeeded && (l7.ecx & kBytes) == kBytes &&
         (Cpuid(7, 1).eax & kBf16) != 0;
}

// AMX tile data is off until a process asks for it (arch_prctl, Linux 5.16).
bool RequestAmx() {
  const CpuidLeaf l7 = Cpuid(7, 0);
  constexpr uint32_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((l7.edx & kAmxBf16) == 0 || (l7.edx & kAmxTile) == 0) return false;
  constexpr uint64_t kTileState = 3u << 17;
  if ((EnabledStateComponents() & kTileState) != kTileState) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

bool HasAmxInt8Bit() { return (Cpuid(7, 0).edx & (1u << 25)) != 0; }

std::vector<Isa> Detect() {
  std::vector<Isa> isas = {Isa::kScalar};
  if (!HasAvx2()) return isas;
  isas.push_back(Isa::kAvx2);
  if (!HasAvx512Bf16()) return isas;
  isas.push_back(Isa::kAvx512Bf16);
  if (RequestAmx()) isas.push_back(Isa::kAmx);
  return isas;
}

}  // namespace

std::string ProcessorName(Isa isa) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, name = "CPU";
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
    name = line.substr(colon + 2);
    break;
  }
  return fmt::format("{} ({})", name, IsaName(isa));
}

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Bf16:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

bool HasAvxVnni() {
  static const bool has = HasAvx2() && (Cpuid(7, 1).eax & (1u << 4)) != 0;
  return has;
}

bool HasAmxInt8() {
  static const bool has = AvailableIsas().back() == Isa::kAmx && HasAmxInt8Bit();
  return has;
}

int64_t L1DataBytes() {
  static const int64_t n_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL1_DCACHE_SIZE));
  return n_bytes;
}

const std::vector<Isa>& AvailableIsas() {
  static const std::vector<Isa> isas = Detect();
  return isas;
}

StatusOr<Isa> SelectIsa() {
  const std::vector<Isa>& isas = AvailableIsas();
  const char* forced = std::getenv("KVLATHE_ISA");
  if (forced == nullptr || *forced == '\0') return isas.back();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (IsaName(isa) != forced) continue;
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) return isa;
    return Error(StatusCode::kInvalidArgument,
                 "KVLATHE_ISA={}: this machine does not have it; the best it has is {}", forced,
                 IsaName(isas.back()));
  }
  return Error(StatusCode::kInvalidArgument,
               "KVLATHE_ISA={}: unknown instruction set; use scalar, avx2, avx512 or amx", forced);
}

}  // namespace kvlathe
