// Jobs of few rows that a job is taken to pieces for: attention over them is that of the whole job,
// and so are the votes. Both are computed by the CPU.
#include "cuda/attention/voting_parts.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "cpu/attention/attention.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/memory/cpu_device.h"

namespace kvlathe {
namespace {

constexpr int kDim = 16;
constexpr int kTokens = 41;
constexpr int kGroup = 3;
constexpr int kEntries = 150;
constexpr int kSinks = 4;
constexpr float kScale = 0.25f;

class VotingPartsTest : public ::testing::TestWithParam<bool> {
 protected:
  VotingPartsTest() {
    for (int b = 0; b < (kEntries + kBlockSize - 1) / kBlockSize; ++b) {
      blocks_.push_back(Drawn(BlockBytes(kShape) / 4));
    }
    std::vector<std::byte> table(std::ssize(blocks_) * EntryTable::BlockBytes(true));
    for (int e = 0; e < kEntries; ++e) EntryTable(table.data(), true).position(e) = e + kSinks;
    job_ = {.device = &memory_,
            .shape = kShape,
            .head_dim = kDim,
            .gqa_group = kGroup,
            .n_tokens = kTokens,
            .q = {.object = Drawn(kTokens * kGroup * kDim)},
            .q_stride = kDim,
            .q_full = {.object = Drawn(kTokens * kGroup * kDim)},
            .q_full_stride = kDim,
            .blocks = blocks_,
            .n_entries = kEntries,
            .first_visible = kEntries - kTokens - 10,
            .sinks = {.k = {.object = Drawn(kSinks * kDim)},
                      .v = {.object = Drawn(kSinks * kDim)},
                      .n = kSinks,
                      .first_visible = 2},
            .out = {.object = Drawn(kTokens * kGroup * kDim)},
            .out_stride = kGroup * kDim,
            .scored = {.object = Placed(table), .has_sums = true},
            .first_scored = 7,
            .noise = GetParam() ? &noise_ : nullptr};
  }

  static constexpr BlockShape kShape = {.rank_k = kDim, .rank_v = kDim, .row_type = DType::kF32};

  ObjectId Placed(const std::vector<std::byte>& bytes) {
    const ObjectId id = {.region = memory_.Allocate(std::ssize(bytes))};
    memory_.Upload({.object = id}, bytes);
    return id;
  }
  ObjectId Drawn(int64_t n) {
    std::vector<float> numbers(n);
    for (float& x : numbers) x = static_cast<float>(random_.Normal());
    const auto bytes = std::as_bytes(std::span(numbers));
    return Placed({bytes.begin(), bytes.end()});
  }
  std::vector<std::byte> BytesOf(const ObjectId& id, int64_t n_bytes) {
    std::vector<std::byte> bytes(n_bytes);
    memory_.Download({.object = id}, bytes);
    return bytes;
  }
  // What a run of jobs leaves in the outputs and the table of job_, which begin as they are.
  struct Left {
    std::vector<std::byte> out, table;
    bool operator==(const Left&) const = default;
  };
  Left RunOn(const std::vector<std::span<const HeadJob>>& calls) {
    const int64_t out_bytes = kTokens * kGroup * kDim * int64_t{4};
    const int64_t table_bytes = std::ssize(blocks_) * EntryTable::BlockBytes(true);
    const std::vector<std::byte> before = BytesOf(job_.scored.object, table_bytes);
    memory_.Fill(job_.out, std::byte{0xff}, out_bytes);
    Attention attention(&threads_, Isa::kScalar, &memory_, &residents_);
    for (const auto& jobs : calls) {
      EXPECT_TRUE(attention.Run(jobs, kScale, Schedule::kStatic).ok());
    }
    Left left = {BytesOf(job_.out.object, out_bytes), BytesOf(job_.scored.object, table_bytes)};
    memory_.Upload({.object = job_.scored.object}, before);
    return left;
  }

  ThreadPool threads_{1};
  CpuDevice memory_;
  CpuResidents residents_{&memory_};
  Random random_{3};
  std::vector<ObjectId> blocks_;
  ScoreNoise noise_ = {.key = 5,
                       .first_head = 2,
                       .first_position = 100,
                       .temperature = 1.25f,
                       .temperature_step = 0.0625f,
                       .max_temperature = 2};
  HeadJob job_;
};

TEST_P(VotingPartsTest, LeaveWhatTheWholeJobLeaves) {
  VotingParts parts;
  parts.Add(job_, 16);
  ASSERT_EQ(parts.silent().size(), 1u);
  EXPECT_EQ(parts.silent()[0].n_tokens, 7);
  EXPECT_FALSE(parts.silent()[0].is_scored());
  ASSERT_EQ(parts.voting().size(), 7u);  // 34 tokens, five at a time
  EXPECT_EQ(parts.voting()[6].n_tokens, 4);
  const Left whole = RunOn({{&job_, 1}});
  EXPECT_EQ(RunOn({parts.silent(), parts.voting()}), whole);
  // That the comparison sees votes.
  EXPECT_NE(RunOn({parts.silent()}).table, whole.table);
}

INSTANTIATE_TEST_SUITE_P(Noise, VotingPartsTest, ::testing::Bool());

TEST(VotingPartsOfWideGroupsTest, HaveATokenAtLeast) {
  VotingParts parts;
  parts.Add({.gqa_group = 32, .n_tokens = 3, .scored = {.object = {.region = 1}}}, 16);
  EXPECT_TRUE(parts.silent().empty());
  EXPECT_EQ(parts.voting().size(), 3u);
}

}  // namespace
}  // namespace kvlathe
