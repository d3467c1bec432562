#include "plan/plan_shard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "plan/drawn_source_fixture.h"
#include "plan/shard_fixture.h"

namespace kvlathe {
namespace {

std::vector<PlanShard> ShardsOf(const ModelFacts& model, int n_ranks, int n_stages) {
  std::vector<PlanShard> shards;
  for (const Range& layers : DivideLayers(model.n_layers, n_stages)) {
    for (const Range& heads : DivideHeads(model.n_kv_heads, n_ranks)) {
      shards.push_back({layers, heads});
    }
  }
  return shards;
}

// A head of a cache.
struct HeadPlace {
  int layer_idx, head_idx;
};

// f(head of the shard, the same head of the whole).
template <typename F>
void ForEachHead(const CachePlan& whole, const PlanShard& shard, const F& f) {
  const int n_joined = HeadsPerMap(whole.layout().keys);
  int l = 0;
  for (int64_t layer = shard.layers.begin; layer < shard.layers.end; ++layer, ++l) {
    int g = 0;
    for (int64_t h = shard.kv_heads.begin / n_joined; h < shard.kv_heads.end / n_joined; ++h, ++g) {
      f(HeadPlace{l, g}, HeadPlace{static_cast<int>(layer), static_cast<int>(h)});
    }
  }
}

size_t IndexIn(const CacheLayout& layout, const HeadPlace& place) {
  return static_cast<size_t>(place.layer_idx) * layout.n_kv_heads + place.head_idx;
}

void ExpectSameHead(const HeadBasis& a, const HeadBasis& b) {
  EXPECT_EQ(a.rank_k, b.rank_k);
  EXPECT_EQ(a.rank_v, b.rank_v);
  EXPECT_EQ(a.stored_rank_v, b.stored_rank_v);
  EXPECT_EQ(a.bits, b.bits);
  EXPECT_EQ(a.query_basis, b.query_basis);
  EXPECT_EQ(a.key_basis, b.key_basis);
  EXPECT_EQ(a.key_way_back, b.key_way_back);
  EXPECT_EQ(a.value_basis, b.value_basis);
  EXPECT_EQ(a.output_basis, b.output_basis);
  EXPECT_EQ(a.key_offset, b.key_offset);
  EXPECT_EQ(a.value_offset, b.value_offset);
  EXPECT_EQ(a.turning_mean, b.turning_mean);
  EXPECT_EQ(a.cut.has_value(), b.cut.has_value());
}

// Every head of the shard is that of the whole plan.
void ExpectHeadsOfWhole(const CachePlan& whole, const PlanShard& shard, const CachePlan& part) {
  const CacheLayout &all = whole.layout(), &layout = part.layout();
  const size_t n_heads = static_cast<size_t>(layout.n_layers) * layout.n_kv_heads;
  EXPECT_EQ(layout.shapes.size(), n_heads);
  EXPECT_EQ(layout.head_dim, all.head_dim);
  EXPECT_EQ(layout.n_sink, all.n_sink);
  EXPECT_EQ(layout.seal, all.seal);
  EXPECT_EQ(layout.retention, all.retention);
  EXPECT_EQ(layout.keys, all.keys);
  ASSERT_EQ(part.row_shapes().size(), n_heads);
  ASSERT_EQ(part.basis() == nullptr, whole.basis() == nullptr);
  if (part.basis() != nullptr) {
    EXPECT_EQ(part.basis()->heads.size(), n_heads);
    EXPECT_EQ(part.basis()->n_layers, layout.n_layers);
    EXPECT_EQ(part.basis()->n_kv_heads, layout.n_kv_heads);
    EXPECT_EQ(part.basis()->head_dim, whole.basis()->head_dim);
    EXPECT_EQ(part.basis()->keys, whole.basis()->keys);
    ASSERT_EQ(part.basis()->online.has_value(), whole.basis()->online.has_value());
  }
  ForEachHead(whole, shard, [&](const HeadPlace& here, const HeadPlace& there) {
    const size_t i = IndexIn(layout, here), j = IndexIn(all, there);
    EXPECT_EQ(layout.shapes[i], all.shapes[j]);
    EXPECT_EQ(part.row_shapes()[i], whole.row_shapes()[j]);
    EXPECT_EQ(layout.storage(here.layer_idx, here.head_idx),
              all.storage(there.layer_idx, there.head_idx));
    EXPECT_EQ(layout.window(here.layer_idx), all.window(there.layer_idx));
    if (part.basis() == nullptr) return;
    ExpectSameHead(part.basis()->heads[i], whole.basis()->heads[j]);
    if (!part.basis()->online.has_value()) return;
    EXPECT_EQ(part.basis()->online->output_grams[i], whole.basis()->online->output_grams[j]);
    EXPECT_EQ(part.basis()->online->is_normalised, whole.basis()->online->is_normalised);
  });
}

void ExpectSameParts(const KvBytes& sum, const KvBytes& whole) {
  EXPECT_EQ(sum.blocks, whole.blocks);
  EXPECT_EQ(sum.sinks, whole.sinks);
  EXPECT_EQ(sum.run_records, whole.run_records);
  EXPECT_EQ(sum.layer_records, whole.layer_records);
  EXPECT_EQ(sum.tables, whole.tables);
  EXPECT_EQ(sum.entries, whole.entries);
}

// Room for sealing is set aside for one layer at a time, the one that needs most of it. Shards need
// it side by side, and not all of them in the same layer: that alone does not sum.
void ExpectPeaksOfWhole(const CacheLayout& whole, const std::vector<CachePlan>& parts,
                        int64_t n_tokens, int64_t n_prompt) {
  constexpr int kMaxStep = 512;
  int64_t sum = 0;
  for (const CachePlan& part : parts) {
    sum += PeakSequenceBytes(part.layout(), n_tokens, kMaxStep, n_prompt);
  }
  const int64_t peak = PeakSequenceBytes(whole, n_tokens, kMaxStep, n_prompt);
  EXPECT_GE(sum, peak);
  if (!whole.seal.has_value()) {
    EXPECT_EQ(sum, peak);
  }
}

// All parts of a cache are sums over its heads, tables too.
void ExpectBytesOfWhole(const CacheLayout& whole, const std::vector<CachePlan>& parts) {
  for (const int64_t n_prompt : {int64_t{1}, int64_t{300}, int64_t{1000}, kEndlessPrompt}) {
    for (const int64_t n_tokens : {1, 5, 64, 100, 577, 1300, 3000}) {
      SCOPED_TRACE(fmt::format("{} positions, a prompt of {}", n_tokens, n_prompt));
      KvBytes sum;
      for (const CachePlan& part : parts) {
        sum.Add(SequenceParts(part.layout(), {.n_tokens = n_tokens, .n_prompt = n_prompt}));
      }
      ExpectSameParts(sum, SequenceParts(whole, {.n_tokens = n_tokens, .n_prompt = n_prompt}));
      ExpectPeaksOfWhole(whole, parts, n_tokens, n_prompt);
    }
  }
}

void ExpectShardsOfWhole(const CachePlan& whole, const std::vector<PlanShard>& shards) {
  std::vector<CachePlan> parts;
  for (const PlanShard& shard : shards) {
    SCOPED_TRACE(fmt::format("layers {} to {}, heads {} to {}", shard.layers.begin,
                             shard.layers.end, shard.kv_heads.begin, shard.kv_heads.end));
    parts.push_back(ShardOf(whole, shard));
    ExpectHeadsOfWhole(whole, shard, parts.back());
  }
  ExpectBytesOfWhole(whole.layout(), parts);
}

// A plan of drawn maps, or of drawn statistics.
CachePlan PlanToCut(const ModelFacts& model, const char* kv, DrawnSource* source) {
  StatusOr<CachePlan> plan = CachePlanner(model, source).MakePlan(*Spec::Parse(kv));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(ShardOf, HasTheHeadsAndTheBytesOfTheWhole) {
  for (const int n_kv_heads : {3, 4}) {
    DrawnSource source(FactsToCut(n_kv_heads));
    source.draws_bases = true;
    for (const char* kv : kOfOneHead) {
      for (int n_ranks = 1; n_ranks <= n_kv_heads; ++n_ranks) {
        SCOPED_TRACE(fmt::format("{}, {} heads on {} ranks", kv, n_kv_heads, n_ranks));
        const ModelFacts model = FactsToCut(n_kv_heads, n_ranks);
        const CachePlan whole = PlanToCut(model, kv, &source);
        for (const int n_stages : {1, 2}) {
          ExpectShardsOfWhole(whole, ShardsOf(model, n_ranks, n_stages));
        }
      }
    }
  }
}

// Stages have all heads of their layers.
TEST(ShardOf, CutsAnyCacheByLayers) {
  const ModelFacts model = FactsToCut(4);
  DrawnSource source(model);
  source.draws_bases = true;
  std::vector<const char*> specs(std::begin(kOfAllHeads), std::end(kOfAllHeads));
  for (const char* kv : {"lathe(rate=0.25,heads=joint)", "lathe(ratio=6,keys=block,maps=joint)",
                         "palu(rate=0.5,group=4)", "palu(rate=0.5,group=2)+tova(keep=0.5)"}) {
    specs.push_back(kv);
  }
  for (const char* kv : specs) {
    SCOPED_TRACE(kv);
    const CachePlan whole = PlanToCut(model, kv, &source);
    for (const int n_stages : {1, 2, 3}) ExpectShardsOfWhole(whole, ShardsOf(model, 1, n_stages));
  }
}

TEST(ShardOf, KeepsGroupsOfHeadsTogether) {
  const ModelFacts model = FactsToCut(4, 2);
  DrawnSource source(model);
  source.draws_bases = true;
  for (const char* kv : {"palu(rate=0.5,group=2)", "lathe(ratio=4)"}) {
    SCOPED_TRACE(kv);
    const CachePlan whole = PlanToCut(model, kv, &source);
    EXPECT_EQ(KeysPerMap(whole.layout().keys), 2);
    ExpectShardsOfWhole(whole, ShardsOf(model, 2, 2));
    EXPECT_DEATH(ShardOf(whole, {{0, kLayersToCut}, {0, 3}}), "n_grouped == 0");
  }
}

// Some layers see all positions, and a stage may have none of those, or only those.
TEST(ShardOf, KeepsTheWindowsOfItsLayers) {
  ModelFacts model = FactsToCut(3, 2);
  model.windows = {0, 256, 256};
  DrawnSource source(model);
  source.draws_bases = true;
  for (const char* kv : {"none", "kivi(bits=4,group=64)", "lathe(ratio=4)"}) {
    SCOPED_TRACE(kv);
    const CachePlan whole = PlanToCut(model, kv, &source);
    for (const int n_stages : {1, 2, 3}) ExpectShardsOfWhole(whole, ShardsOf(model, 2, n_stages));
    const CachePlan first = ShardOf(whole, {{0, 1}, {0, 2}}),
                    last = ShardOf(whole, {{1, 3}, {0, 2}});
    EXPECT_FALSE(first.layout().HasWindow());
    EXPECT_EQ(last.layout().windows, std::vector<int>({256, 256}));
  }
}

// With the ranks that were chosen for all heads together, at every rate.
TEST(ShardOf, KeepsRanksAndBitsOfTheWholeAllocation) {
  const ModelFacts model = FactsToCut(3, 2);
  DrawnSource source(model);
  for (const char* kv : {"lathe(rate=0.3)", "lathe(rate=0.3,resident=full)", "lathe(ratio=5)",
                         "lathe(ratio=4,keys=before)", "lathe(ratio=4,under_pressure=8)"}) {
    SCOPED_TRACE(kv);
    CachePlanner planner(model, &source);
    const StatusOr<CachePlan> made = planner.MakePlan(*Spec::Parse(kv));
    ASSERT_TRUE(made.ok()) << made.status();
    const CachePlan& whole = *made;
    ExpectShardsOfWhole(whole, ShardsOf(model, 2, 2));
    for (const PlanShard& shard : ShardsOf(model, 2, 2)) {
      const CachePlan part = ShardOf(whole, shard);
      ASSERT_TRUE(part.allocation().has_value());
      EXPECT_EQ(part.allocation()->removal_rate, whole.allocation()->removal_rate);
      ForEachHead(whole, shard, [&](const HeadPlace& here, const HeadPlace& there) {
        EXPECT_EQ(part.allocation()->ranks[IndexIn(part.layout(), here)],
                  whole.allocation()->ranks[IndexIn(whole.layout(), there)]);
      });
    }
  }
}

TEST(ShardOf, GivesSequencesTheRanksOfTheWholeAtTheirRate) {
  const ModelFacts model = FactsToCut(3, 2);
  DrawnSource source(model);
  CachePlanner planner(model, &source);
  const CachePlan whole = *planner.MakePlan(*Spec::Parse("lathe(rate=0.3,resident=full)"));
  std::vector<CacheLayout> parts;
  const std::vector<HeadRanks> ranks = whole.ranks_at()(0.5).value();
  int64_t n_bytes = 0;
  for (const PlanShard& shard : ShardsOf(model, 2, 2)) {
    const CachePlan part = ShardOf(whole, shard);
    const std::vector<HeadRanks> of_part = part.ranks_at()(0.5).value();
    ASSERT_EQ(of_part.size(), part.row_shapes().size());
    ForEachHead(whole, shard, [&](const HeadPlace& here, const HeadPlace& there) {
      EXPECT_EQ(of_part[IndexIn(part.layout(), here)], ranks[IndexIn(whole.layout(), there)]);
    });
    n_bytes += SequenceBytes(LayoutAtRanks(part.layout(), part.row_shapes(), of_part), 500);
    const Status status = part.ranks_at()(2).status();
    EXPECT_EQ(status, whole.ranks_at()(2).status());
    EXPECT_FALSE(status.ok());
  }
  EXPECT_EQ(n_bytes, SequenceBytes(LayoutAtRanks(whole.layout(), whole.row_shapes(), ranks), 500));
}

// Where the model decides what merges, heads have lengths of their own.
TEST(ShardOf, HasTheBytesOfHeadsThatMerge) {
  const ModelFacts model = FactsToCut(3, 2);
  DrawnSource source(model);
  for (const char* kv : {"dmc", "dmc+kivi(bits=4,group=64)+sparse", "dms", "dms+kivi(bits=4,group=64)+sparse"}) {
    SCOPED_TRACE(kv);
    const CachePlan whole = PlanToCut(model, kv, &source);
    std::vector<MergedLength> lengths;
    lengths.reserve(whole.layout().shapes.size());
    for (int i = 0; i < kLayersToCut * 3; ++i) lengths.push_back({100 + 64 * i, 1, 1});
    KvBytes sum;
    for (const PlanShard& shard : ShardsOf(model, 2, 2)) {
      std::vector<MergedLength> of_part;
      ForEachHead(whole, shard, [&](const HeadPlace&, const HeadPlace& there) {
        of_part.push_back(lengths[IndexIn(whole.layout(), there)]);
      });
      sum.Add(MergedParts(ShardOf(whole, shard).layout(), of_part));
    }
    ExpectSameParts(sum, MergedParts(whole.layout(), lengths));
  }
}

// No spec has codebooks and heads that are sealed one by one, which would let them be divided.
TEST(ShardOf, KeepsTheCodebooksOfItsHeads) {
  const ModelFacts model = FactsToCut(3);
  PlanParts parts;
  parts.seal = SealPlan{.format = {.codec = CodebookCodec{.bits = 4}}, .prompt_run = 0};
  parts.retention = RetentionPlan{.merge = MergePlan{.every = 0, .window = 12}};
  for (int l = 0; l < model.n_layers; ++l) {
    LayerCodebooks& layer = parts.codebooks.emplace_back();
    layer.k.centroids[0] = static_cast<float>(l);
    for (int g = 0; g < model.n_kv_heads; ++g) layer.key_scales.emplace_back(64, 10 * l + g);
  }
  const CachePlan whole = AssemblePlan(model, parts).value();
  ExpectShardsOfWhole(whole, ShardsOf(model, 3, 2));
  const CachePlan part = ShardOf(whole, {{1, 3}, {1, 3}});
  ASSERT_EQ(part.codebooks().size(), 2u);
  for (int l = 0; l < 2; ++l) {
    const LayerCodebooks& layer = part.codebooks()[l];
    EXPECT_EQ(layer.k.centroids[0], l + 1);
    ASSERT_EQ(layer.key_scales.size(), 2u);
    for (int g = 0; g < 2; ++g) EXPECT_EQ(layer.key_scales[g][0], 10 * (l + 1) + g + 1);
  }
}

TEST(DivideHeads, IsEvenWithTheLargerRangesFirst) {
  for (int n = 1; n <= 16; ++n) {
    for (int n_parts = 1; n_parts <= n; ++n_parts) {
      const std::vector<Range> heads = DivideHeads(n, n_parts), layers = DivideLayers(n, n_parts);
      ASSERT_EQ(std::ssize(heads), n_parts);
      int64_t begin = 0, n_before = n;
      for (size_t i = 0; i < heads.size(); ++i) {
        const int64_t n_part = heads[i].end - heads[i].begin;
        EXPECT_EQ(heads[i].begin, begin);
        EXPECT_EQ(layers[i].begin, begin);
        begin = heads[i].end;
        EXPECT_EQ(layers[i].end, begin);
        EXPECT_GE(n_part, heads[0].end - 1);
        EXPECT_EQ(n_part % CommonHeads(n, n_parts), 0);
        EXPECT_LE(n_part, n_before);
        n_before = n_part;
      }
      EXPECT_EQ(begin, n);
    }
  }
  EXPECT_EQ(CommonHeads(8, 2), 4);
  EXPECT_EQ(CommonHeads(3, 2), 1);
  EXPECT_EQ(CommonHeads(6, 4), 1);
  EXPECT_EQ(CommonHeads(12, 3), 4);
}

}  // namespace
}  // namespace kvlathe
