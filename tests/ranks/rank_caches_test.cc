// Caches of every axis, on ranks that have some heads of them, some layers, or both: the tokens
// that one machine decodes, and together the bytes of its cache.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calibrated_ranks.h"
#include "greedy_batch.h"

namespace kvlathe {
namespace {

using testing::CalibratedRanks;
using testing::GreedyBatch;
using testing::RandomModelShape;
using testing::ShapeOfHeads;

constexpr int64_t kBytesForCaches = int64_t{64} << 20;
constexpr int kGreedyTokens = 24;

constexpr const char* kCachesOfOneHead[] = {
    "zack(rate=0.4)",
    "zack(rate=0.5,online=on)",
    "fdc(rate=0.5)",
    "fdc(rate=0.5,ranks=adaptive)",
    "palu(rate=0.5)",
    "eigen(rate=0.4)",
    "svd-online(rate=0.5)",
    "lathe(rate=0.25)",
    "lathe(rate=0.25,keys=before)",
    "lathe(rate=0.25,heads=own)",
    "lathe(rate=0.25,resident=full)",
    "lathe(ratio=4)",
    "lathe(ratio=3,heads=own,scales=static)+lowrank",
    "lathe(ratio=6,keys=before)",
    "lathe(ratio=8,keys=block)",
    "lathe(ratio=4,classes=3)",
    "lathe(ratio=4,under_pressure=8)",
    "lathe(ratio=4)+h2o(keep=0.5)",
    "h2o(keep=0.5)",
    "mas(keep=0.5)",
    "keyformer(keep=0.5)",
    "snapkv(keep=0.5)",
    "kvzip(keep=0.5,window=8,heads=own,chunk=40)",
    "tova(keep=0.5,heads=own)",
    "window(size=100)",
    "pool(n=4)",
    "token(bits=4)",
    "token(bits=4,hadamard=on)",
    "kivi(bits=2,group=64)",
    "kivi(bits=4,group=64)+lowrank",
    "gear-l(bits=2)",
    "int8",
    "q8_0",
    "q4_0",
    "mxfp4",
    "turboquant(bits=3)",
    "h2o(keep=0.5)+kivi(bits=4)",
    "window(size=100)+kivi",
    "pool(n=2)+kivi(bits=4)",
    "fdc(rate=0.5)+kivi(bits=4)+lowrank",
    "fdc(rate=0.5)+snapkv(keep=0.5,score=exact)",
    "keyformer-z(rate=0.5)",
    "zack(rate=0.5)+h2o(keep=0.5)+token(bits=4)",
};

// Of models that decide what merges and what leaves.
constexpr const char* kCachesThatMerge[] = {"dmc", "dmc(window=0)+kivi(bits=4)",
                                            "fdc(rate=0.25)+dmc", "dms(run=64)",
                                            "dms(run=64)+kivi(bits=4)"};

// Layers are cut, heads are not: what is made of all heads of a layer is.
constexpr const char* kCachesOfAllHeads[] = {"kcvt(bits=4)",
                                             "kvquant(bits=3)",
                                             "gear(bits=4)",
                                             "outlier-aware",
                                             "tova(keep=0.5)",
                                             "palu(rate=0.5,group=2)+tova(keep=0.5)",
                                             "lathe(rate=0.25,heads=joint)",
                                             "lathe(ratio=6,keys=block,heads=joint)"};

// On ranks and on one machine.
class SharedCaches {
 public:
  SharedCaches(const RandomModelShape& shape, const RankGrid& grid) : shared_(shape, grid) {}

  void ExpectSame(const char* kv) {
    {
      const auto whole = shared_.whole().MakeModel(kv);
      ASSERT_TRUE(whole.ok()) << whole.status();
      const auto shared = shared_.ranks().MakeModel(kv);
      ASSERT_TRUE(shared.ok()) << shared.status();
      BlockPool pool_of_whole(kBytesForCaches, &shared_.whole().memory());
      BlockPool pool(kBytesForCaches, &shared_.ranks().memory());
      const std::vector<testing::PromptToRead> prompts =
          testing::RandomPrompts({230, 130, 20}, {48, 33, 20}, shared_.config().vocab_size);
      GreedyBatch expected(whole->get(), &pool_of_whole, prompts, kGreedyTokens);
      GreedyBatch batch(shared->get(), &pool, prompts, kGreedyTokens);
      for (int n_steps = 1; expected.Step(); ++n_steps) {
        ASSERT_TRUE(batch.Step());
        if (n_steps % 4 != 0) continue;
        for (size_t i = 0; i < batch.size(); ++i) {
          ExpectSameBytes(batch.cache(i), expected.cache(i));
        }
        if (::testing::Test::HasFailure()) return;
      }
      EXPECT_FALSE(batch.Step());
      for (size_t i = 0; i < batch.size(); ++i) {
        EXPECT_EQ(batch.tokens(i).size(), kGreedyTokens);
        EXPECT_EQ(batch.tokens(i), expected.tokens(i)) << "sequence " << i;
        ExpectSameBytes(batch.cache(i), expected.cache(i));
      }
    }
    EXPECT_EQ(shared_.ranks().CountMirrored(), 0);
  }

