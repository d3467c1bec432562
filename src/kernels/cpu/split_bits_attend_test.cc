// Attention over sealed blocks whose channels have bits of their own, against sums in double over
// what the codes stand for; keys that are stored as latents, against the literal ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/attend_emulated.h"
#include "kernels/cpu/attend_packed.h"
#include "kernels/cpu/latent_keys.h"
#include "kernels/cpu/split_bits_problem.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

// Attention over the run and the plain entries behind it: the literal one of the decoded values.
void CheckAttention(const SplitHead& head, const AttendKernels& kernels, DType type, int n_tokens,
                    int group, const std::string& what) {
  SplitProblem p(head, type, 11);
  ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
  p.UsePacked();
  const int n = static_cast<int>(p.k.size()) / p.shape.rank_k, n_rows = n_tokens * group;
  Random random(5);
  std::vector<float> q(static_cast<size_t>(n_rows) * p.shape.rank_k);
  for (float& x : q) x = ToFloat(ToBf16(static_cast<float>(random.Normal())));
  std::vector<Bf16> q_bf16;
  for (const float x : q) q_bf16.push_back(ToBf16(x));
  std::vector<float> o(static_cast<size_t>(n_rows) * p.shape.rank_v), row_max(n_rows),
      row_sum(n_rows);
  Buffer scratch = Buffer::Allocate(kAttendScratchBytes, "test").value();
  AttendParams params;
  params.shape = p.shape;
  params.gqa_group = group;
  params.n_rows = n_rows;
  params.q = type == DType::kBf16 ? static_cast<const void*>(q_bf16.data()) : q.data();
  params.q_stride = p.shape.rank_k;
  params.blocks = p.blocks.data();
  params.packed = &p.packed_head;
  params.kv_end = n;
  params.first_visible = n - n_tokens + 1;
  params.sm_scale = 1 / std::sqrt(static_cast<float>(p.shape.rank_k));
  params.o = o.data();
  params.o_stride = p.shape.rank_v;
  params.row_max = row_max.data();
  params.row_sum = row_sum.data();
  kernels.attend(params, scratch.data());

  std::vector<double> k(p.k.begin(), p.k.end()), v(p.v.begin(), p.v.end());
  if (head.lowrank == 0) {
    for (int t = 0; t < head.n_blocks * kBlockSize; ++t) {
      for (int c = 0; c < p.shape.rank_k; ++c) k[t * p.shape.rank_k + c] = p.Decoded(true, t, c);
      for (int c = 0; c < p.shape.rank_v; ++c) v[t * p.shape.rank_v + c] = p.Decoded(false, t, c);
    }
  } else {  // what the portable code reads, which other tests hold against the layout
    std::vector<float> block(kBlockSize * (p.shape.rank_k + p.shape.rank_v));
    const PackedRunView view = ViewRun(params, p.run);
    for (int t = 0; t < head.n_blocks * kBlockSize; ++t) {
      const int b = t / kBlockSize, i = t % kBlockSize;
      if (i == 0) ExpandPackedBlock(view, p.blocks[b], b, block.data());
      for (int c = 0; c < p.shape.rank_k; ++c) k[t * p.shape.rank_k + c] = block[KeyOffset(i, c)];
      for (int c = 0; c < p.shape.rank_v; ++c) {
        v[t * p.shape.rank_v + c] = block[kBlockSize * p.shape.rank_k + ValueOffset(p.shape, i, c)];
      }
    }
  }
  double error = 0, square = 0;
  for (int row = 0; row < n_rows; ++row) {
    const int n_seen = params.first_visible + row / group;
    std::vector<double> out(p.shape.rank_v);
    double sum = 0;
    for (int t = 0; t < n_seen; ++t) {
      double score = 0;
      for (int c = 0; c < p.shape.rank_k; ++c) {
        score += q[row * p.shape.rank_k + c] * k[t * p.shape.rank_k + c];
      }
      const double weight = std::exp(score * params.sm_scale - row_max[row]);
      sum += weight;
      for (int c = 0; c < p.shape.rank_v; ++c) out[c] += weight * v[t * p.shape.rank_v + c];
    }
    for (int c = 0; c < p.shape.rank_v; ++c) {
      const double want = out[c] / sum, got = o[row * p.shape.rank_v + c] / row_sum[row];
      error += (want - got) * (want - got);
      square += want * want;
    }
  }
  EXPECT_LT(std::sqrt(error / square), type == DType::kF32 ? 1e-5 : 6e-3) << what;
}

