#include "kv/blocks/sequence_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>

#include "base/random.h"
#include "kv/blocks/host_pool_fixture.h"

namespace kvlathe {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

CacheLayout RandomLayout(Random* random) {
  CacheLayout layout;
  layout.n_layers = 1 + static_cast<int>(random->Below(3));
  layout.n_kv_heads = 1 + static_cast<int>(random->Below(4));
  layout.head_dim = 16 * (1 + static_cast<int>(random->Below(8)));
  layout.n_sink = static_cast<int>(random->Below(7));
  const DType row_type = random->Below(2) ? DType::kBf16 : DType::kF32;
  const auto rank = [&] {
    return 16 * (1 + static_cast<int>(random->Below(layout.head_dim / 16)));
  };
  for (int i = 0; i < layout.n_layers * layout.n_kv_heads; ++i) {
    layout.shapes.push_back({rank(), rank(), row_type});
  }
  return layout;
}

CacheLayout UniformLayout(int n_sink) {
  return {2, 2, 32, n_sink, std::vector<BlockShape>(4, BlockShape{16, 16})};
}

TEST(SequenceCache, BytesEqualTheFormulaAtEveryLengthOnRandomLayouts) {
  Random random(3);
  for (int round = 0; round < 25; ++round) {
    const CacheLayout layout = RandomLayout(&random);
    HostPool pool(kNoLimit);
    SequenceCache cache(&layout, &pool);
    EXPECT_EQ(cache.bytes().total(), 0);
    while (cache.n_tokens() < 1500) {
      const int n_new = 1 + static_cast<int>(random.Below(random.Below(4) ? 3 : 200));
      ASSERT_TRUE(cache.Extend(n_new).ok());
      ASSERT_EQ(cache.bytes().total(), SequenceBytes(layout, cache.n_tokens()));
      ASSERT_EQ(cache.bytes().total(), pool.usage().used_bytes);
    }
    EXPECT_EQ(cache.bytes().tables,
              pool.usage().used_by_kind[static_cast<int>(ObjectKind::kTable)]);
    cache.Clear();
    EXPECT_EQ(pool.usage().used_bytes, 0);
    EXPECT_EQ(cache.n_tokens(), 0);
  }
}

TEST(SequenceCache, TheObjectsOfAllHeadsAreDistinctAndWholeRowsAreWritable) {
  const CacheLayout layout = UniformLayout(4);
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  ASSERT_TRUE(cache.Extend(4 + 3 * kBlockSize).ok());
  std::set<ObjectId> objects;
  for (int layer_idx = 0; layer_idx < 2; ++layer_idx) {
    for (int kv_head_idx = 0; kv_head_idx < 2; ++kv_head_idx) {
      ASSERT_EQ(cache.head(layer_idx, kv_head_idx).blocks().size(), 3u);
      for (const ObjectId& block : cache.head(layer_idx, kv_head_idx).blocks()) {
        cache.device().Fill({block}, std::byte{1},
                            OpenBlockBytes(layout.codec(), layout.shape(layer_idx, kv_head_idx)));
        objects.insert(block);
      }
      const ObjectPlace sink_v = cache.head(layer_idx, kv_head_idx).sink_v();
      EXPECT_EQ(sink_v.object, cache.head(layer_idx, kv_head_idx).sink_k().object);
      EXPECT_EQ(sink_v.offset, 4 * 32 * 2);
      objects.insert(sink_v.object);
    }
  }
  EXPECT_EQ(objects.size(), 4u * (3 + 1));
}

TEST(SequenceCache, BlocksStayWhereTheyAreWhileTheSequenceGrows) {
  const CacheLayout layout = UniformLayout(0);
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  EXPECT_TRUE(cache.head(0, 0).sink_k().is_null());
  ASSERT_TRUE(cache.Extend(2 * kBlockSize).ok());
  EXPECT_TRUE(cache.head(0, 0).sink_v().is_null());
  const std::vector<ObjectId> before(cache.head(1, 1).blocks().begin(),
                                     cache.head(1, 1).blocks().end());
  for (int i = 0; i < 20 * kBlockSize; ++i) ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_EQ(cache.head(1, 1).blocks().size(), 22u);
  EXPECT_EQ(cache.head(1, 1).blocks()[0], before[0]);
  EXPECT_EQ(cache.head(1, 1).blocks()[1], before[1]);
}

TEST(SequenceCache, SinksComeWithTheFirstPositionAndBlocksBehindTheLastSink) {
  const CacheLayout layout = UniformLayout(4);
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  ASSERT_TRUE(cache.Extend(0).ok());
  EXPECT_TRUE(cache.head(0, 0).sink_k().is_null());
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_FALSE(cache.head(0, 0).sink_k().is_null());
  ASSERT_TRUE(cache.Extend(3).ok());
  EXPECT_TRUE(cache.head(0, 0).blocks().empty());
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_EQ(cache.head(0, 0).blocks().size(), 1u);
  ASSERT_TRUE(cache.Extend(kBlockSize - 1).ok());
  EXPECT_EQ(cache.head(0, 0).blocks().size(), 1u);
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_EQ(cache.head(0, 0).blocks().size(), 2u);
}

TEST(SequenceCache, BytesEqualTheFormulaInWindowsToo) {
  Random random(5);
  for (int round = 0; round < 25; ++round) {
    CacheLayout layout = RandomLayout(&random);
    // In half of the rounds layers have windows of their own, or none.
    const int common = 1 + static_cast<int>(random.Below(400));
    for (int l = 0; l < layout.n_layers; ++l) {
      const int own = static_cast<int>(random.Below(3)) * static_cast<int>(random.Below(400));
      layout.windows.push_back(round % 2 == 0 ? common : own);
    }
    HostPool pool(kNoLimit);
    SequenceCache cache(&layout, &pool);
    const int max_step = 1 + static_cast<int>(random.Below(150));
    int64_t peak_bytes = 0;
    while (cache.n_tokens() < 1500) {
      const int n_new = 1 + static_cast<int>(random.Below(max_step));
      ASSERT_TRUE(cache.Extend(n_new).ok());
      ASSERT_EQ(cache.bytes().total(), SequenceBytes(layout, cache.n_tokens(), n_new));
      ASSERT_EQ(cache.bytes().total(), pool.usage().used_bytes);
      peak_bytes = std::max(peak_bytes, cache.bytes().total());
    }
    EXPECT_LE(peak_bytes, PeakSequenceBytes(layout, cache.n_tokens(), max_step));
    cache.Clear();
    EXPECT_EQ(pool.usage().used_bytes, 0);
    ASSERT_TRUE(cache.Extend(70).ok());  // nothing is remembered
    EXPECT_EQ(cache.bytes().total(), SequenceBytes(layout, 70, 70));
  }
}

TEST(SequenceCache, GivesBackABlockWhenTheNextPositionCannotSeeIt) {
  CacheLayout layout = UniformLayout(4);
  layout.windows.assign(layout.n_layers, 100);
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  // The first block holds positions 4 to 67; 167 is the first position that sees none of them.
  ASSERT_TRUE(cache.Extend(166).ok());
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_FALSE(cache.head(0, 0).blocks()[0].is_null());
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_TRUE(cache.head(0, 0).blocks()[0].is_null());
  EXPECT_FALSE(cache.head(0, 0).blocks()[1].is_null());
  // A long step needs what its first position sees.
  ASSERT_TRUE(cache.Extend(500).ok());
  EXPECT_FALSE(cache.head(1, 1).blocks()[1].is_null());
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_TRUE(
      cache.head(1, 1).blocks()[7].is_null());  // positions 452 to 515; 668 sees from 569 on
  EXPECT_FALSE(cache.head(1, 1).blocks()[8].is_null());
}

TEST(SequenceCache, GivesBackSinksWhenTheNextPositionCannotSeeThem) {
  CacheLayout layout = UniformLayout(4);
  layout.windows.assign(layout.n_layers, 100);
  layout.windows[1] = 0;
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  // Position 102 is the last that sees position 3.
  ASSERT_TRUE(cache.Extend(102).ok());
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_FALSE(cache.head(0, 0).sink_k().is_null());
  const int64_t before = cache.bytes().sinks;
  ASSERT_TRUE(cache.Extend(1).ok());
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    EXPECT_TRUE(cache.head(0, g).sink_k().is_null());
    EXPECT_TRUE(cache.head(0, g).sink_v().is_null());
    EXPECT_FALSE(cache.head(1, g).sink_k().is_null());
  }
  EXPECT_EQ(cache.bytes().sinks * layout.n_layers, before);
  ASSERT_TRUE(cache.Extend(200).ok());  // nor are they taken again
  EXPECT_TRUE(cache.head(0, 0).sink_k().is_null());
  StatusOr<std::unique_ptr<SequenceCache>> copy = cache.Copy();
  ASSERT_TRUE(copy.ok());
  EXPECT_TRUE((*copy)->head(0, 0).sink_k().is_null());
  cache.Clear();
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_FALSE(cache.head(0, 0).sink_k().is_null());
}

