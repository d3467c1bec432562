// Attention on AMX tiles of Bf16 numbers and of bytes.
#include "base/cpu_features.h"
#include "cpu/kernels/attend/amx/attend_amx_kernel.h"

namespace kvlathe {
namespace {

// What ldtilecfg reads.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t n_rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Instructions are written out because those of the compiler's intrinsics that read memory do not
// say so (g++ 12 may drop the stores that fill a configuration or a tile's source); here every
// operand in memory is declared.
struct AmxTiles {
  static bool HasBytes() { return HasAmxInt8(); }
  static KVL_INLINE void Configure(int rows) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.n_rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : 16);
    }
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  static KVL_INLINE void Release() { asm volatile("tilerelease" : : : "memory"); }
  template <int kTile>
  static KVL_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static KVL_INLINE void Load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static KVL_INLINE void Store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  static KVL_INLINE void Multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  static KVL_INLINE void MultiplySignedByUnsigned() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  static KVL_INLINE void MultiplyUnsignedBySigned() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace

const AttendKernels kAttendAmxBf16 = {AttendWithTiles<AmxTiles>, AttendRowsAvx512, AppendBf16};

}  // namespace kvlathe