 private:
  void ExpectSameBytes(const SequenceCache& shared, const SequenceCache& whole) {
    const KvBytes sum = shared_.ranks().BytesOf(shared), all = whole.bytes();
    EXPECT_EQ(sum.blocks, all.blocks);
    EXPECT_EQ(sum.sinks, all.sinks);
    EXPECT_EQ(sum.run_records, all.run_records);
    EXPECT_EQ(sum.layer_records, all.layer_records);
    EXPECT_EQ(sum.tables, all.tables);
    EXPECT_EQ(sum.entries, all.entries);
  }

  CalibratedRanks shared_;
};

RandomModelShape MergingShape() {
  RandomModelShape shape = ShapeOfHeads(4);
  shape.attention_bias = true;
  shape.dmc.emplace();
  shape.dms.emplace();
  return shape;
}

RandomModelShape ShapeOfDecidingQueries() {
  RandomModelShape shape = ShapeOfHeads(4);
  shape.model_type = "qwen3";
  shape.dms.emplace();
  shape.dms->query_channel.emplace();
  return shape;
}

struct SharingCase {
  const char* name;
  RandomModelShape shape;
  RankGrid grid;
};

class RankCaches : public ::testing::TestWithParam<const char*> {
 protected:
  static void TearDownTestSuite() { sharings_.clear(); }

  static void ExpectSame(const std::vector<SharingCase>& cases) {
    for (const SharingCase& of : cases) {
      SCOPED_TRACE(of.name);
      std::unique_ptr<SharedCaches>& sharing = sharings_[of.name];
      if (sharing == nullptr) sharing = std::make_unique<SharedCaches>(of.shape, of.grid);
      sharing->ExpectSame(GetParam());
    }
  }

 private:
  static inline std::map<std::string, std::unique_ptr<SharedCaches>> sharings_;
};

std::string CacheNameOf(const ::testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
  return name;
}

TEST_P(RankCaches, DecodeTheTokensOfOneMachineInItsBytes) {
  ExpectSame({{"4 heads on 2 ranks", ShapeOfHeads(4), {2, 1}},
              {"4 heads on 2 ranks, 2 stages", ShapeOfHeads(4), {2, 2}},
              {"3 heads on 2 ranks", ShapeOfHeads(3), {2, 1}}});
}
INSTANTIATE_TEST_SUITE_P(Specs, RankCaches, ::testing::ValuesIn(kCachesOfOneHead), CacheNameOf);

class RankCachesThatMerge : public RankCaches {};
TEST_P(RankCachesThatMerge, DecodeTheTokensOfOneMachineInItsBytes) {
  ExpectSame({{"merging on 2 ranks", MergingShape(), {2, 1}},
              {"merging on 2 ranks, 2 stages", MergingShape(), {2, 2}}});
}
INSTANTIATE_TEST_SUITE_P(Specs, RankCachesThatMerge, ::testing::ValuesIn(kCachesThatMerge),
                         CacheNameOf);

class RankCachesThatQueriesDecide : public RankCaches {};
TEST_P(RankCachesThatQueriesDecide, DecodeTheTokensOfOneMachineInItsBytes) {
  ExpectSame({{"deciding queries on 2 ranks", ShapeOfDecidingQueries(), {2, 1}}});
}
INSTANTIATE_TEST_SUITE_P(Specs, RankCachesThatQueriesDecide,
                         ::testing::Values("dms(run=64)", "fdc(rate=0.5)+kivi(bits=4)"),
                         CacheNameOf);

class RankCachesOfAllHeads : public RankCaches {};
TEST_P(RankCachesOfAllHeads, AreCutByLayers) {
  ExpectSame({{"2 stages", ShapeOfHeads(4), {1, 2}}});
}
INSTANTIATE_TEST_SUITE_P(Specs, RankCachesOfAllHeads, ::testing::ValuesIn(kCachesOfAllHeads),
                         CacheNameOf);

}  // namespace
}  // namespace kvlathe