TEST(SequenceCache, WhereQueriesSeeSinksBesideTheirWindowTheseStay) {
  CacheLayout layout = UniformLayout(4);
  layout.seal.emplace();
  layout.seal->window = 100;
  layout.windows.assign(layout.n_layers, 100);
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(4000);
  while (cache.n_tokens() < 300) ASSERT_TRUE(cache.Extend(50).ok());
  EXPECT_FALSE(cache.head(0, 0).sink_k().is_null());
}

TEST(SequenceCache, ALayerWithoutAWindowKeepsItsBlocksBesideOneThatGivesThemBack) {
  CacheLayout layout = UniformLayout(4);
  layout.windows.assign(layout.n_layers, 0);
  layout.windows[0] = 100;
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  ASSERT_TRUE(cache.Extend(167).ok());
  ASSERT_TRUE(cache.Extend(1).ok());
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    EXPECT_TRUE(cache.head(0, g).blocks()[0].is_null());
    EXPECT_FALSE(cache.head(1, g).blocks()[0].is_null());
  }
}

TEST(SequenceCache, AWindowedSequenceGrowsOnUnderABudgetThatHoldsItsPeak) {
  CacheLayout layout = UniformLayout(0);
  layout.windows.assign(layout.n_layers, 130);
  constexpr int kStep = 48, kTokens = 4800;
  HostPool pool(PeakSequenceBytes(layout, kTokens, kStep));
  SequenceCache cache(&layout, &pool);
  while (cache.n_tokens() < kTokens) ASSERT_TRUE(cache.Extend(kStep).ok()) << cache.n_tokens();
}

