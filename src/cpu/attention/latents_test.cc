#include "cpu/attention/latents.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr int kRank = 32, kHeadDim = 48, kHalf = 16, kRankV = 16, kGroup = 3;

using Rows = std::vector<std::vector<double>>;

struct Case {
  int n_entries, n_tokens, window, kv_begin;
  bool has_gaps;     // positions are those of entries that stayed
  int n_slices = 1;  // heads that share the latents
  float score_cap = 0;
};

Rows Draw(Random* random, int n_rows, int width) {
  Rows rows(n_rows, std::vector<double>(width));
  for (auto& row : rows) {
    for (double& x : row) x = ToFloat(ToBf16(static_cast<float>(random->Normal())));
  }
  return rows;
}

std::vector<float> Flat(const Rows& rows) {
  std::vector<float> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  return values;
}

double AngleOf(int position, int pair) { return position * std::pow(100.0, -pair / 16.0); }

class AttendLatentsTest : public ::testing::TestWithParam<Case> {
 protected:
  AttendLatentsTest() {
    const Case& c = GetParam();
    for (int e = 0; e < c.n_entries; ++e) positions_.push_back(c.has_gaps ? 3 * e + e % 2 : e);
    // Where an entry takes the place of a dropped one, positions do not rise.
    if (c.has_gaps) std::swap(positions_[5], positions_[200]);
    latents_ = Draw(&random_, c.n_entries, c.n_slices * kRank);
    values_ = Draw(&random_, c.n_entries, c.n_slices * kRankV);
    queries_ = Draw(&random_, c.n_tokens * kGroup, kHeadDim);
    way_back_ = Draw(&random_, c.n_slices * kRank, kHeadDim);
    for (auto& row : way_back_) {
      for (double& x : row)
        x = ToFloat(ToBf16(static_cast<float>(x / (8 * std::sqrt(c.n_slices)))));
    }
    offset_ = Draw(&random_, 1, kHeadDim)[0];
    for (int p = 0; p < 4 * kBlockSize * kBlocks(); ++p) {
      for (int i = 0; i < kHalf; ++i) {
        cos_.push_back(static_cast<float>(std::cos(AngleOf(p, i))));
        sin_.push_back(static_cast<float>(std::sin(AngleOf(p, i))));
      }
    }
  }

  static int kBlocks() { return (GetParam().n_entries + kBlockSize - 1) / kBlockSize; }

  std::vector<double> Key(int entry) const {
    std::vector<double> key = offset_;
    for (size_t r = 0; r < way_back_.size(); ++r) {
      for (int i = 0; i < kHeadDim; ++i) key[i] += latents_[entry][r] * way_back_[r][i];
    }
    for (int i = 0; i < kHalf; ++i) {
      const double angle = AngleOf(positions_[entry], i), a = key[i], b = key[i + kHalf];
      key[i] = a * std::cos(angle) - b * std::sin(angle);
      key[i + kHalf] = b * std::cos(angle) + a * std::sin(angle);
    }
    return key;
  }

  Random random_{3};
  std::vector<int32_t> positions_;
  Rows latents_, values_, queries_, way_back_;
  std::vector<double> offset_;
  std::vector<float> cos_, sin_;  // [position][half]
};

