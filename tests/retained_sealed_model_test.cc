// What stays where entries are dropped, sealed: against the literal decoder with literal retention
// and a literal quantiser, and against what sealing makes of the same rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/cpu_features.h"
#include "base/random.h"
#include "cpu/kernels/attend/resolve.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/kernels/seal/seal.h"
#include "cpu/reopen.h"
#include "kv/seal/seal_schedule.h"
#include "reference_quantizer.h"
#include "retained_model.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceQuantizer;
using testing::ReferenceRetention;
using testing::RootMeanSquare;

// The bytes of a sealed run of every head of a layer.
std::vector<std::vector<std::byte>> BytesOfRun(const SequenceCache& cache,
                                               const CacheLayout& layout, int layer_idx) {
  std::vector<std::vector<std::byte>> objects;
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    const SealedRun& run = cache.head(layer_idx, g).runs().front();
    const PackedShape shape = PackedShapeOf(
        layout, layer_idx, g, {run.first_block, run.n_blocks, run.is_prompt, run.is_repaired});
    const auto add = [&](const ObjectId& object, int64_t n_bytes) {
      cache.device().Download({object}, objects.emplace_back(n_bytes));
    };
    for (int b = 0; b < run.n_blocks; ++b) {
      add(cache.head(layer_idx, g).blocks()[b], PackedBlockBytes(shape));
    }
    add(run.record, RunRecordBytes(shape));
    if (g == 0) add(run.layer_record, LayerRecordBytes(shape));
  }
  return objects;
}

// Entries of a head whose positions are not among those that are kept, which are in their order.
std::vector<int> DroppedFrom(const SequenceCache& all, int layer_idx, int kv_head_idx,
                             const std::vector<int>& kept) {
  std::vector<int> dropped;
  const CpuAccess access(all.device());
  const EntryTable table = EntryTableAt(access, all.head(layer_idx, kv_head_idx).entries());
  for (int e = 0; e < all.head(layer_idx, kv_head_idx).n_entries(); ++e) {
    const int position = table.position(e);
    if (!std::ranges::binary_search(kept, position)) dropped.push_back(e);
  }
  return dropped;
}

struct SealedCase {
  const char* spec;
  ReferenceRetention retention;
  ReferenceQuantizer quantizer;
  bool has_latents = false;
  int chunk = 0;  // of the prompt, read again (kvzip)
};