TEST(SequenceCache, ExtendSucceedsExactlyWhenTheFormulaFitsTheBudget) {
  Random random(8);
  for (int round = 0; round < 40; ++round) {
    const CacheLayout layout = RandomLayout(&random);
    const int64_t n_fitting = 1 + static_cast<int64_t>(random.Below(1400));
    const int64_t budget_bytes = SequenceBytes(layout, n_fitting);
    HostPool pool(budget_bytes);
    SequenceCache cache(&layout, &pool);
    while (true) {
      const int n_new = 1 + static_cast<int>(random.Below(100));
      const KvBytes before = cache.bytes();
      const int n_before = cache.n_tokens();
      const Status status = cache.Extend(n_new);
      ASSERT_EQ(status.ok(), SequenceBytes(layout, n_before + n_new) <= budget_bytes);
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      const std::string needed =
          std::to_string(SequenceBytes(layout, n_before + n_new) - before.total());
      EXPECT_THAT(status.message(), testing::HasSubstr("need " + needed + " bytes"));
      EXPECT_EQ(cache.n_tokens(), n_before);
      EXPECT_EQ(cache.bytes().total(), before.total());
      EXPECT_EQ(pool.usage().used_bytes, before.total());
      break;
    }
  }
}

TEST(SequenceCache, ExtendIsAllOrNothingWhenTheSystemRefuses) {
  // 8 GiB a block: 2^31 - 1 positions want more than the address space has.
  const CacheLayout layout = {1, 1, 16, 4, {BlockShape{1 << 25, 1 << 25}}};
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  const Status status = cache.Extend(std::numeric_limits<int>::max());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.n_tokens(), 0);
  EXPECT_EQ(cache.bytes().total(), 0);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(SequenceCache, RefusesMorePositionsThanAnIntCounts) {
  const CacheLayout layout = UniformLayout(0);
  HostPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  ASSERT_TRUE(cache.Extend(1).ok());
  EXPECT_EQ(cache.Extend(std::numeric_limits<int>::max()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.n_tokens(), 1);
}

// Many sequences come, grow and go under one budget; the model is the list of their lengths.
TEST(SequenceCache, ManySequencesShareOneBudget) {
  Random random(21);
  const CacheLayout layout = RandomLayout(&random);
  const int64_t budget_bytes = SequenceBytes(layout, 4000);
  HostPool pool(budget_bytes);
  std::vector<std::unique_ptr<SequenceCache>> caches(12);
  std::vector<int> lengths(caches.size());
  for (auto& cache : caches) cache = std::make_unique<SequenceCache>(&layout, &pool);
  const auto total = [&] {
    int64_t n_bytes = 0;
    for (int n_tokens : lengths) n_bytes += SequenceBytes(layout, n_tokens);
    return n_bytes;
  };
  int n_refused = 0;
  for (int step = 0; step < 5000; ++step) {
    const size_t i = random.Below(caches.size());
    if (random.Below(20) == 0) {
      caches[i]->Clear();
      lengths[i] = 0;
    } else {
      const int n_new = static_cast<int>(random.Below(150));
      const int n_before = lengths[i];
      lengths[i] += n_new;
      const bool fits = total() <= budget_bytes;
      ASSERT_EQ(caches[i]->Extend(n_new).ok(), fits);
      if (!fits) lengths[i] = n_before;
      n_refused += !fits;
    }
    ASSERT_EQ(caches[i]->n_tokens(), lengths[i]);
    ASSERT_EQ(pool.usage().used_bytes, total());
  }
  EXPECT_GT(n_refused, 0);
  caches.clear();
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

}  // namespace
}  // namespace kvlathe
