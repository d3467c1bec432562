// The functions of simt.h on the host: a block's threads are fibres of one thread, which take turns
// where they meet (docs/cuda.md). A thread runs alone until it comes to a barrier or to a function
// of its warp, so a forgotten barrier shows as wrong numbers; shared memory holds NaN before it is
// written, and what is copied asynchronously arrives as late as it may.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda/simt/mma_host.h"

#define KVL_KERNEL(...) void
// The same, with so few registers that `blocks` blocks of threads fit on a multiprocessor.
#define KVL_KERNEL_AT(threads, blocks) void
#define KVL_DEVICE inline
#define KVL_PARAMS(type) const type
// Before a loop: whether its rounds are laid out one behind the other.
#define KVL_UNROLL
#define KVL_NO_UNROLL

namespace kvlathe::simt {

// How a kernel is launched.
struct LaunchShape {
  int n_blocks = 1;
  int n_threads = 32;  // of a block, a multiple of 32
  int64_t shared_bytes = 0;
  int n_blocks_y = 1;
};

// Runs thread() in every thread of every block, and returns when all have ended. A barrier that not
// all threads reach, or a warp whose lanes meet different functions, ends the program with a
// message that names the kernel's launch.
void RunGrid(const LaunchShape& shape, const std::function<void()>& thread);

namespace host {

// Of the fibre that runs.
struct Place {
  int thread = 0, n_threads = 0;
  int block = 0, block_y = 0, n_blocks = 0;
  std::byte* shared = nullptr;
};
const Place& Here();

// What lanes of a warp do together.
enum class Meeting : int { kSync, kShuffle, kBallot, kMma, kMatrices };
inline constexpr int kSlotBytes = 64;
// Waits for all lanes of the warp, of which each brings n_bytes, and returns what they brought, by
// lane kSlotBytes apart, until the lane meets others again. `together`, if any, is called once, by
// the last to come, on all slots.
std::byte* Meet(Meeting meeting, const void* mine, size_t n_bytes,
                void (*together)(std::byte* slots) = nullptr);
void MeetBlock();
void AddCopy(void* to, const void* from);
void CommitGroup();
void WaitGroups(int n_left);

template <typename T>
T SlotOf(const std::byte* slots, int lane) {
  T value;
  std::memcpy(&value, slots + lane * kSlotBytes, sizeof(T));
  return value;
}

}  // namespace host

inline int ThreadIdx() { return host::Here().thread; }
inline int BlockDim() { return host::Here().n_threads; }
inline int BlockIdx() { return host::Here().block; }
inline int BlockIdxY() { return host::Here().block_y; }
inline int GridDim() { return host::Here().n_blocks; }
inline std::byte* Shared() { return host::Here().shared; }

inline void SyncBlock() { host::MeetBlock(); }
inline void SyncWarp() { host::Meet(host::Meeting::kSync, nullptr, 0); }

template <typename T>
T Shuffle(T x, int lane) {
  static_assert(sizeof(T) == 4);
  return host::SlotOf<T>(host::Meet(host::Meeting::kShuffle, &x, sizeof(T)), lane & 31);
}
template <typename T>
T ShuffleXor(T x, int mask) {
  static_assert(sizeof(T) == 4);
  return host::SlotOf<T>(host::Meet(host::Meeting::kShuffle, &x, sizeof(T)),
                         (host::Here().thread & 31) ^ mask);
}
inline uint32_t Ballot(bool vote) {
  const std::byte* const slots = host::Meet(host::Meeting::kBallot, &vote, sizeof(vote));
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    bits |= static_cast<uint32_t>(host::SlotOf<bool>(slots, lane)) << lane;
  }
  return bits;
}

// Atomic operations order nothing else, as on a GPU.
template <typename T>
T AtomicAdd(T* to, T x) {
  return std::atomic_ref<T>(*to).fetch_add(x, std::memory_order_relaxed);
}
inline void AtomicAdd64(int64_t* to, int64_t x) {
  std::atomic_ref<int64_t>(*to).fetch_add(x, std::memory_order_relaxed);
}
inline int32_t AtomicMax(int32_t* to, int32_t x) {
  std::atomic_ref<int32_t> at(*to);
  int32_t before = at.load(std::memory_order_relaxed);
  while (before < x && !at.compare_exchange_weak(before, x, std::memory_order_relaxed)) {
  }
  return before;
}
inline int32_t AtomicMin(int32_t* to, int32_t x) {
  std::atomic_ref<int32_t> at(*to);
  int32_t before = at.load(std::memory_order_relaxed);
  while (before > x && !at.compare_exchange_weak(before, x, std::memory_order_relaxed)) {
  }
  return before;
}