// Entries go while the prompt is read, where it ends, and wherever they have outgrown their budget
// after that. What stays then is sealed, what had been sealed already from what its codes stand
// for: as a quantiser of the rest would do.
TEST_F(RetainedModelTest, SealsWhatStays) {
  constexpr double kSlack = 0.25;
  const SealedCase cases[] = {
      {"snapkv(budget=100,window=16,kernel=5,sink=4)+kivi(bits=2,group=32)",
       {.name = "snapkv",
        .budget = 100,
        .n_recent = 16,
        .kernel = 5,
        .prompt_only = true,
        .n_sink = 4},
       {.name = "kivi", .bits = 2, .group = 32, .n_sink = 4}},
      {"kvzip(budget=100,window=16,heads=own,chunk=80,sink=4)+kivi(bits=2,group=32)",
       {.name = "kvzip", .budget = 100, .n_recent = 16, .prompt_only = true, .n_sink = 4},
       {.name = "kivi", .bits = 2, .group = 32, .n_sink = 4},
       false,
       80},
      {"h2o(keep=0.5,sink=0)+kcvt(bits=2)+sparse(share=0.1)",
       {.name = "h2o", .keep = 0.5, .recent = 0.5, .run = kRun},
       {.name = "kcvt", .bits = 2, .sparse_share = 0.1}},
      {"h2o(keep=0.4,budget=prompt,recent=0.25,sink=4)+kivi(bits=2,group=32,buffer=128)",
       {.name = "h2o",
        .keep = 0.4,
        .of_prompt = true,
        .recent = 0.25,

        .run = kRun,
        .n_sink = 4},
       {.name = "kivi", .bits = 2, .group = 32, .buffer = 128, .n_sink = 4}},
      {"tova(budget=80,sink=2)+token(bits=3,group=16,newest=9)",
       {.name = "tova", .budget = 80, .shared = true, .run = kRun, .n_sink = 2},
       {.name = "token", .bits = 3, .group = 16, .newest = 9, .n_sink = 2}},
      {"h2o(keep=0.5,sink=0)+turboquant(bits=2)",
       {.name = "h2o", .keep = 0.5, .recent = 0.5, .run = kRun},
       {.name = "sphere", .sphere = {{{24, 80}, 1.510417609 / 80}, {{24, 80}, 1.510417609 / 80}}}},
      {"tova(budget=40,heads=own,sink=0)+q8_0",
       {.name = "tova", .budget = 40, .run = kRun},
       {.name = "q8_0", .bits = 8}},
      {"h2o(keep=0.6,sink=2)+kvarn(key_bits=3,hadamard=off)",
       {.name = "h2o", .keep = 0.6, .recent = 0.5, .run = kRun, .n_sink = 2},
       {.name = "kvarn", .bits = 3, .group = 128, .buffer = 128, .n_sink = 2}},
      {"keyformer(keep=0.3,prune=prompt,sink=0)+int8",
       {.name = "keyformer", .keep = 0.3, .recent = 0.3, .tau_end = 2},
       {.name = "int8", .bits = 8}},
      {"h2o(keep=0.8,sink=0)+kcvt(bits=4)",
       {.name = "h2o", .keep = 0.8, .recent = 0.5, .run = kRun},
       {.name = "kcvt", .bits = 4}},
      {"palu+h2o(keep=0.4,sink=4)+token(bits=3,group=16)",
       {.name = "h2o", .keep = 0.4, .recent = 0.5, .run = kRun, .n_sink = 4},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 4},
       true},
      {"palu+snapkv(budget=90,window=16,kernel=5,sink=0)+kivi(bits=3,group=32)",
       {.name = "snapkv", .budget = 90, .n_recent = 16, .kernel = 5, .prompt_only = true},
       {.name = "kivi", .bits = 3, .group = 32},
       true},
      {"palu(group=2)+tova(budget=80,sink=2)+token(bits=3,group=16)",
       {.name = "tova", .budget = 80, .shared = true, .run = kRun, .n_sink = 2},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 2},
       true},
      {"fdc+h2o(keep=0.4,score=exact,sink=4)+token(bits=3,group=16)",
       {.name = "h2o", .keep = 0.4, .recent = 0.5, .run = kRun, .n_sink = 4},
       {.name = "token", .bits = 3, .group = 16, .n_sink = 4}},
      {"fdc+snapkv(budget=90,window=16,kernel=5,score=exact,sink=0)+kivi(bits=3,group=32)",
       {.name = "snapkv", .budget = 90, .n_recent = 16, .kernel = 5, .prompt_only = true},
       {.name = "kivi", .bits = 3, .group = 32}}};
  const std::vector<int> ids(ids_.begin(), ids_.end());
  for (SealedCase c : cases) {
    SCOPED_TRACE(c.spec);
    c.retention.slack = kSlack;
    c.retention.n_prompt = kPrompt;
    c.retention.n_generated = kManyTokens - kPrompt;
    const int n_whole_keys = ReadsWholeKeys(c.spec) ? kPrompt : 0;
    const bool has_basis = c.has_latents || n_whole_keys > 0;
    const auto bases = has_basis ? BasesOf(c.spec) : std::vector<testing::ReferenceBasis>();
    testing::RetainLiterally retain(c.retention, reference_.n_layers, reference_.n_kv_heads);
    testing::RepeatLiterally::Votes votes;
    if (c.chunk > 0) votes = VotesOfRepeat(c.retention, c.chunk, bases, n_whole_keys > 0);
    const auto read = [&](const ReferenceQuantizer* quantizer) {
      retain = testing::RetainLiterally(c.retention, reference_.n_layers, reference_.n_kv_heads);
      if (c.chunk > 0) retain.SetVotes(votes);
      std::vector<int> n_seen(reference_.n_layers), n_entries(reference_.n_layers);
      std::vector<int> n_at_start(reference_.n_layers);  // entries when some were dropped last
      return testing::ReferenceLogits(
          reference_, ids, bases, c.retention.n_sink,
          [&](int layer, testing::ReferenceRows* rows) {
            retain(layer, rows);
            const int n_before = n_entries[layer];
            n_entries[layer] = static_cast<int>(retain.Positions(layer, 0).size());
            if (++n_seen[layer] == n_whole_keys) {
              testing::MapKeys(reference_, layer, bases, c.retention.n_sink, rows);
            }
            if (n_seen[layer] < kPrompt || quantizer == nullptr) return;
            const bool has_dropped = n_entries[layer] <= n_before;
            if (n_seen[layer] == kPrompt || has_dropped) n_at_start[layer] = n_entries[layer];
            ReferenceQuantizer of_rest = *quantizer;
            of_rest.run = 0;
            of_rest.n_prompt = c.retention.n_sink + n_at_start[layer];
            testing::SealLiterally(of_rest, layer, rows);
          },
          nullptr, n_whole_keys);
    };
    const Matrix unsealed = read(nullptr);
    const Matrix want = read(&c.quantizer);
    const double loss = RootMeanSquare(want, unsealed);
    ASSERT_GT(loss, 1e-5);
    for (const Isa isa : AvailableIsas()) {
      std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
      for (const int chunk : {512, 1}) {
        SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
        const std::unique_ptr<SequenceCache> cache = NewCache(*model, kManyTokens);
        Matrix logits;
        Read(model.get(), cache.get(), kManyTokens, chunk, &logits);
        if (HasFatalFailure()) return;
        EXPECT_LT(RootMeanSquare(logits, want), 0.05 * loss + 1e-5);
        for (int l = 0; l < reference_.n_layers && !cache->head(l, 0).entries().empty(); ++l) {
          for (int g = 0; g < reference_.n_kv_heads; ++g) {
            EXPECT_EQ(Positions(*cache, l, g), retain.Positions(l, g)) << l << ' ' << g;
          }
        }
      }
    }
  }
}

