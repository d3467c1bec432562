// The functions of simt.h on a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#define KVL_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
// The same, with so few registers that `blocks` blocks of threads fit on a multiprocessor.
#define KVL_KERNEL_AT(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define KVL_DEVICE __device__ __forceinline__
#define KVL_PARAMS(type) const __grid_constant__ type
// Before a loop: whether its rounds are laid out one behind the other.
#define KVL_UNROLL _Pragma("unroll")
#define KVL_NO_UNROLL _Pragma("unroll 1")

namespace kvlathe::simt {

KVL_DEVICE int ThreadIdx() { return static_cast<int>(threadIdx.x); }
KVL_DEVICE int BlockDim() { return static_cast<int>(blockDim.x); }
KVL_DEVICE int BlockIdx() { return static_cast<int>(blockIdx.x); }
KVL_DEVICE int BlockIdxY() { return static_cast<int>(blockIdx.y); }
KVL_DEVICE int GridDim() { return static_cast<int>(gridDim.x); }

// The memory that the threads of a block share, from a multiple of 128 bytes on.
KVL_DEVICE std::byte* Shared() {
  extern __shared__ __align__(128) std::byte kvlathe_shared[];
  return kvlathe_shared;
}

KVL_DEVICE void SyncBlock() { __syncthreads(); }
KVL_DEVICE void SyncWarp() { __syncwarp(); }

// T: float, int32_t or uint32_t.
template <typename T>
KVL_DEVICE T Shuffle(T x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}
template <typename T>
KVL_DEVICE T ShuffleXor(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
KVL_DEVICE uint32_t Ballot(bool vote) { return __ballot_sync(0xffffffffu, vote); }

// T: float, int32_t or uint32_t. Returns what was there before.
template <typename T>
KVL_DEVICE T AtomicAdd(T* to, T x) {
  return atomicAdd(to, x);
}
KVL_DEVICE void AtomicAdd64(int64_t* to, int64_t x) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
}
KVL_DEVICE int32_t AtomicMax(int32_t* to, int32_t x) { return atomicMax(to, x); }
KVL_DEVICE int32_t AtomicMin(int32_t* to, int32_t x) { return atomicMin(to, x); }

template <typename T>
KVL_DEVICE T LoadConst(const void* from) {
  T value;
  if constexpr (sizeof(T) == 16) {
    const uint4 v = __ldg(static_cast<const uint4*>(from));
    __builtin_memcpy(&value, &v, 16);
  } else if constexpr (sizeof(T) == 8) {
    const uint2 v = __ldg(static_cast<const uint2*>(from));
    __builtin_memcpy(&value, &v, 8);
  } else {
    static_assert(sizeof(T) == 4);
    const uint32_t v = __ldg(static_cast<const uint32_t*>(from));
    __builtin_memcpy(&value, &v, 4);
  }
  return value;
}

// Says that 128 bytes will be read, so that they come nearer.
KVL_DEVICE void Prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Copies 16 bytes from global to shared memory, both at multiples of 16. They are there behind
// WaitCopies<N> where at most N groups were committed since, for the thread that copied; for others
// behind a SyncBlock or SyncWarp too.
KVL_DEVICE void CopyAsync16(void* shared, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(from) : "memory");
}
KVL_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kLeft>
KVL_DEVICE void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
}

// Byte i of the result is byte (selector >> 4 i) & 7 of b:a.
KVL_DEVICE uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
// The low word of high:low >> (shift & 31).
KVL_DEVICE uint32_t ShiftRight(uint32_t low, uint32_t high, uint32_t shift) {
  return __funnelshift_r(low, high, shift);
}
// The bits of `a` where mask has ones, those of b elsewhere: one instruction, which the compiler
// does not find where the mask is a constant.
KVL_DEVICE uint32_t MergeBits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
  return d;
}
KVL_DEVICE int PopCount(uint32_t x) { return __popc(x); }
KVL_DEVICE int LeadingZeros(uint32_t x) { return __clz(static_cast<int>(x)); }

KVL_DEVICE float Exp2(float x) {  // 2^x, to about 2 units in the last place
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers in 16 bits each, `low` in the lower half.
KVL_DEVICE uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  __builtin_memcpy(&bits, &pair, 4);
  return bits;
}
KVL_DEVICE uint32_t PackF16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits;
  __builtin_memcpy(&bits, &pair, 4);
  return bits;
}
KVL_DEVICE float FloatOfF16(uint32_t low_bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(low_bits)));
}
// Products and sums of two numbers of 16 bits at once, rounded once.
KVL_DEVICE uint32_t FmaBf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
KVL_DEVICE uint32_t FmaF16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// mma.m16n8k16, row by column, sums in F32: c += a b with a [16][16], b [16][8], c [16][8]. With
// g = lane / 4 and i = lane % 4 a lane holds
//   a[0] = a[g][2i, 2i+1]      a[1] = a[g+8][2i, 2i+1]
//   a[2] = a[g][2i+8, 2i+9]    a[3] = a[g+8][2i+8, 2i+9]
//   b[0] = b[2i, 2i+1][g]      b[1] = b[2i+8, 2i+9][g]
//   c[0, 1] = c[g][2i, 2i+1]   c[2, 3] = c[g+8][2i, 2i+1]
KVL_DEVICE void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KVL_DEVICE void MmaF16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// ldmatrix.x4: lane l gives the address of row l % 8 (16 bytes) of matrix l / 8 in shared memory;
// r[m] is row lane / 4, columns 2 (lane % 4) and the next of matrix m, [8][8] numbers of 16 bits.
// With kTransposed r[m] is of the transposed matrix.
template <bool kTransposed>
KVL_DEVICE void LoadMatrices(uint32_t (&r)[4], const void* shared_row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

}  // namespace kvlathe::simt