// Ends the program where `address` is no multiple of n_bytes.
void CheckAligned(const void* address, size_t n_bytes);

template <typename T>
T LoadConst(const void* from) {
  CheckAligned(from, sizeof(T));
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

inline void Prefetch(const void* /*from*/) {}

inline void CopyAsync16(void* shared, const void* from) { host::AddCopy(shared, from); }
inline void CommitCopies() { host::CommitGroup(); }
template <int kLeft>
void WaitCopies() {
  host::WaitGroups(kLeft);
}

inline uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    bytes |= static_cast<uint32_t>(both >> (8 * ((selector >> (4 * i)) & 7)) & 0xff) << (8 * i);
  }
  return bytes;
}
inline uint32_t ShiftRight(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline uint32_t MergeBits(uint32_t mask, uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}
inline int PopCount(uint32_t x) { return std::popcount(x); }
inline int LeadingZeros(uint32_t x) { return std::countl_zero(x); }
inline float Exp2(float x) { return std::exp2(x); }

inline uint32_t PackBf16(float low, float high) {
  return host::BitsOfBf16(low) | host::BitsOfBf16(high) << 16;
}
inline uint32_t PackF16(float low, float high) {
  return host::BitsOfF16(low) | host::BitsOfF16(high) << 16;
}
inline float FloatOfF16(uint32_t low_bits) { return host::FloatOfF16Bits(low_bits); }
inline uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto fma = [](uint32_t x, uint32_t y, uint32_t z) {
    return std::fma(host::FloatOfBf16Bits(x), host::FloatOfBf16Bits(y), host::FloatOfBf16Bits(z));
  };
  return PackBf16(fma(a, b, c), fma(a >> 16, b >> 16, c >> 16));
}
inline uint32_t FmaF16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto fma = [](uint32_t x, uint32_t y, uint32_t z) {
    return std::fma(host::FloatOfF16Bits(x), host::FloatOfF16Bits(y), host::FloatOfF16Bits(z));
  };
  return PackF16(fma(a, b, c), fma(a >> 16, b >> 16, c >> 16));
}

inline void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  host::Operands mine;
  mine.Set(a, b, c);
  const std::byte* const slots = host::Meet(host::Meeting::kMma, &mine, sizeof(mine),
                                            host::MultiplyTogether<host::FloatOfBf16Bits>);
  host::SlotOf<host::Operands>(slots, host::Here().thread & 31).Get(c);
}
inline void MmaF16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  host::Operands mine;
  mine.Set(a, b, c);
  const std::byte* const slots = host::Meet(host::Meeting::kMma, &mine, sizeof(mine),
                                            host::MultiplyTogether<host::FloatOfF16Bits>);
  host::SlotOf<host::Operands>(slots, host::Here().thread & 31).Get(c);
}

template <bool kTransposed>
void LoadMatrices(uint32_t (&r)[4], const void* shared_row) {
  CheckAligned(shared_row, 16);
  struct Row {
    uint16_t numbers[8];
  } mine;
  std::memcpy(&mine, shared_row, sizeof(mine));
  const std::byte* const slots = host::Meet(host::Meeting::kMatrices, &mine, sizeof(mine));
  const int lane = host::Here().thread & 31, row = lane / 4, column = lane % 4 * 2;
  for (int m = 0; m < 4; ++m) {
    uint32_t low, high;
    if (kTransposed) {
      low = host::SlotOf<Row>(slots, 8 * m + column).numbers[row];
      high = host::SlotOf<Row>(slots, 8 * m + column + 1).numbers[row];
    } else {
      low = host::SlotOf<Row>(slots, 8 * m + row).numbers[column];
      high = host::SlotOf<Row>(slots, 8 * m + row).numbers[column + 1];
    }
    r[m] = low | high << 16;
  }
}

}  // namespace kvlathe::simt