// What stays where entries are dropped is sealed as if it had been all: the objects are those that
// GEAR makes of the rows of the other entries.
TEST_F(RetainedModelTest, SealsAgainAsIfNothingElseHadBeenThere) {
  constexpr double kNeverCut = 100;
  for (const char* spec :
       {"h2o(keep=0.5,sink=4)+gear(bits=4)", "tova(budget=100,sink=0)+gear(bits=2)"}) {
    SCOPED_TRACE(spec);
    const Isa isa = AvailableIsas().back();
    std::unique_ptr<Model> model = Load(isa, DType::kBf16, spec);
    std::unique_ptr<Model> uncut = Load(isa, DType::kBf16, spec, kNeverCut);
    const CacheLayout& layout = model->layout();
    const std::unique_ptr<SequenceCache> cache = NewCache(*model), all = NewCache(*uncut);
    while (cache->reencoding().n_times == 0) {
      const int n = static_cast<int>(std::min<int64_t>(cache->max_step(), all->max_step()));
      ASSERT_LE(cache->n_tokens() + n, kManyTokens);
      Step(model.get(), cache.get(), n);
      Step(uncut.get(), all.get(), n);
    }
    Sealer sealer(layout.seal->format, DType::kBf16, layout.seal->power_loops, &threads_, isa);
    for (int l = 0; l < layout.n_layers; ++l) {
      const int n_kept = cache->head(l, 0).n_entries(), n_blocks = n_kept / kBlockSize;
      // In their places: the objects of a run like the cache's, and the rows that it was made of.
      std::vector<std::vector<std::byte>> want = BytesOfRun(*cache, layout, l), rows;
      for (auto& object : want) std::ranges::fill(object, std::byte{0});
      std::vector<std::vector<const std::byte*>> plain(layout.n_kv_heads);
      std::vector<std::vector<std::byte*>> packed(layout.n_kv_heads), to(layout.n_kv_heads);
      std::vector<SealHead> heads;
      std::byte* layer_record = nullptr;
      for (int g = 0, object = 0; g < layout.n_kv_heads; ++g) {
        const BlockShape& shape = layout.shape(l, g);
        for (int b = 0; b <= n_blocks; ++b) {
          to[g].push_back(rows.emplace_back(BlockObjectBytes(layout, shape)).data());
        }
        const CpuAccess access(all->device());
        CpuDevice nothing;
        const CpuResidents residents(&nothing);  // the format has no codebooks
        const SealedHead sealed = {.format = layout.seal->format,
                                   .kv_head_idx = g,
                                   .n_kv_heads = layout.n_kv_heads,
                                   .layer_rank_v = 2 * shape.rank_v,
                                   .runs = all->head(l, g).runs()};
        std::vector<PackedRun> runs;
        const PackedHead from = PackedHeadAt({access, access, residents}, sealed, &runs);
        const std::vector<std::byte*> blocks = access.At(all->head(l, g).blocks());
        const int n_all = all->head(l, g).n_entries();
        const std::vector<int> dropped = DroppedFrom(*all, l, g, Positions(*cache, l, g));
        EXPECT_GT(CopyKept({shape, from, blocks, n_all}, dropped, to[g]), 0);
        plain[g].assign(to[g].begin(), to[g].end());
        for (int b = 0; b < n_blocks; ++b) packed[g].push_back(want[object++].data());
        heads.push_back({.rank_k = shape.rank_k,
                         .rank_v = shape.rank_v,
                         .blocks = plain[g].data(),
                         .packed = packed[g].data(),
                         .record = want[object++].data()});
        if (g == 0) layer_record = want[object++].data();
      }
      const SealJob job = {.heads = heads,
                           .layer_record = layer_record,
                           .n_blocks = n_blocks,
                           .seed = MixBits(0) + l};
      ASSERT_TRUE(sealer.Run({&job, 1}).ok());
      EXPECT_TRUE(BytesOfRun(*cache, layout, l) == want) << "layer " << l;
    }
    // Of what is read and written again something is lost, but little.
    const Reencoding& changed = cache->reencoding();
    EXPECT_GT(changed.n_rows, 0);
    EXPECT_GT(changed.k_error, 0);
    EXPECT_LT(changed.k_error, 0.1 * changed.k_norm);
    EXPECT_LT(changed.v_error, 0.1 * changed.v_norm);
  }
}

// Codes of fixed numbers stand for what they stood for.
TEST_F(RetainedModelTest, SymmetricCodesLoseLittleWhenTheyAreReadAndWrittenAgain) {
  std::unique_ptr<Model> model =
      Load(AvailableIsas().back(), DType::kF32, "h2o(keep=0.2,sink=0)+int8");
  const std::unique_ptr<SequenceCache> cache = NewCache(*model, kManyTokens);
  Matrix logits;
  Read(model.get(), cache.get(), kManyTokens, 512, &logits);
  EXPECT_GT(cache->reencoding().n_times, 2);
  EXPECT_LT(cache->reencoding().k_error, 1e-9 * cache->reencoding().k_norm);
}

}  // namespace
}  // namespace kvlathe