TEST(SplitBits, AttentionIsThatOfTheDecodedValues) {
  for (SplitHead head : kSplitHeads) {
    for (const int kind : {0, 1, 2}) {
      const int lowrank = kind == 1 ? 2 : 0;
      head.lowrank = lowrank;
      head.has_coded_rows = kind == 2;
      for (const int n_tokens : {1, 2, 9, 33}) {
        for (const int group : {1, 3, 4}) {
          const auto check = [&](const AttendKernels& kernels, DType type, std::string name) {
            CheckAttention(
                head, kernels, type, n_tokens, group,
                fmt::format("{} {} tokens {} group {} rank {} lowrank {} coded {}", name,
                            DTypeName(type), n_tokens, group, SumOfChannels(head.k_channels),
                            lowrank, head.has_coded_rows));
          };
          for (const Isa isa : AvailableIsas()) {
            for (const DType type : {DType::kBf16, DType::kF32}) {
              check(GetAttendKernels(isa, type), type, std::string(IsaName(isa)));
            }
          }
          if (HasBf16Dots(AvailableIsas().back())) {
            check(kAttendEmulatedTiles, DType::kBf16, "emulated AMX");
          }
        }
      }
    }
  }
}

// Blocks of latents: the keys that the literal latents give, and the values as they are.
void CheckLatents(const SplitHead& head, Isa isa, DType type) {
  constexpr int kHeadDim = 96;
  SplitProblem p(head, type, 13);
  ASSERT_TRUE(p.Seal(isa).ok());
  p.UsePacked();
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  Random random(6);
  std::vector<float> way_back(static_cast<size_t>(rank_k) * kHeadDim);
  for (float& x : way_back) {
    x = ToFloat(ToBf16(static_cast<float>(random.Normal() / std::sqrt(rank_k))));
  }
  const LatentMap map(way_back, {}, kHeadDim, type);
  const BlockShape plain = {kHeadDim, rank_v, type};
  Buffer tile = Buffer::Allocate(BlockBytes(plain), "test").value();
  Buffer scratch = Buffer::Allocate(kLatentScratchBytes, "test").value();
  AttendParams params;
  params.shape = p.shape;
  params.packed = &p.packed_head;
  const PackedRunView view = ViewRun(params, p.run);
  std::vector<float> found(kBlockSize * (kHeadDim + rank_v));
  for (int b = 0; b < head.n_blocks; ++b) {
    GetLatentReader(isa, type)({.shape = p.shape,
                                .map = map.view(),
                                .block = p.blocks[b],
                                .run = &view,
                                .block_idx = b,
                                .tile = tile.data()},
                               scratch.data());
    ConvertToFloat(type, tile.data(), std::ssize(found), found.data());
    for (int i = 0; i < kBlockSize; ++i) {
      for (int d = 0; d < kHeadDim; ++d) {
        double key = 0, rounded = 0;
        for (int r = 0; r < rank_k; ++r) {
          const double part = p.Decoded(true, b * kBlockSize + i, r) * way_back[r * kHeadDim + d];
          key += part;
          if (r < head.scaled) rounded += std::abs(part);  // the others are exact in Bf16
        }
        const double slack = type == DType::kF32 ? 1e-5 : (std::abs(key) + rounded) / 256 + 1e-4;
        ASSERT_NEAR(found[KeyOffset(i, d)], key, slack) << "token " << i << " channel " << d;
      }
      for (int r = 0; r < rank_v; ++r) {
        const float value = found[kBlockSize * kHeadDim + ValueOffset(plain, i, r)];
        ASSERT_EQ(value, p.Decoded(false, b * kBlockSize + i, r));
      }
    }
  }
}

TEST(SplitBits, LatentsAreThoseThatTheCodesStandFor) {
  for (const SplitHead& head : kSplitHeads) {
    for (const Isa isa : AvailableIsas()) {
      for (const DType type : {DType::kBf16, DType::kF32}) {
        SCOPED_TRACE(fmt::format("{} {} rank {}", IsaName(isa), DTypeName(type),
                                 SumOfChannels(head.k_channels)));
        CheckLatents(head, isa, type);
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
