// Sealed blocks that become plain ones in Bf16, once for all rows of a panel, for kernels that read
// only those. Only files compiled with AVX-512 flags may include this, and everything has internal
// linkage.
#pragma once

#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/avx512/attend_avx512.h"

namespace kvlathe {
namespace {

// What a block of the largest ranks takes, in F32 and in Bf16.
constexpr int64_t kPlainBlockElements = int64_t{2} * kBlockSize * kMaxRowRank;
constexpr int64_t kPlainBlockBytes = kPlainBlockElements * (4 + 2);

// Makes sealed blocks plain. They are asked for in ascending order.
struct PlainBlocks {
  const AttendParams* p;
  float* values;  // room for a block in F32, 64-byte aligned
  int run_idx = 0;
  const PackedRun* run = nullptr;
  PackedRunView view = {};

  // Block `block` as a plain one: itself, or what `to` gets, which is 64-byte aligned.
  const std::byte* Read(int block, uint16_t* to) {
    if (p->packed == nullptr) return p->blocks[block];
    const PackedRun* const found = FindRun(*p->packed, block, &run_idx);
    if (found == nullptr) return p->blocks[block];
    if (found != run) view = ViewRun(*p, *found);
    run = found;
    ExpandBlockAvx512(view, p->blocks[block], block - run->first_block, values);
    const int n = kBlockSize * (p->shape.rank_k + p->shape.rank_v);
    for (int i = 0; i < n; i += 2 * kLanes) {
      const __m512bh both =
          _mm512_cvtne2ps_pbh(_mm512_load_ps(values + i + kLanes), _mm512_load_ps(values + i));
      _mm512_store_si512(to + i, reinterpret_cast<__m512i>(both));
    }
    return reinterpret_cast<const std::byte*>(to);
  }
};

}  // namespace
}  // namespace kvlathe
