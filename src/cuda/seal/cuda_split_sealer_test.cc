// Runs whose channels have bits of their own, sealed on a GPU, against those of the CPU, byte for
// byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernels/testing/split_bits_problem.h"
#include "cuda/testing/seal_on_device.h"

namespace kvlathe {
namespace {

std::vector<std::byte> BytesAt(const std::byte* from, int64_t n) { return {from, from + n}; }

// Seals on a device what the problem's blocks hold; returns the packed blocks.
std::vector<std::vector<std::byte>> SealedOnDevice(SealDevice* device, const SplitProblem& p,
                                                   std::vector<StepReport::Failure>* failures) {
  const int n_blocks = p.head.n_blocks;
  std::vector<std::vector<std::byte>> packed(
      n_blocks, std::vector<std::byte>(PackedBlockBytes(p.packed_shape), std::byte{0xa5}));
  RunOnDevice run;
  RunOnDevice::Head head = {.shape = p.shape, .storage = p.bits, .blocks = {}, .packed = {}};
  for (int b = 0; b < n_blocks; ++b) {
    head.blocks.push_back(BytesAt(p.blocks[b], OpenBlockBytes(p.format.codec, p.shape)));
    head.packed.push_back(&packed[b]);
  }
  run.heads.push_back(std::move(head));
  run.plan.n_blocks = n_blocks;
  run.plan.seed = 3;
  *failures = SealOnDevice(
      device, {.format = p.format, .row_type = p.shape.row_type, .power_loops = 3}, {&run});
  return packed;
}

void ExpectThoseOfTheCpu(SealDevice* device, SplitProblem* p) {
  ASSERT_TRUE(p->Seal(AvailableIsas().back()).ok());
  std::vector<StepReport::Failure> failures;
  const auto packed = SealedOnDevice(device, *p, &failures);
  EXPECT_TRUE(failures.empty());
  for (int b = 0; b < p->head.n_blocks; ++b) {
    const auto want = BytesAt(p->packed_block(b), PackedBlockBytes(p->packed_shape));
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(want[i], packed[b][i]) << "block " << b << ", byte " << i << " of " << want.size();
    }
  }
}

TEST(CudaSplitSealerTest, BytesAreThoseOfTheCpu) {
  SealDevice device;
  int n_problems = 0;
  for (SplitHead head : kSplitHeads) {
    for (const bool has_coded_rows : {false, true}) {
      head.has_coded_rows = has_coded_rows;
      head.n_blocks = std::min(head.n_blocks, 2);
      const DType type = n_problems++ % 2 == 0 ? DType::kBf16 : DType::kF32;
      SCOPED_TRACE(fmt::format("problem {}", n_problems));
      SplitProblem p(head, type, n_problems);
      ExpectThoseOfTheCpu(&device, &p);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaSplitSealerTest, RowsOfOneSide) {
  SealDevice device;
  for (const bool has_token_scales : {false, true}) {
    SplitProblem p({{16, 32, 16, 16, 48, 16}, {}, 2, 3, 0, true, has_token_scales, true},
                   DType::kBf16, 5);
    ExpectThoseOfTheCpu(&device, &p);
  }
}

// Rows that are nothing, tiny, equal, or beyond what any scale reaches.
TEST(CudaSplitSealerTest, ExtremeRows) {
  SealDevice device;
  SplitProblem p({{16, 16, 16, 16, 16, 16}, {0, 0, 0, 0, 0, 16}, 1, 0, 0, false, true}, DType::kF32,
                 7);
  const float sizes[] = {0, 1e-40f, 1e-30f, 1e-3f, 1, 20, 1e30f, 3.4e38f};
  for (int t = 0; t < kBlockSize; ++t) {
    const float size = sizes[t % 8];
    for (int c = 0; c < p.shape.rank_k; ++c) {
      const bool is_alone = t >= 32 && c != t;  // one number of the row
      const float value = is_alone ? 0.0f : c % (1 + t / 8) == 0 ? size : -size;
      std::memcpy(const_cast<std::byte*>(p.blocks[0]) + 4 * KeyOffset(t, c), &value, 4);
    }
  }
  ExpectThoseOfTheCpu(&device, &p);
}

// Entries of a class have codes of the first channels only.
TEST(CudaSplitSealerTest, ChannelsWithoutCodes) {
  SealDevice device;
  SplitProblem p({{0, 16, 16, 16, 16, 16}, {0, 16, 16, 32, 0, 16}, 2, 0, 0, false, true},
                 DType::kBf16, 9);
  p.bits.middle.k.channels = {0, 0, 16, 0, 32, 0};
  p.bits.middle.v.channels = {0, 0, 0, 16, 0, 16};
  p.packed_shape = MakePackedShape(p.format, p.shape, p.bits,
                                   {.layer_rank_v = p.shape.rank_v, .n_blocks = p.head.n_blocks});
  ExpectThoseOfTheCpu(&device, &p);
}

void SetKey(SplitProblem* p, int token, int channel, float value) {
  std::memcpy(const_cast<std::byte*>(p->blocks[0]) + 4 * KeyOffset(token, channel), &value, 4);
}

// A float whose bits are half way between those of two others of the same sign.
float Between(float a, float b) {
  return std::bit_cast<float>(static_cast<uint32_t>(
      (uint64_t{std::bit_cast<uint32_t>(a)} + std::bit_cast<uint32_t>(b)) / 2));
}

// Rows of which two scales lose as much but for rounding: found by halving the sizes between which
// the CPU changes its mind. A product that is fused with a sum shows in what is chosen.
TEST(CudaSplitSealerTest, RowsBetweenTwoScales) {
  SealDevice device;
  SplitProblem p({{16, 0, 32, 48, 32, 64}, {0, 0, 0, 0, 0, 16}, 1, 0, 0, false, true}, DType::kF32,
                 11);
  const std::vector<float> rows = p.k;
  const int rank = p.shape.rank_k;
  std::vector<float> low(kBlockSize, 1.0f), high(kBlockSize, 1.06f);
  const auto seal = [&](const std::vector<float>& sizes) {
    for (int t = 0; t < kBlockSize; ++t) {
      for (int c = 0; c < rank; ++c) SetKey(&p, t, c, sizes[t] * rows[t * rank + c]);
    }
    EXPECT_TRUE(p.Seal(AvailableIsas().back()).ok());
    return BytesAt(p.packed_block(0) + KeyTokenScaleOffset(p.packed_shape), kBlockSize);
  };
  const auto at_low = seal(low);
  for (int step = 0; step < 20; ++step) {
    std::vector<float> middle(kBlockSize);
    for (int t = 0; t < kBlockSize; ++t) middle[t] = Between(low[t], high[t]);
    const auto scales = seal(middle);
    for (int t = 0; t < kBlockSize; ++t) {
      (scales[t] == at_low[t] ? low : high)[t] = middle[t];
    }
  }
  int n_changes = 0;
  for (const bool is_high : {false, true}) {
    const auto scales = seal(is_high ? high : low);
    for (int t = 0; t < kBlockSize; ++t) n_changes += is_high && scales[t] != at_low[t] ? 1 : 0;
    ExpectThoseOfTheCpu(&device, &p);
  }
  EXPECT_GT(n_changes, kBlockSize / 2);
}

TEST(CudaSplitSealerTest, RefusesNan) {
  SealDevice device;
  SplitProblem p(kSplitHeads[0], DType::kF32, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(const_cast<std::byte*>(p.blocks[1]) + BlockBytes(p.shape) - 4, &nan, 4);
  std::vector<StepReport::Failure> failures;
  SealedOnDevice(&device, p, &failures);
  ASSERT_EQ(failures.size(), 1);
  EXPECT_EQ(failures[0].status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(MessageOf(failures[0].status), MessageOf(p.Seal(AvailableIsas().back())));
}

}  // namespace
}  // namespace kvlathe
