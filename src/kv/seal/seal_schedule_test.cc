#include "kv/seal/seal_schedule.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/byte_kinds.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"

namespace kvlathe {
namespace {

CacheLayout Layout(int n_sink, int prompt_run, int buffer, double repaired_share = 1) {
  CacheLayout layout{2, 2, 32, n_sink, {{32, 16}, {16, 16}, {32, 32}, {16, 48}}};
  layout.seal = SealPlan{.format = {.codec = UniformCodec{}},
                         .prompt_run = prompt_run,
                         .buffer = buffer,
                         .repaired_share = repaired_share};
  layout.seal->format.codec =
      UniformCodec{.k = {.bits = 2, .sharing = ScaleSharing::kChannel, .group = 32},
                   .v = {.bits = 4, .sharing = ScaleSharing::kTokenLayer}};
  layout.seal->format.prompt_rank = 4;
  layout.seal->format.decode_rank = 2;
  layout.seal->format.sparse_share = 0.1;
  return layout;
}

int64_t NewestLiterally(const CacheLayout& layout, int64_t n_entries) {
  int64_t n_newest = layout.seal->newest;
  int64_t grown = 0;
  for (int64_t n = 1; n <= n_entries; ++n) {
    if (n % (n <= 2048 ? 32 : 16) == 0) ++grown;
    if (grown - 4 > n_newest && grown - 4 <= layout.seal->most_newest) n_newest = grown - 4;
  }
  return n_newest;
}

// Blocks sealed at a position count, by going through the definition one position at a time.
int64_t SealedLiterally(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  const int64_t run = layout.seal->prompt_run, buffer = layout.seal->buffer;
  int64_t n_sealed = 0;
  for (int64_t n = 1; n <= n_tokens; ++n) {
    const int64_t n_entries = n - layout.n_sink - NewestLiterally(layout, n - layout.n_sink);
    const int64_t n_open = n_entries - n_sealed * kBlockSize;
    if (n_entries <= 0) continue;
    const bool ends_run = run > 0 && n < n_prompt && n_entries % run == 0;
    const bool fills_buffer = n > n_prompt && n_open == buffer;
    if (ends_run || n == n_prompt || fills_buffer) n_sealed = n_entries / kBlockSize;
  }
  return n_sealed;
}

TEST(SealSchedule, FollowsTheDefinition) {
  for (const int n_sink : {0, 4}) {
    for (const int run : {0, 64, 192, 512}) {
      for (const auto& [buffer, newest] :
           {std::pair(64, 0), {128, 0}, {64, 20}, {64, 64}, {128, 150}}) {
        CacheLayout layout = Layout(n_sink, run, buffer);
        layout.seal->newest = newest;
        for (const int64_t n_prompt : {1, 3, 64, 68, 200, 516, 700}) {
          for (int64_t n = 0; n <= 1000; n += 7) {
            SCOPED_TRACE(testing::Message() << n_sink << ' ' << run << ' ' << buffer << ' '
                                            << newest << ' ' << n_prompt << ' ' << n);
            const int64_t n_sealed = SealedBlocks(layout, n, n_prompt);
            ASSERT_EQ(n_sealed, SealedLiterally(layout, n, n_prompt));
            const int64_t next = NextSealPoint(layout, n, n_prompt);
            ASSERT_GT(next, n);
            ASSERT_EQ(SealedBlocks(layout, next - 1, n_prompt), n_sealed);
            int64_t block = 0;
            for (const RunExtent& r : RunsOf(layout, n, n_prompt)) {
              ASSERT_EQ(r.first_block, block);
              ASSERT_GT(r.n_blocks, 0);
              block += r.n_blocks;
              ASSERT_EQ(r.is_prompt, block * kBlockSize <= n_prompt - n_sink - newest);
            }
            ASSERT_EQ(block, n_sealed);
          }
        }
      }
    }
  }
}

TEST(SealSchedule, NewestEntriesGrowWithManyEntries) {
  for (const int most_newest : {0, 40, 100, 4096}) {
    for (const int run : {0, 64, 512}) {
      CacheLayout layout = Layout(4, run, 64);
      layout.seal->newest = 32;
      layout.seal->most_newest = most_newest;
      for (const int64_t n_prompt : {1, 68, 1500, 2700}) {
        for (int64_t n = 900; n <= 3500; n += 83) {
          SCOPED_TRACE(testing::Message()
                       << most_newest << ' ' << run << ' ' << n_prompt << ' ' << n);
          const int64_t n_sealed = SealedBlocks(layout, n, n_prompt);
          ASSERT_EQ(n_sealed, SealedLiterally(layout, n, n_prompt));
          const int64_t next = NextSealPoint(layout, n, n_prompt);
          ASSERT_GT(next, n);
          ASSERT_EQ(SealedBlocks(layout, next - 1, n_prompt), n_sealed);
        }
      }
    }
  }
}

// Entries of a run of a prompt that lie in its newest share.
double RecentEntries(const RunExtent& run, int64_t n_prompt_entries, double share) {
  const double first = static_cast<double>(n_prompt_entries) * (1 - share);
  const auto begin = static_cast<double>(run.first_block * kBlockSize);
  const auto end = static_cast<double>((run.first_block + run.n_blocks) * kBlockSize);
  return std::max(0.0, end - std::max(begin, first));
}

TEST(SealSchedule, OfThePromptTheRunsMostlyInItsNewestShareAreRepaired) {
  for (const double share : {0.0, 0.1, 0.25, 0.5, 0.75, 0.99, 1.0}) {
    for (const int run : {0, 64, 192, 512}) {
      const CacheLayout layout = Layout(4, run, 64, share);
      for (const int64_t n_prompt : {3, 68, 200, 516, 700}) {
        for (const int64_t n : {int64_t{70}, int64_t{400}, n_prompt, int64_t{1000}}) {
          int64_t n_sealed = 0;
          for (const RunExtent& r : RunsOf(layout, n, n_prompt)) {
            SCOPED_TRACE(testing::Message() << share << ' ' << run << ' ' << n_prompt << ' ' << n
                                            << " block " << r.first_block);
            const double n_recent = RecentEntries(r, n_prompt - layout.n_sink, share);
            const bool is_recent = 2 * n_recent > static_cast<double>(r.n_blocks * kBlockSize);
            EXPECT_EQ(r.is_repaired, !r.is_prompt || is_recent);
            // The same where the run ends as in the list of all.
            const int64_t end = layout.n_sink + (r.first_block + r.n_blocks) * kBlockSize;
            const bool ends_prompt = r.is_prompt && n >= n_prompt && end + kBlockSize > n_prompt;
            const RunExtent alone =
                RunEndingAt(layout, ends_prompt ? n_prompt : end, n_prompt, n_sealed);
            EXPECT_EQ(alone.n_blocks, r.n_blocks);
            EXPECT_EQ(alone.is_prompt, r.is_prompt);
            EXPECT_EQ(alone.is_repaired, r.is_repaired);
            n_sealed = r.first_block + r.n_blocks;
          }
        }
      }
    }
  }
  // A prompt that nothing is known of has no newest part.
  const CacheLayout layout = Layout(0, 64, 64, 0.5);
  for (const RunExtent& r : RunsOf(layout, 500, kEndlessPrompt)) EXPECT_FALSE(r.is_repaired);
}

TEST(ByteKinds, AddUpToWhatTheAllocatorHandsOut) {
  for (const std::vector<int>& windows : {std::vector<int>(), {300, 300}, {300, 0}, {100, 400}}) {
    for (const double share : {1.0, 0.4, 0.0}) {
      CacheLayout layout = Layout(4, 192, 64, share);
      layout.windows = windows;
      for (const int64_t n : {1, 4, 68, 300, 1000}) {
        int64_t sum = 0;
        for (const ByteKinds& kinds : ByteKindsByLayer(layout, {n, 1, 500})) sum += kinds.total();
        EXPECT_EQ(sum, SequenceBytes(layout, n, 1, 500))
            << testing::PrintToString(windows) << ' ' << share << ' ' << n;
      }
    }
  }
  // One head of 32 at 2 bits (K) and 4 bits (V), two runs of 192 of which all is sealed: by hand.
  CacheLayout layout = Layout(0, 192, 64);
  layout.n_layers = layout.n_kv_heads = 1;
  layout.shapes = {{32, 32}};
  const ByteKinds kinds = ByteKindsByLayer(layout, {384, 1, 384}).front();
  EXPECT_EQ(kinds.codes, 384 * 32 * (2 + 4) / 8);
  EXPECT_EQ(kinds.scales, 384 * 4 + 384 / 32 * 32 * 4);  // V per token, K per 32 tokens
  EXPECT_EQ(kinds.lowrank, 2 * 2 * 4 * (192 + 32) * 2);  // two runs, K and V, rank 4
  // 9 a side of 192, 1 of 32, in 3 bytes; and 3 blocks whose lists end somewhere and whose 64
  // tokens of K and 32 channels of V are counted.
  EXPECT_EQ(kinds.exact, 2 * (32 * 18 * 3 + 192 * 2 * 3 + 3 * (4 + 4 + 64 + 32)));
  EXPECT_EQ(kinds.plain, 0);
  // Of the newer half, one run, both factors; of the older one none.
  layout.seal->repaired_share = 0.5;
  EXPECT_EQ(ByteKindsByLayer(layout, {384, 1, 384}).front().lowrank, 2 * 4 * (192 + 32) * 2);
  layout.seal->repaired_share = 0;
  EXPECT_EQ(ByteKindsByLayer(layout, {384, 1, 384}).front().lowrank, 0);
  // What is sealed behind the prompt keeps its own.
  EXPECT_EQ(ByteKindsByLayer(layout, {448, 1, 384}).front().lowrank, 2 * 2 * (64 + 32) * 2);
}

TEST(ByteKinds, OfSplitBitsAreCodesAlone) {
  CacheLayout layout = {1, 2, 64, 0, {}};
  layout.seal.emplace().format.codec = SplitBitsCodec{};
  // Channels with 8, 5, 4, 3, 2 and 1 bits.
  layout.AddHead({48, 32, {.middle = {{{16, 0, 0, 16, 0, 16}}, {{0, 16, 16}}}}}, DType::kBf16);
  layout.AddHead({16, 16, {.middle = {{{0, 0, 0, 0, 16}}, {{0, 0, 0, 0, 0, 16}}}}}, DType::kBf16);
  const ByteKinds kinds = ByteKindsByLayer(layout, {640, 1, 640}).front();
  EXPECT_EQ(kinds.codes, 640 * 16 * (8 + 3 + 1 + 5 + 4 + 2 + 1) / 8);
  EXPECT_EQ(kinds.scales + kinds.lowrank + kinds.exact + kinds.plain, 0);
  EXPECT_EQ(kinds.total(), SequenceBytes(layout, 640, 1, 640));
  // A byte for K and one for V of each token of either head.
  layout.seal->format.codec = SplitBitsCodec{StoredUnit::kToken};
  const ByteKinds of_tokens = ByteKindsByLayer(layout, {640, 1, 640}).front();
  EXPECT_EQ(of_tokens.codes, kinds.codes);
  EXPECT_EQ(of_tokens.scales, 640 * 2 * 2);
  EXPECT_EQ(of_tokens.total(), SequenceBytes(layout, 640, 1, 640));
}

TEST(SealSchedule, WithoutAPlanNothingIsSealed) {
  const CacheLayout layout{1, 1, 32, 0, {{32, 32}}};
  EXPECT_EQ(SealedBlocks(layout, 100000, 5), 0);
  EXPECT_EQ(NextSealPoint(layout, 5, 5), std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(RunsOf(layout, 100000, 5).empty());
}

// Drops what is due in every layer, and takes and places the objects of a run, without filling
// them.
void Seal(const CacheLayout& layout, SequenceCache* cache) {
  for (int l = 0; cache->must_prune() || cache->must_seal(); ++l) {
    ASSERT_LT(l, layout.n_layers);
    if (cache->must_reopen(l)) {
      const auto kept = cache->TakeKeptBlocks(l);
      ASSERT_TRUE(kept.ok()) << kept.status();
      cache->PlaceKeptBlocks(l, *kept);
    }
    if (cache->must_prune()) cache->DropPruned(l);
    if (!cache->must_seal()) continue;
    const auto objects = cache->TakeRunObjects(l);
    ASSERT_TRUE(objects.ok()) << objects.status();
    cache->PlaceRun(l, *objects);
  }
}

struct Growth {
  int n_tokens, n_prompt, step;
};

// Grows to the end; false when the pool had no room.
bool Grow(const CacheLayout& layout, const Growth& growth, SequenceCache* cache) {
  cache->set_n_prompt(growth.n_prompt);
  while (cache->n_tokens() < growth.n_tokens) {
    const int64_t n =
        std::min<int64_t>({growth.step, growth.n_tokens - cache->n_tokens(), cache->max_step()});
    if (!cache->Extend(static_cast<int>(n)).ok()) return false;
    Seal(layout, cache);
    const int64_t formula = SequenceBytes(layout, cache->n_tokens(), n, growth.n_prompt);
    EXPECT_EQ(cache->bytes().total(), formula) << cache->n_tokens();
  }
  return true;
}

// Bytes held are those of the formula, and a budget of the peak is enough at every length on the
// way.
void ExpectBytesOfTheFormula(const CacheLayout& layout, const Growth& growth) {
  HostPool unlimited(int64_t{1} << 40);
  {
    SequenceCache cache(&layout, &unlimited);
    ASSERT_TRUE(Grow(layout, growth, &cache));
    EXPECT_EQ(cache.bytes().total(), unlimited.usage().used_bytes);
  }
  EXPECT_EQ(unlimited.usage().used_bytes, 0);
  EXPECT_TRUE(unlimited.HasRoomFor(int64_t{1} << 40));  // nothing stays set aside
  HostPool tight(PeakSequenceBytes(layout, growth.n_tokens, growth.step, growth.n_prompt));
  SequenceCache cache(&layout, &tight);
  EXPECT_TRUE(Grow(layout, growth, &cache));
}

TEST(SealSchedule, SealedBytesEqualTheFormulaAndFitThePeak) {
  for (const std::vector<int>& windows :
       {std::vector<int>(), {20, 20}, {100, 100}, {300, 300}, {0, 100}, {20, 300}}) {
    for (const int run : {0, 64, 192}) {
      for (const auto& [repaired_share, newest] :
           {std::pair(1.0, 0), {0.5, 0}, {1.0, 20}, {0.5, 64}}) {
        for (const Growth growth : {Growth{700, 200, 512}, Growth{700, 650, 50}, Growth{300, 1, 1},
                                    Growth{200, 108, 1}}) {
          SCOPED_TRACE(testing::Message()
                       << testing::PrintToString(windows) << ' ' << run << ' ' << repaired_share
                       << ' ' << newest << ' ' << growth.n_prompt);
          CacheLayout layout = Layout(4, run, 64, repaired_share);
          layout.windows = windows;
          layout.seal->newest = newest;
          ExpectBytesOfTheFormula(layout, growth);
        }
      }
    }
  }
}

TEST(SealSchedule, BytesOfBasesThatRunsBringEqualTheFormulaAndFitThePeak) {
  for (const bool gathers_queries : {false, true}) {
    CacheLayout layout{2, 2, 32, 4, {}};
    layout.seal = SealPlan{.format = {.codec = RotatedCodec{.gathers_queries = gathers_queries}},
                           .prompt_run = 0};
    for (const HeadRanks& ranks : {HeadRanks{16, 32}, {32, 32}, {16, 16}, {32, 16}}) {
      layout.AddHead(ranks, DType::kF32);
    }
    const int64_t grams = gathers_queries ? 4 * 32 * 32 * 4 : 0;
    EXPECT_EQ(SequenceParts(layout, {60, 1, 100}).run_records, grams);
    EXPECT_EQ(SequenceParts(layout, {99, 1, 100}).run_records, grams);
    EXPECT_EQ(SequenceParts(layout, {100, 1, 100}).run_records,
              4 * 32 * (16 + 32 + 32 + 32 + 16 + 16 + 32 + 16));
    for (const Growth growth : {Growth{700, 200, 512}, Growth{700, 650, 50}, Growth{300, 1, 1},
                                Growth{200, 108, 1}, Growth{150, 400, 64}}) {
      SCOPED_TRACE(testing::Message() << gathers_queries << ' ' << growth.n_prompt);
      ExpectBytesOfTheFormula(layout, growth);
      const SequenceLength length = {growth.n_tokens, 1, growth.n_prompt};
      int64_t sum = 0;
      for (const ByteKinds& kinds : ByteKindsByLayer(layout, length)) sum += kinds.total();
      EXPECT_EQ(sum, SequenceParts(layout, length).total());
    }
  }
}

// Long after the prompt as well: what is dropped there comes out of sealed runs.
TEST(SealSchedule, BytesUnderRetentionEqualTheFormulaAndFitThePeak) {
  RetentionPlan share = {.votes = RetentionPlan::Votes::kAll, .keep = 0.3, .run = 128};
  share.slack = 0.25;
  share.interval = 64;
  RetentionPlan fixed = share, small = share, of_prompt = share, once = share;
  fixed.keep = small.keep = 0;
  fixed.n_kept = 300;
  small.n_kept = 40;
  of_prompt.of_prompt = true;
  once.prunes_decode = false;
  for (const RetentionPlan& plan : {share, fixed, small, of_prompt, once}) {
    for (const auto& [buffer, newest] : {std::pair(64, 0), {192, 0}, {64, 20}, {192, 70}}) {
      CacheLayout layout = Layout(4, 0, buffer);
      layout.retention = plan;
      layout.seal->newest = newest;
      if (buffer == 192) layout.seal->format.decode_rank = 0;  // what is sealed again grows
      for (const Growth growth :
           {Growth{2000, 700, 512}, Growth{1000, 3, 1}, Growth{900, 300, 50}}) {
        SCOPED_TRACE(testing::Message() << plan.keep << ' ' << plan.n_kept << ' ' << buffer << ' '
                                        << newest << ' ' << growth.n_prompt);
        HostPool unlimited(int64_t{1} << 40);
        {
          SequenceCache cache(&layout, &unlimited);
          ASSERT_TRUE(Grow(layout, growth, &cache));
          EXPECT_EQ(cache.bytes().total(), unlimited.usage().used_bytes);
          int64_t sum = 0;
          for (const ByteKinds& kinds :
               ByteKindsByLayer(layout, {growth.n_tokens, 1, growth.n_prompt}))
            sum += kinds.total();
          EXPECT_EQ(sum, unlimited.usage().used_bytes);
          const auto budget = static_cast<double>(
              KeptAt(plan, {layout.n_sink, growth.n_prompt}, growth.n_tokens).n);
          if (plan.prunes_decode) {
            EXPECT_LT(cache.head(1, 1).n_entries(), budget + std::max(64.0, 0.25 * budget));
          }
        }
        EXPECT_EQ(unlimited.usage().used_bytes, 0);
        EXPECT_TRUE(unlimited.HasRoomFor(int64_t{1} << 40));
        const int64_t peak =
            PeakSequenceBytes(layout, growth.n_tokens, growth.step, growth.n_prompt);
        EXPECT_LE(unlimited.usage().peak_bytes, peak);
        HostPool tight(peak);
        SequenceCache cache(&layout, &tight);
        EXPECT_TRUE(Grow(layout, growth, &cache));
      }
    }
  }
}

// Classes of entries: a run each of the prompt, blocks of unlike sizes, and behind the prompt
// positions where keys are latents; of prompts beyond 2^16 positions these take 4 bytes.
TEST(SealSchedule, BytesOfClassesEqualTheFormulaAndFitThePeak) {
  const auto split = [](int n8, int n2, int n1) { return BitSplit{{n8, 0, 0, 0, n2, n1}}; };
  for (const Keys& keys : {Keys(MappedKeys{}), Keys(LatentKeys{})}) {
    CacheLayout layout = {2, 2, 64, 4, {}};
    layout.seal =
        SealPlan{.format = {.codec = SplitBitsCodec{.codes_open_rows = true, .has_classes = true}},
                 .prompt_run = 0,
                 .newest = 32};
    const HeadBits bits = {.middle = {split(0, 32, 0), split(0, 16, 16)},
                           .most = {split(16, 32, 0), split(16, 16, 0)},
                           .least = {split(0, 0, 16), split(0, 0, 16)}};
    for (int h = 0; h < 4; ++h) layout.AddHead({48, 32, bits}, DType::kBf16);
    layout.retention = RetentionPlanOf(*Spec::Parse("lathe(ratio=8,classes=3)"));
    layout.keys = keys;
    for (const Growth growth : {Growth{1500, 900, 512}, Growth{400, 164, 33}, Growth{300, 60, 1},
                                Growth{300, 100, 7}, Growth{66000, 65900, 512}}) {
      SCOPED_TRACE(testing::Message() << keys.index() << ' ' << growth.n_prompt);
      ExpectBytesOfTheFormula(layout, growth);
    }
    const int64_t n_sorted = (1000 - 4 - 32) / 64, quarter = 4;
    const KvBytes parts = SequenceParts(layout, {1000, 1, 1000});
    EXPECT_EQ(parts.entries, TurnWhenRead(keys) ? 4 * n_sorted * 64 * 2 : 0);
    // Bits of a token, K and V: 352, 112 and 32; one plain block more, coded, with scales.
    EXPECT_EQ(parts.blocks,
              4 * 8 * (quarter * 352 + (n_sorted - 2 * quarter) * 112 + quarter * 32) +
                  4 * (64 * 80 + 128));
  }
}

// What heads of a model that decides for itself hold, followed one position at a time.
class LiteralHeads {
 public:
  LiteralHeads(const CacheLayout& layout, int n_prompt, Random* random)
      : layout_(layout), n_prompt_(n_prompt), random_(random), lengths_(layout.shapes.size()) {
    // Some heads merge nearly everything, some nothing.
    for (size_t i = 0; i < lengths_.size(); ++i) share_.push_back(static_cast<double>(i) / 3);
  }

  void Add() {
    if (++n_tokens_ <= layout_.n_sink) return;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      MergedLength& length = lengths_[i];
      if (length.n_entries == 0 || random_->Uniform() >= share_[i]) ++length.n_entries;
      const int behind = n_tokens_ - n_prompt_, buffer = layout_.seal->buffer;
      if (behind < 0 || behind % buffer != 0) continue;
      const int n_old = std::max(0, length.n_entries - 1 - layout_.seal->newest);
      const int n_open = n_old - length.n_sealed_blocks * kBlockSize;
      if (behind == 0) length.n_prompt_blocks = length.n_sealed_blocks = n_open / kBlockSize;
      if (behind > 0 && n_open >= buffer) length.n_sealed_blocks += buffer / kBlockSize;
    }
  }

  const std::vector<MergedLength>& lengths() const { return lengths_; }
  int n_tokens() const { return n_tokens_; }

 private:
  const CacheLayout& layout_;
  int n_prompt_, n_tokens_ = 0;
  Random* random_;
  std::vector<double> share_;  // of positions that join
  std::vector<MergedLength> lengths_;
};

// As Grow, with heads that merge; without their rows.
bool GrowMerging(const CacheLayout& layout, const Growth& growth, uint64_t seed,
                 SequenceCache* cache) {
  Random random(seed);
  LiteralHeads heads(layout, growth.n_prompt, &random);
  cache->set_n_prompt(growth.n_prompt);
  while (cache->n_tokens() < growth.n_tokens) {
    const int64_t n =
        std::min<int64_t>({growth.step, growth.n_tokens - cache->n_tokens(), cache->max_step()});
    if (!cache->Extend(static_cast<int>(n)).ok()) return false;
    while (heads.n_tokens() < cache->n_tokens()) heads.Add();
    for (int l = 0; l < layout.n_layers; ++l) {
      for (int g = 0; g < layout.n_kv_heads; ++g) {
        cache->SetMerged(l, g, heads.lengths()[l * layout.n_kv_heads + g].n_entries);
      }
      if (!cache->must_seal()) continue;
      const auto objects = cache->TakeRunObjects(l);
      EXPECT_TRUE(objects.ok()) << objects.status();
      cache->PlaceRun(l, *objects);
    }
    EXPECT_FALSE(cache->must_seal());
    for (int i = 0; i < std::ssize(heads.lengths()); ++i) {
      EXPECT_EQ(cache->head(i / 2, i % 2).merged_length(), heads.lengths()[i]) << cache->n_tokens();
    }
    EXPECT_EQ(cache->bytes().total(), MergedParts(layout, heads.lengths()).total());
  }
  return true;
}

TEST(SealSchedule, HeadsThatMergeSealByThemselvesAndFitThePeak) {
  for (const int n_sink : {0, 4}) {
    for (const auto& [buffer, newest] : {std::pair(64, 0), {128, 0}, {64, 20}, {128, 64}}) {
      CacheLayout layout = Layout(n_sink, 0, buffer);
      layout.retention.emplace().merge = MergePlan{.window = 3};
      layout.seal->newest = newest;
      // Of some heads what is sealed takes more than the rows did.
      if (buffer == 128) layout.seal->format.prompt_rank = layout.seal->format.decode_rank = 48;
      for (const Growth growth : {Growth{1400, 300, 512}, Growth{700, 650, 50}, Growth{500, 1, 1},
                                  Growth{400, 65, 200}}) {
        SCOPED_TRACE(testing::Message()
                     << n_sink << ' ' << buffer << ' ' << newest << ' ' << growth.n_prompt);
        HostPool unlimited(int64_t{1} << 40);
        {
          SequenceCache cache(&layout, &unlimited);
          ASSERT_TRUE(GrowMerging(layout, growth, 5, &cache));
          EXPECT_EQ(cache.bytes().total(), unlimited.usage().used_bytes);
        }
        EXPECT_EQ(unlimited.usage().used_bytes, 0);
        EXPECT_TRUE(unlimited.HasRoomFor(int64_t{1} << 40));
        const int64_t peak =
            PeakSequenceBytes(layout, growth.n_tokens, growth.step, growth.n_prompt);
        for (const uint64_t seed : {5, 6, 7}) {
          HostPool tight(peak);
          SequenceCache cache(&layout, &tight);
          EXPECT_TRUE(GrowMerging(layout, growth, seed, &cache)) << seed;
        }
      }
    }
  }
}

// What is said of positions is what a head holds that never merges.
TEST(SealSchedule, HeadsThatNeverMergeAreThoseOfTheFormula) {
  CacheLayout layout = Layout(4, 0, 128);
  layout.retention.emplace().merge = MergePlan{};
  for (const int n_prompt : {1, 69, 300}) {
    for (const int n_tokens : {1, 69, 299, 300, 400, 500, 900}) {
      HostPool pool(int64_t{1} << 40);
      SequenceCache cache(&layout, &pool);
      ASSERT_TRUE(Grow(layout, {n_tokens, n_prompt, 70}, &cache));
      int64_t sum = 0;
      for (const ByteKinds& kinds : ByteKindsByLayer(layout, {n_tokens, 1, n_prompt})) {
        sum += kinds.total();
      }
      EXPECT_EQ(sum, cache.bytes().total());
    }
  }
}

TEST(SealSchedule, WithoutRoomToSealTheStepIsRefusedAndNothingChanges) {
  const CacheLayout layout = Layout(0, 64, 64);
  HostPool pool(SequenceBytes(layout, 63, 1, 1000) + kObjectAlignment);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(1000);
  ASSERT_TRUE(cache.Extend(63).ok());
  const int64_t used_bytes = pool.usage().used_bytes;
  EXPECT_EQ(cache.Extend(1).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.n_tokens(), 63);
  EXPECT_EQ(pool.usage().used_bytes, used_bytes);
}

// A spec may store more than 16 bits; the budget must hold for it too.
TEST(SealSchedule, FormatsLargerThanPlainRowsKeepTheirRoom) {
  CacheLayout layout = Layout(0, 64, 64);
  layout.seal->format.prompt_rank = layout.seal->format.decode_rank = 64;
  layout.seal->format.sparse_share = 0.5;
  const int64_t peak = PeakSequenceBytes(layout, 300, 64, 128);
  HostPool pool(peak);
  SequenceCache cache(&layout, &pool);
  EXPECT_TRUE(Grow(layout, {300, 128, 64}, &cache));
  EXPECT_GT(cache.bytes().total(), ReferenceBytes(layout, 300));
}

}  // namespace
}  // namespace kvlathe
