#include "cpu/kernels/attend/entry_scores.h"

#include <thread>

#include "base/random.h"
#include "cpu/kernels/attend/entry_scores_isa.h"

namespace kvlathe {
namespace {

// Tables share locks; a line of its own keeps each from slowing others down.
struct alignas(64) Lock {
  std::atomic_flag flag;
};
constexpr int kLocks = 64;
Lock locks[kLocks];

}  // namespace

SumsLock::SumsLock(const int64_t* sums)
    : lock_(&locks[MixBits(reinterpret_cast<uintptr_t>(sums)) % kLocks].flag) {
  while (lock_->test_and_set(std::memory_order_acquire)) std::this_thread::yield();
}

const EntryScoreKernels& GetEntryScoreKernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return kEntryScoreAvx512;
    default:
      return kEntryScoreScalar;
  }
}

}  // namespace kvlathe
