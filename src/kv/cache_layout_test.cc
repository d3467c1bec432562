// Bytes of a sequence, transcribed by hand from the definition of KV size: no call into the code
// that builds blocks, only numbers.
#include "kv/cache_layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

struct Model {
  const char* name;
  int n_layers, n_kv_heads, head_dim;
};
constexpr Model kModels[] = {
    {"Llama-2-7B", 32, 32, 128}, {"Llama-3.2-1B", 16, 8, 64}, {"lathe-nano", 6, 2, 64}};
constexpr int kLengths[] = {1, 4, 5, 68, 69, 1024};

// Ranks as fdc gives them: different in every head, multiples of 16 up to head_dim.
int RankK(const Model& m, int head) { return 16 + head * 7 % (m.head_dim / 16) * 16; }
int RankV(const Model& m, int head) { return 16 + head * 5 % (m.head_dim / 16) * 16; }

int64_t HandWrittenBytes(const Model& m, int n_tokens, int n_sink) {
  int64_t total = 0;
  for (int head = 0; head < m.n_layers * m.n_kv_heads; ++head) {
    const int64_t rk = RankK(m, head), rv = RankV(m, head);
    // 4 sink rows of 2-byte elements: keys whole, values in the latent space of the head.
    int64_t sinks = 2 * n_sink * (m.head_dim + rv);
    while (sinks % 64 != 0) ++sinks;
    int64_t n_blocks = 0;
    while (n_sink + 64 * n_blocks < n_tokens) ++n_blocks;
    int64_t table = 8 * n_blocks;
    while (table % 64 != 0) ++table;
    total += sinks + n_blocks * 64 * 2 * (rk + rv) + table;
  }
  return total;
}

class FdcBytes : public testing::TestWithParam<Model> {};

TEST_P(FdcBytes, EqualTheFormulaWrittenByHand) {
  const Model m = GetParam();
  for (int n_sink : {0, 3, 4}) {
    CacheLayout layout{m.n_layers, m.n_kv_heads, m.head_dim, n_sink, {}};
    for (int head = 0; head < m.n_layers * m.n_kv_heads; ++head) {
      layout.shapes.push_back({RankK(m, head), RankV(m, head), DType::kBf16});
    }
    for (int n_tokens : kLengths) {
      HostPool pool(std::numeric_limits<int64_t>::max());
      SequenceCache cache(&layout, &pool);
      ASSERT_TRUE(cache.Extend(n_tokens).ok());
      const int64_t expected = HandWrittenBytes(m, n_tokens, n_sink);
      EXPECT_EQ(SequenceBytes(layout, n_tokens), expected) << n_tokens;
      EXPECT_EQ(cache.bytes().total(), expected) << n_tokens;
      EXPECT_EQ(pool.usage().used_bytes, expected) << n_tokens;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FdcBytes, testing::ValuesIn(kModels), [](const auto& test) {
  std::string name = test.param.name;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

TEST(SequenceBytes, OfLlama2At7BAndHalfRankAreTheseNumbers) {
  const CacheLayout layout{32, 32, 128, 4, std::vector<BlockShape>(1024, BlockShape{64, 64})};
  EXPECT_EQ(SequenceBytes(layout, 0), 0);
  EXPECT_EQ(SequenceBytes(layout, 1), 1024 * 1536);
  EXPECT_EQ(SequenceBytes(layout, 4), 1024 * 1536);
  EXPECT_EQ(SequenceBytes(layout, 5), 1024 * (1536 + 16384 + 64));
  EXPECT_EQ(SequenceBytes(layout, 68), 1024 * (1536 + 16384 + 64));
  EXPECT_EQ(SequenceBytes(layout, 69), 1024 * (1536 + 2 * 16384 + 64));
  EXPECT_EQ(SequenceBytes(layout, 1024), 1024 * (1536 + 16 * 16384 + 128));
  // 512 KiB a token at 16 bits; the cache of 1024 tokens is half of that, 0.3 % of sinks and tables
  // more.
  EXPECT_EQ(UncompressedBytes(32, 32, 128, 1), 512 << 10);
  EXPECT_NEAR(static_cast<double>(SequenceBytes(layout, 1024)) / (int64_t{512} << 20), 0.5, 0.004);
}

TEST(SequenceBytes, InAWindowAreTheseNumbers) {
  CacheLayout layout{1, 1, 32, 4, {BlockShape{16, 16}}};
  layout.windows = {100};
  // A sink of 4 (32 + 16) 16-bit numbers is 384 bytes, a block 4096, a table 64.
  EXPECT_EQ(SequenceBytes(layout, 100), 384 + 2 * 4096 + 64);
  // The step that ended at 104 began at 103, which sees positions 4 to 103: no sink.
  EXPECT_EQ(SequenceBytes(layout, 103), 384 + 2 * 4096 + 64);
  EXPECT_EQ(SequenceBytes(layout, 104), 2 * 4096 + 64);
  EXPECT_EQ(SequenceBytes(layout, 104, 2), 384 + 2 * 4096 + 64);
  EXPECT_EQ(SequenceBytes(layout, 167), 3 * 4096 + 64);
  // That which ended at 168 began at 167, which sees positions 68 to 167: not the first block.
  EXPECT_EQ(SequenceBytes(layout, 168), 2 * 4096 + 64);
  EXPECT_EQ(SequenceBytes(layout, 168, 2), 3 * 4096 + 64);
  EXPECT_EQ(SequenceBytes(layout, 4 + 64 * 1000), 2 * 4096 + 8000);
  // Steps of 9 positions from 1000 on find no sinks.
  EXPECT_EQ(PeakBytesOfGrowth(layout, {0, 5000}, 9, 5000),
            PeakBytesOfGrowth(layout, {1000, 5000}, 9, 5000) + 384);
  EXPECT_EQ(ReferenceBytes(layout, 60), 2 * 2 * 32 * 60);
  EXPECT_EQ(ReferenceBytes(layout, 5000), 2 * 2 * 32 * 100);
  layout.windows = {};
  EXPECT_EQ(ReferenceBytes(layout, 5000), 2 * 2 * 32 * 5000);
  EXPECT_EQ(PeakSequenceBytes(layout, 5000, 77), SequenceBytes(layout, 5000));
}

TEST(SequenceBytes, WhereOneLayerOfThreeSeesEverythingAreThoseOfTheLayers) {
  CacheLayout windowed{1, 1, 32, 4, {BlockShape{16, 16}}}, whole = windowed;
  windowed.windows = {100};
  CacheLayout layout = whole;
  layout.n_layers = 3;
  layout.shapes.assign(3, BlockShape{16, 16});
  layout.windows = {100, 0, 100};
  for (const int64_t n : {60, 168, 5000}) {
    EXPECT_EQ(SequenceBytes(layout, n), 2 * SequenceBytes(windowed, n) + SequenceBytes(whole, n));
    EXPECT_EQ(ReferenceBytes(layout, n),
              2 * ReferenceBytes(windowed, n) + ReferenceBytes(whole, n));
    EXPECT_EQ(PeakSequenceBytes(layout, n, 9),
              2 * PeakSequenceBytes(windowed, n, 9) + PeakSequenceBytes(whole, n, 9));
  }
}

}  // namespace
}  // namespace kvlathe
