#include "cpu/kernels/testing/attend_emulated.h"

#include "cpu/kernels/attend/amx/attend_amx_kernel.h"

namespace kvlathe {
namespace {

// Tiles as Intel's Software Developer's Manual (volume 2, TILELOADD, TDPBF16PS and TDPBSUD, whose
// page has TDPBUSD too) describes them. Of Bf16 numbers, even and odd products of a row are summed
// apart, each step one fused multiply-add, and denormals are zero. Of bytes, products are added to
// integers of 32 bits, which may overflow.
struct EmulatedTiles {
  struct State {
    int rows[8] = {};
    float c[4][16][16] = {};
    uint16_t ab[8][16][32] = {};
  };
  static thread_local int64_t byte_products;
  static bool HasBytes() { return true; }
  static thread_local State state;

  static void Configure(int rows) {
    state = {};
    for (int tile = 0; tile < 8; ++tile) state.rows[tile] = tile < 6 ? rows : 16;
  }
  static void Release() { state = {}; }
  template <int kTile>
  static void Zero() {
    __builtin_memset(state.c[kTile], 0, sizeof(state.c[kTile]));
  }
  template <int kTile>
  static void Load(const void* p, int64_t stride) {
    void* to =
        kTile < 4 ? static_cast<void*>(state.c[kTile % 4]) : static_cast<void*>(state.ab[kTile]);
    __builtin_memset(to, 0, 1024);
    for (int row = 0; row < state.rows[kTile]; ++row) {
      __builtin_memcpy(static_cast<char*>(to) + 64 * row,
                       static_cast<const char*>(p) + row * stride, 64);
    }
  }
  template <int kTile>
  static void Store(void* p, int64_t stride) {
    for (int row = 0; row < state.rows[kTile]; ++row) {
      __builtin_memcpy(static_cast<char*>(p) + row * stride, state.c[kTile][row], 64);
    }
  }
  static float Flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f : x; }
  static float Widen(uint16_t bits) {
    const uint32_t u = static_cast<uint32_t>(bits) << 16;
    float x;
    __builtin_memcpy(&x, &u, sizeof(x));
    return Flush(x);
  }
  template <int kC, int kA, int kB>
  static void Multiply() {
    for (int m = 0; m < state.rows[kC]; ++m) {
      for (int n = 0; n < 16; ++n) {
        float sums[2] = {0, 0};
        for (int k = 0; k < 16; ++k) {
          for (int i = 0; i < 2; ++i) {
            sums[i] = Flush(__builtin_fmaf(Widen(state.ab[kA][m][2 * k + i]),
                                           Widen(state.ab[kB][k][2 * n + i]), sums[i]));
          }
        }
        float* c = &state.c[kC][m][n];
        *c = Flush(Flush(*c) + Flush(sums[0] + sums[1]));
      }
    }
  }
  template <typename OfA, typename OfB, int kC, int kA, int kB>
  static void MultiplyBytes() {
    ++byte_products;
    for (int m = 0; m < state.rows[kC]; ++m) {
      OfA a[64];
      __builtin_memcpy(a, state.ab[kA][m], sizeof(a));
      uint32_t sums[16];
      __builtin_memcpy(sums, state.c[kC][m], sizeof(sums));
      for (int k = 0; k < 16; ++k) {
        OfB b[64];
        __builtin_memcpy(b, state.ab[kB][k], sizeof(b));
        for (int n = 0; n < 16; ++n) {
          for (int i = 0; i < 4; ++i) {
            sums[n] += static_cast<uint32_t>(int{a[4 * k + i]} * int{b[4 * n + i]});
          }
        }
      }
      __builtin_memcpy(state.c[kC][m], sums, sizeof(sums));
    }
  }
  template <int kC, int kA, int kB>
  static void MultiplySignedByUnsigned() {
    MultiplyBytes<int8_t, uint8_t, kC, kA, kB>();
  }
  template <int kC, int kA, int kB>
  static void MultiplyUnsignedBySigned() {
    MultiplyBytes<uint8_t, int8_t, kC, kA, kB>();
  }
};

thread_local EmulatedTiles::State EmulatedTiles::state;
thread_local int64_t EmulatedTiles::byte_products = 0;

}  // namespace

const AttendKernels kAttendEmulatedTiles = {AttendWithTiles<EmulatedTiles>, AttendRowsAvx512,
                                            AppendBf16};

int64_t EmulatedByteProducts() { return EmulatedTiles::byte_products; }

}  // namespace kvlathe