TEST_P(AttendLatentsTest, IsAttentionToTheKeysOfTheLatents) {
  const Case& c = GetParam();
  const int n_rows = c.n_tokens * kGroup, first_visible = c.n_entries - c.n_tokens + 1;
  const int width = c.n_slices * kRankV;
  const float sm_scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
  Rows expected(n_rows, std::vector<double>(width, 0.0)), scores(n_rows);
  Rows keys;
  for (int e = 0; e < c.n_entries; ++e) keys.push_back(Key(e));
  for (int row = 0; row < n_rows; ++row) {
    const int end = first_visible + row / kGroup;
    double sum = 0;
    for (int e = 0; e < c.n_entries; ++e) {
      double score = 0;
      for (int i = 0; i < kHeadDim; ++i) score += queries_[row][i] * keys[e][i];
      scores[row].push_back(CapScoreRef(score * sm_scale, c.score_cap) / sm_scale);
      if (e < c.kv_begin || e >= end || e < end - c.window) continue;
      const double weight = std::exp(CapScoreRef(score * sm_scale, c.score_cap));
      sum += weight;
      for (int r = 0; r < width; ++r) expected[row][r] += weight * values_[e][r];
    }
    for (double& x : expected[row]) x = sum > 0 ? x / sum : 0;
  }

  // Tables of entries and of blocks in a row.
  std::vector<std::byte> table(kBlocks() * EntryTable::BlockBytes(false));
  EntryTable entries(table.data(), false);
  std::vector<float> block_cos(kBlocks() * kBlockSize * kHalf), block_sin(block_cos.size());
  for (int e = 0; e < c.n_entries; ++e) {
    entries.position(e) = positions_[e];
    for (int i = 0; i < kHalf; ++i) {
      const int64_t at = e / kBlockSize * kBlockSize * kHalf + KeyOffset(e % kBlockSize, i);
      block_cos[at] = cos_[e * kHalf + i];
      block_sin[at] = sin_[e * kHalf + i];
    }
  }
  for (const Isa isa : AvailableIsas()) {
    for (const DType type : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(fmt::format("{} {}", IsaName(isa), DTypeName(type)));
      const BlockShape shape{kRank, kRankV, type};
      std::vector<Buffer> memory(c.n_slices * kBlocks());
      std::vector<std::byte*> blocks;  // [slice][block]
      for (Buffer& block : memory) {
        ASSERT_TRUE(block.EnsureSize(BlockBytes(shape), "block").ok());
        std::fill_n(block.data(), BlockBytes(shape), std::byte{0});
        blocks.push_back(block.data());
        const int slice = static_cast<int>(blocks.size() - 1) / kBlocks();
        const int first = static_cast<int>(blocks.size() - 1) % kBlocks() * kBlockSize;
        const int n = std::min(kBlockSize, c.n_entries - first);
        std::vector<std::byte> k(n * kRank * SizeOf(type)), v(n * kRankV * SizeOf(type));
        const auto part = [&](const Rows& rows, int rank) {
          Rows of_slice;
          for (int e = first; e < first + n; ++e) {
            const auto begin = rows[e].begin() + slice * rank;
            of_slice.emplace_back(begin, begin + rank);
          }
          return Flat(of_slice);
        };
        ConvertFromFloat(type, part(latents_, kRank).data(), n * kRank, k.data());
        ConvertFromFloat(type, part(values_, kRankV).data(), n * kRankV, v.data());
        GetAttendKernels(isa, type).append(
            {shape, block.data(), 0, n, k.data(), kRank, v.data(), kRankV});
      }
      // Blocks below every window may be gone.
      const int unseen = std::max(c.kv_begin, first_visible - c.window) / kBlockSize;
      std::vector<LatentSlice> slices;
      for (int slice = 0; slice < c.n_slices; ++slice) {
        std::fill_n(blocks.begin() + slice * kBlocks(), unseen, nullptr);
        slices.push_back({.blocks = blocks.data() + slice * kBlocks()});
      }
      const std::vector<float> offset = Flat({offset_});
      const LatentMap map(Flat(way_back_), offset, kHeadDim, kHeadDim, type);
      LatentHead head = {.map = map.view(),
                         .rotation = {block_cos.data(), block_sin.data(), kHalf, 1.0f}};
      if (c.n_slices > 1) head.slices = slices;
      if (c.has_gaps) {
        head.positions = entries;
        head.cos = cos_.data();
        head.sin = sin_.data();
      }
      std::vector<std::byte> q(n_rows * kHeadDim * SizeOf(type));
      ConvertFromFloat(type, Flat(queries_).data(), n_rows * kHeadDim, q.data());
      std::vector<float> o(n_rows * width), row_max(n_rows), row_sum(n_rows);
      const int64_t stride = kBlocks() * kBlockSize;
      std::vector<float> kernel_scores(n_rows * stride);
      const bool is_scored = c.window == kNoWindow;
      Buffer kernel_scratch, scratch;
      ASSERT_TRUE(kernel_scratch.EnsureSize(kAttendScratchBytes, "scratch").ok());
      ASSERT_TRUE(
          scratch.EnsureSize(LatentScratchBytes(shape, head, n_rows * (width + 32)), "scratch")
              .ok());
      const AttendParams params = {.shape = shape,
                                   .gqa_group = kGroup,
                                   .n_rows = n_rows,
                                   .q = q.data(),
                                   .q_stride = kHeadDim,
                                   .blocks = blocks.data(),
                                   .kv_begin = c.kv_begin,
                                   .kv_end = c.n_entries,
                                   .first_visible = first_visible,
                                   .window = c.window,
                                   .sm_scale = sm_scale,
                                   .score_cap = c.score_cap,
                                   .o = o.data(),
                                   .o_stride = width,
                                   .row_max = row_max.data(),
                                   .row_sum = row_sum.data(),
                                   .scores = is_scored ? kernel_scores.data() : nullptr,
                                   .scores_stride = stride};
      double rebuilding = 0;
      AttendLatents(GetAttendKernels(isa, type), {GetLatentReader(isa, type), GetSealedReader(isa)},
                    head, params, {kernel_scratch.data(), scratch.data(), &rebuilding});
      EXPECT_GT(rebuilding, 0) << "no time in which keys were made";
      const bool is_f32 = type == DType::kF32;
      for (int row = 0; row < n_rows; ++row) {
        for (int r = 0; r < width; ++r) {
          ASSERT_NEAR(o[row * width + r] / row_sum[row], expected[row][r], is_f32 ? 2e-4 : 0.05)
              << "row " << row << " value " << r;
        }
        for (int e = c.kv_begin; is_scored && e < first_visible + row / kGroup; ++e) {
          ASSERT_NEAR(kernel_scores[row * stride + e - c.kv_begin], scores[row][e],
                      is_f32 ? 1e-3 : 0.3)
              << "row " << row << " entry " << e;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AttendLatentsTest,
    ::testing::Values(
        Case{1, 1, kNoWindow, 0, false}, Case{700, 5, kNoWindow, 0, false},
        Case{700, 1, kNoWindow, 0, true, 1, 2}, Case{530, 40, kNoWindow, 128, true},
        Case{700, 30, 200, 0, false}, Case{700, 1, 300, 512, false},
        // 66 x 16 latents a key and 528 numbers a value: more than kernels take at once
        Case{700, 5, kNoWindow, 0, false, 2}, Case{330, 40, kNoWindow, 128, true, 4, 2},
        Case{500, 30, 200, 0, false, 33}, Case{290, 3, kNoWindow, 0, false, 33}));

}  // namespace
}  // namespace kvlathe
