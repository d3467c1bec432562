#include "kv/blocks/sequence_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>

#include "base/crc32c.h"
#include "base/random.h"
#include "device/cpu_device.h"
#include "format/entry_table.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"
#include "kv/spec/spec.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kLengthOffset = 12;
const SequenceIdentity kIdentity = {"fdc(rate=0.5)", "model-1"};

// Heads of different ranks.
CacheLayout SmallLayout(int n_sink, DType row_type = DType::kBf16) {
  return {2, 1, 32, n_sink, {{16, 32, row_type}, {32, 16, row_type}}};
}

// The rows of a position, written and read one element at a time: what a kernel sees.
class Rows {
 public:
  Rows(const CacheLayout* layout, const SequenceCache* cache)
      : layout_(layout), cache_(cache), access_(cache->device()) {}

  // Calls fn(bytes, n_bytes) for every element of the positions [first, last).
  template <typename F>
  void ForEach(int first, int last, const F& fn) const {
    for (int head = 0; head < static_cast<int>(layout_->shapes.size()); ++head) {
      for (int position = first; position < last; ++position) Position(head, position, fn);
    }
  }

 private:
  template <typename F>
  void Position(int layer_idx, int position, const F& fn) const {
    const BlockShape& shape = layout_->shape(layer_idx, 0);
    const int64_t n = SizeOf(shape.row_type);
    if (position < layout_->n_sink) {
      for (int r = 0; r < layout_->head_dim; ++r) {
        fn(access_.At(cache_->head(layer_idx, 0).sink_k()) +
               (int64_t{position} * layout_->head_dim + r) * n,
           n);
      }
      for (int r = 0; r < shape.rank_v; ++r) {
        fn(access_.At(cache_->head(layer_idx, 0).sink_v()) +
               (int64_t{position} * shape.rank_v + r) * n,
           n);
      }
      return;
    }
    const int entry = position - layout_->n_sink;
    std::byte* block = access_.At(cache_->head(layer_idx, 0).blocks()[entry / kBlockSize]);
    const int token = entry % kBlockSize;
    for (int r = 0; r < shape.rank_k; ++r) fn(block + KeyOffset(token, r) * n, n);
    for (int r = 0; r < shape.rank_v; ++r) {
      fn(block + KeyBytes(shape) + ValueOffset(shape, token, r) * n, n);
    }
  }

  const CacheLayout* layout_;
  const SequenceCache* cache_;
  CpuAccess access_;
};

// Of the first head of a layer.
void SetJoined(SequenceCache* cache, int layer_idx, int n_joined) {
  cache->device().Upload({cache->head(layer_idx, 0).open_entry()},
                         std::as_bytes(std::span(&n_joined, 1)));
}

class SequenceFileTest : public testing::Test {
 protected:
  // n_tokens positions of random bits on top of a pool full of other bits.
  void Fill(const CacheLayout& layout, SequenceCache* cache, int n_tokens) {
    Random random(7);
    while (cache->n_tokens() < n_tokens) {
      const int first = cache->n_tokens();
      ASSERT_TRUE(cache->Extend(std::min(50, n_tokens - first)).ok());
      Rows(&layout, cache).ForEach(first, cache->n_tokens(), [&](std::byte* at, int64_t n) {
        const uint64_t bits = random.Next();
        std::memcpy(at, &bits, static_cast<size_t>(n));
      });
    }
  }
  std::string Bits(const CacheLayout& layout, const SequenceCache& cache, int first) {
    std::string bits;
    Rows(&layout, &cache).ForEach(first, cache.n_tokens(), [&](const std::byte* at, int64_t n) {
      bits.append(reinterpret_cast<const char*>(at), static_cast<size_t>(n));
    });
    return bits;
  }
  void Save(const CacheLayout& layout, int n_tokens, std::string_view state = "state") {
    BlockPool pool(kNoLimit);
    SequenceCache cache(&layout, &pool);
    Fill(layout, &cache, n_tokens);
    ASSERT_TRUE(SaveSequence(cache, layout, kIdentity, state, path_).ok());
  }
  StatusOr<std::string> Restore(const CacheLayout& layout, SequenceCache* cache,
                                const SequenceIdentity& identity = kIdentity) {
    return RestoreSequence(path_, {identity, &layout, /*max_tokens=*/4096}, cache);
  }
  // The status of restoring the file into a pool of budget_bytes, of which nothing must stay used.
  Status Refusal(const CacheLayout& layout, const SequenceIdentity& identity = kIdentity,
                 int64_t budget_bytes = kNoLimit) {
    BlockPool pool(budget_bytes);
    SequenceCache cache(&layout, &pool);
    const Status status = Restore(layout, &cache, identity).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(pool.usage().used_bytes, 0);
    EXPECT_EQ(cache.n_tokens(), 0);
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_THAT(MessageOf(status), testing::StartsWith(path_));
    return status;
  }
  std::string FileBytes() { return *ReadTextFile(path_); }
  void WriteBytes(std::string_view bytes) { ASSERT_TRUE(WriteFileAtomically(path_, bytes).ok()); }
  // Sets length and checksum right: what remains wrong is hostile, not damaged.
  void WriteSealed(std::string bytes) {
    const uint64_t length = bytes.size();
    std::memcpy(bytes.data() + kLengthOffset, &length, sizeof(length));
    const auto checked = std::as_bytes(std::span(bytes)).first(bytes.size() - 4);
    const uint32_t crc = ExtendCrc32c(0, checked);
    std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
    WriteBytes(bytes);
  }

  ScratchFolder folder_;
  std::string path_ = folder_ / "sequence";
};

TEST_F(SequenceFileTest, RestoresEveryBitAtLengthsAroundBlocksAndSinks) {
  for (const DType row_type : {DType::kBf16, DType::kF32}) {
    for (const int n_sink : {0, 5}) {
      const CacheLayout layout = SmallLayout(n_sink, row_type);
      for (const int n_tokens : {0, 1, 3, 5, 6, 63, 64, 65, 69, 70, 200}) {
        SCOPED_TRACE(fmt::format("{} sinks, {} tokens", n_sink, n_tokens));
        BlockPool pool(kNoLimit), other_pool(kNoLimit);
        SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
        Fill(layout, &saved, n_tokens);
        ASSERT_TRUE(SaveSequence(saved, layout, kIdentity, "the state", path_).ok());
        const auto state = Restore(layout, &restored);
        ASSERT_TRUE(state.ok()) << state.status();
        EXPECT_EQ(*state, "the state");
        EXPECT_EQ(restored.n_tokens(), n_tokens);
        EXPECT_EQ(restored.bytes().total(), saved.bytes().total());
        EXPECT_EQ(Bits(layout, restored, 0), Bits(layout, saved, 0));
      }
    }
  }
}

TEST_F(SequenceFileTest, KeepsWhatAWindowSees) {
  for (const int n_tokens : {40, 100, 164, 165, 166, 500, 1000}) {
    SCOPED_TRACE(n_tokens);
    CacheLayout layout = SmallLayout(3);
    layout.windows.assign(layout.n_layers, 100);
    BlockPool pool(kNoLimit), other_pool(kNoLimit);
    SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
    Fill(layout, &saved, n_tokens);
    ASSERT_TRUE(SaveSequence(saved, layout, kIdentity, "", path_).ok());
    ASSERT_TRUE(Restore(layout, &restored).ok());
    const int first_seen = std::max(0, n_tokens - 100);
    EXPECT_EQ(Bits(layout, restored, first_seen), Bits(layout, saved, first_seen));
    EXPECT_EQ(restored.bytes().total(), SequenceBytes(layout, n_tokens, 1));
    ASSERT_TRUE(saved.Extend(1).ok());
    ASSERT_TRUE(restored.Extend(1).ok());
    EXPECT_EQ(restored.bytes().total(), saved.bytes().total());
  }
}

TEST_F(SequenceFileTest, KeepsWhatEachLayerSeesInAWindowOfItsOwn) {
  CacheLayout layout = SmallLayout(3);
  layout.windows.assign(layout.n_layers, 0);
  layout.windows[0] = 100;
  BlockPool pool(kNoLimit), other_pool(kNoLimit);
  SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
  Fill(layout, &saved, 500);
  ASSERT_TRUE(SaveSequence(saved, layout, kIdentity, "", path_).ok());
  ASSERT_TRUE(Restore(layout, &restored).ok());
  EXPECT_EQ(restored.bytes().total(), SequenceBytes(layout, 500, 1));
  EXPECT_EQ(Bits(layout, restored, 400), Bits(layout, saved, 400));
  EXPECT_FALSE(restored.head(1, 0).blocks()[0].is_null());
  EXPECT_TRUE(restored.head(0, 0).blocks()[0].is_null());
  CacheLayout other = layout;
  other.windows[0] = 101;
  SequenceCache of_another(&other, &other_pool);
  EXPECT_FALSE(Restore(other, &of_another).ok());
}

TEST_F(SequenceFileTest, SaysNothingOfSequencesThatWereInThePoolBefore) {
  const CacheLayout layout = SmallLayout(5);
  BlockPool pool(kNoLimit);
  for (const int n_tokens : {2, 70}) {
    std::set<std::string> files;
    for (const int before : {0, 0x5A, 0xFF}) {
      SequenceCache other(&layout, &pool);
      ASSERT_TRUE(other.Extend(300).ok());
      for (int layer_idx = 0; layer_idx < 2; ++layer_idx) {
        const BlockShape& shape = layout.shape(layer_idx, 0);
        const auto fill = static_cast<std::byte>(before);
        pool.device().Fill(other.head(layer_idx, 0).sink_k(), fill, SinkBytes(layout, shape));
        for (const ObjectId& block : other.head(layer_idx, 0).blocks()) {
          pool.device().Fill({block}, fill, BlockObjectBytes(shape));
        }
      }
      other.Clear();
      SequenceCache cache(&layout, &pool);
      Fill(layout, &cache, n_tokens);
      ASSERT_TRUE(SaveSequence(cache, layout, kIdentity, "", path_).ok());
      files.insert(FileBytes());
    }
    EXPECT_EQ(files.size(), 1u);
  }
}

TEST_F(SequenceFileTest, EveryFlippedBitAndEveryTruncationIsRefused) {
  const CacheLayout layout = {1, 1, 16, 1, {{16, 16, DType::kBf16}}};
  Save(layout, 3);
  const std::string bytes = FileBytes();
  ASSERT_GT(bytes.size(), 4096u);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    const auto status = ParseSequenceFile(std::as_bytes(std::span(damaged)), path_).status();
    ASSERT_FALSE(status.ok()) << "byte " << i;
    damaged[i] = static_cast<char>(~bytes[i]);
    ASSERT_FALSE(ParseSequenceFile(std::as_bytes(std::span(damaged)), path_).ok()) << "byte " << i;
  }
  for (size_t n_bytes = 0; n_bytes < bytes.size(); ++n_bytes) {
    const auto begin = std::as_bytes(std::span(bytes)).first(n_bytes);
    ASSERT_EQ(ParseSequenceFile(begin, path_).status().code(), StatusCode::kDataLoss) << n_bytes;
  }
  // Through the file, and with the pool watched.
  for (const size_t i : {size_t{0}, size_t{8}, size_t{12}, size_t{40}, bytes.size() - 1}) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(~damaged[i]);
    WriteBytes(damaged);
    EXPECT_EQ(Refusal(layout).code() == StatusCode::kUnimplemented, i == 8);
  }
  WriteBytes(bytes + "x");
  EXPECT_EQ(Refusal(layout).code(), StatusCode::kDataLoss);
  WriteBytes("");
  EXPECT_EQ(Refusal(layout).code(), StatusCode::kDataLoss);
}

TEST_F(SequenceFileTest, HostileNumbersAreRefusedBeforeMemoryIsTaken) {
  const CacheLayout layout = {1, 1, 16, 1, {{16, 16, DType::kBf16}}};
  Save(layout, 3);
  const std::string bytes = FileBytes();
  const size_t numbers = 20 + 4 + kIdentity.spec.size() + 4 + kIdentity.model.size();
  // Lengths, counts, shapes, the length of the state: each made huge, negative and off by one.
  for (const size_t at : {size_t{20}, 24 + kIdentity.spec.size(), numbers, numbers + 4, numbers + 8,
                          numbers + 12, numbers + 16, numbers + 20, numbers + 24, numbers + 44,
                          numbers + 48, numbers + 52, numbers + 56, numbers + 60, numbers + 84}) {
    uint32_t original = 0;
    std::memcpy(&original, bytes.data() + at, 4);
    for (const uint32_t value : {0xFFFFFFFFu, 0x7FFFFFFFu, 0x80000000u, original + 1, 1u << 20}) {
      // One position more in the same block is another sequence, not a hostile one.
      if (at == numbers + 24 && value == original + 1) continue;
      std::string hostile = bytes;
      std::memcpy(hostile.data() + at, &value, 4);
      WriteSealed(hostile);
      EXPECT_EQ(Refusal(layout).code(), StatusCode::kDataLoss) << at;
    }
  }
}

TEST_F(SequenceFileTest, HostileLengthsOfMergedEntriesAreRefused) {
  const SequenceIdentity identity = {"pool(n=4,sink=1)", "model-1"};
  CacheLayout layout = {1, 1, 16, 1, {{16, 16, DType::kBf16}}};
  layout.retention = RetentionPlanOf(*Spec::Parse(identity.spec));
  BlockPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool), restored(&layout, &pool);
  ASSERT_TRUE(cache.Extend(200).ok());
  cache.SetMerged(0, 0, 50);
  const auto save = [&](int n_joined) {
    SetJoined(&cache, 0, n_joined);
    ASSERT_TRUE(SaveSequence(cache, layout, identity, "state", path_).ok());
  };
  save(3);
  ASSERT_TRUE(Restore(layout, &restored, identity).ok());
  EXPECT_EQ(restored.head(0, 0).n_entries(), 50);
  EXPECT_EQ(restored.bytes().total(), cache.bytes().total());
  const std::string bytes = FileBytes();
  const size_t length = 20 + 4 + identity.spec.size() + 4 + identity.model.size() + 124;
  for (const uint32_t n : {0u, 65u, 200u, 0x80000000u, 0xFFFFFFFFu}) {
    std::string hostile = bytes;
    std::memcpy(hostile.data() + length, &n, sizeof(n));
    WriteSealed(hostile);
    EXPECT_EQ(Refusal(layout, identity).code(), StatusCode::kDataLoss) << n;
  }
  for (const int n_joined : {0, -1, 201}) {
    save(n_joined);
    EXPECT_EQ(Refusal(layout, identity).code(), StatusCode::kDataLoss) << n_joined;
  }
}

// One position at a time, of which heads merge shares of their own; sealed without being filled.
void GrowMerging(const CacheLayout& layout, int n_tokens, Random* random, SequenceCache* cache) {
  while (cache->n_tokens() < n_tokens) {
    ASSERT_TRUE(cache->Extend(1).ok());
    for (int l = 0; l < layout.n_layers; ++l) {
      const int n = cache->head(l, 0).n_entries();
      const bool joins = n > 1 && random->Below(4) < static_cast<uint64_t>(l);
      if (n > 0) cache->SetMerged(l, 0, joins ? n - 1 : n);
      if (!cache->must_seal()) continue;
      const auto objects = cache->TakeRunObjects(l);
      ASSERT_TRUE(objects.ok());
      for (const ObjectId& block : objects->packed[0]) {
        const RunExtent run = cache->head(l, 0).run_to_seal();
        cache->device().Fill({block}, std::byte{0x3C},
                             PackedBlockObjectBytes(PackedShapeOf(layout, l, 0, run)));
      }
      cache->PlaceRun(l, *objects);
    }
  }
}

TEST_F(SequenceFileTest, HeadsThatSealedByThemselvesAreRestored) {
  Random random(11);
  for (const int buffer : {64, 128}) {
    const SequenceIdentity identity = {fmt::format("dmc(sink=1)+int8(buffer={})", buffer), "m"};
    CacheLayout layout = {4, 1, 16, 1, std::vector<BlockShape>(4, {16, 16, DType::kBf16})};
    layout.retention = RetentionPlanOf(*Spec::Parse(identity.spec));
    layout.seal = SealPlanOf(*Spec::Parse(identity.spec));
    for (int round = 0; round < 40; ++round) {
      const int n_prompt = 1 + static_cast<int>(random.Below(400));
      const int n_tokens = 1 + static_cast<int>(random.Below(900));
      SCOPED_TRACE(fmt::format("buffer {}, {} of {}", buffer, n_tokens, n_prompt));
      BlockPool pool(kNoLimit), other_pool(kNoLimit);
      SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
      saved.set_n_prompt(n_prompt);
      GrowMerging(layout, n_tokens, &random, &saved);
      for (int l = 0; l < layout.n_layers; ++l) {
        const int n_joined = saved.head(l, 0).n_entries() > 0 ? 1 : 0;
        SetJoined(&saved, l, n_joined);
      }
      ASSERT_TRUE(SaveSequence(saved, layout, identity, "", path_).ok());
      const auto state = Restore(layout, &restored, identity);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_EQ(restored.bytes().total(), saved.bytes().total());
      for (int l = 0; l < layout.n_layers; ++l) {
        ASSERT_EQ(restored.head(l, 0).merged_length(), saved.head(l, 0).merged_length());
        ASSERT_EQ(restored.head(l, 0).runs().size(), saved.head(l, 0).runs().size());
        for (size_t r = 0; r < saved.head(l, 0).runs().size(); ++r) {
          EXPECT_EQ(restored.head(l, 0).runs()[r].n_blocks, saved.head(l, 0).runs()[r].n_blocks);
          EXPECT_EQ(restored.head(l, 0).runs()[r].is_prompt, saved.head(l, 0).runs()[r].is_prompt);
        }
      }
    }
  }
}

TEST_F(SequenceFileTest, SealedBlocksThatCannotBeAreRefused) {
  const SequenceIdentity identity = {"dmc(sink=0)+int8", "model-1"};
  CacheLayout layout = {1, 1, 16, 0, {{16, 16, DType::kBf16}}};
  layout.retention = RetentionPlanOf(*Spec::Parse(identity.spec));
  layout.seal = SealPlanOf(*Spec::Parse(identity.spec));
  BlockPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(100);
  Random random(1);
  GrowMerging(layout, 300, &random, &cache);  // merges nothing
  ASSERT_EQ(cache.head(0, 0).merged_length(), (MergedLength{300, 1, 4}));
  SetJoined(&cache, 0, 1);
  ASSERT_TRUE(SaveSequence(cache, layout, identity, "state", path_).ok());
  const std::string bytes = FileBytes();
  const auto file = ParseSequenceFile(std::as_bytes(std::span(bytes)), path_);
  ASSERT_TRUE(file.ok());
  // Behind the three numbers: the state with its length, the rows and the checksum.
  const size_t numbers = bytes.size() - 4 - file->rows.size() - (8 + 5) - 12;
  const auto refuse = [&](uint32_t n_entries, uint32_t n_prompt_blocks, uint32_t n_sealed_blocks) {
    std::string hostile = bytes;
    const uint32_t values[] = {n_entries, n_prompt_blocks, n_sealed_blocks};
    std::memcpy(hostile.data() + numbers, values, sizeof(values));
    WriteSealed(hostile);
    EXPECT_EQ(Refusal(layout, identity).code(), StatusCode::kDataLoss)
        << n_entries << ' ' << n_prompt_blocks << ' ' << n_sealed_blocks;
  };
  // The rows are as many as before.
  for (const uint32_t n_prompt_blocks : {0u, 2u, 3u, 4u}) refuse(300, n_prompt_blocks, 4);
  refuse(258, 4, 4);
  // They are not.
  refuse(300, 1, 3);
  refuse(300, 1, 5);
  refuse(300, 5, 4);
  refuse(300, 0xFFFFFFFF, 0xFFFFFFFF);
  refuse(300, 1, 0x80000000);
  refuse(256, 1, 4);
}

TEST_F(SequenceFileTest, HostilePlacesOfExactEntriesAreRefused) {
  const SequenceIdentity identity = {
      "kivi(bits=2,group=64,run=64,buffer=64,sink=0)+sparse(share=0.1)", "model-1"};
  const Spec spec = *Spec::Parse(identity.spec);
  CacheLayout layout = {1, 1, 16, 0, {{16, 16, DType::kBf16}}};
  layout.seal = SealPlanOf(spec);
  const RunExtent run{0, 1, true};
  const PackedShape shape = PackedShapeOf(layout, 0, 0, run);
  ASSERT_GT(shape.key_outliers(), 0);
  ASSERT_EQ(shape.value_outliers(), 0);
  // Saved with sound records, made by hand.
  BlockPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(64);
  ASSERT_TRUE(cache.Extend(64).ok());
  const auto objects = cache.TakeRunObjects(0);
  ASSERT_TRUE(objects.ok());
  const CpuAccess access(cache.device());
  std::byte* const saved_block = access.At(objects->packed[0][0]);
  std::byte* const saved_record = access.At(objects->records[0]);
  std::memset(saved_block, 0, static_cast<size_t>(PackedBlockBytes(shape)));
  std::memset(saved_record, 0, static_cast<size_t>(RunRecordBytes(shape)));
  const uint32_t n_entries = 2 * shape.key_outliers() * shape.rank_k;
  std::memcpy(saved_record + KeySparseEndsOffset(shape), &n_entries, 4);
  // 16 of each of the first tokens.
  ASSERT_EQ(n_entries % 16, 0u);
  std::memset(saved_block + KeyCountOffset(shape), 16, n_entries / 16);
  cache.PlaceRun(0, *objects);
  ASSERT_TRUE(SaveSequence(cache, layout, identity, "", path_).ok());
  BlockPool other_pool(kNoLimit);
  SequenceCache restored(&layout, &other_pool);
  ASSERT_TRUE(Restore(layout, &restored, identity).ok());
  EXPECT_EQ(restored.head(0, 0).runs().size(), 1u);

  const std::string bytes = FileBytes();
  const size_t record = bytes.size() - 4 - static_cast<size_t>(RunRecordObjectBytes(shape));
  const size_t block = record - static_cast<size_t>(PackedBlockObjectBytes(shape));
  const auto refuse = [&](size_t offset, const std::string& value) {
    std::string hostile = bytes;
    hostile.replace(offset, value.size(), value);
    WriteSealed(hostile);
    const Status status = Refusal(layout, identity);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(MessageOf(status), HasSubstr("points outside"));
  };
  for (const uint32_t end : {n_entries + 1, n_entries - 1, 0xffffffffu}) {
    refuse(record + KeySparseEndsOffset(shape),
           std::string(reinterpret_cast<const char*>(&end), 4));
  }
  for (const uint32_t i : {0u, n_entries - 1}) {
    for (const char channel : {'\x10', '\xff'}) {  // that there is not
      refuse(record + KeyPlacesOffset(shape) + i, std::string(1, channel));
    }
  }
  // More entries than the list has, fewer, and more than a token has channels.
  const size_t counts = block + KeyCountOffset(shape);
  refuse(counts + 63, "\x01");
  refuse(counts, "\x0f");
  refuse(counts, std::string("\x11\x0f", 2));
}

// Of V: counts that do not go with the list of their own head and block.
TEST_F(SequenceFileTest, HostileCountsOfExactValuesAreRefused) {
  const SequenceIdentity identity = {"kcvt(bits=2,run=128,sink=0)+sparse(share=0.1)", "model-1"};
  const Spec spec = *Spec::Parse(identity.spec);
  CacheLayout layout = {1, 2, 16, 0, {{16, 16, DType::kBf16}, {16, 32, DType::kBf16}}};
  layout.seal = SealPlanOf(spec);
  const RunExtent run{0, 2, true};
  const PackedShape shapes[] = {PackedShapeOf(layout, 0, 0, run), PackedShapeOf(layout, 0, 1, run)};
  ASSERT_EQ(shapes[0].value_outliers(), 2);
  BlockPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(128);
  ASSERT_TRUE(cache.Extend(128).ok());
  const auto objects = cache.TakeRunObjects(0);
  ASSERT_TRUE(objects.ok());
  const CpuAccess access(cache.device());
  for (int h = 0; h < 2; ++h) {
    std::byte* const record = access.At(objects->records[h]);
    std::memset(record, 0, static_cast<size_t>(RunRecordBytes(shapes[h])));
    // Of K all in the first block; of V 64 and 192 a block.
    const auto n_keys = static_cast<uint32_t>(shapes[h].n_key_entries());
    ASSERT_EQ(n_keys % 16, 0u);
    for (int b = 0; b < 2; ++b) {
      std::memcpy(record + KeySparseEndsOffset(shapes[h]) + 4 * b, &n_keys, 4);
      std::byte* const block = access.At(objects->packed[h][b]);
      std::memset(block, 0, static_cast<size_t>(PackedBlockBytes(shapes[h])));
      if (b == 0) std::memset(block + KeyCountOffset(shapes[h]), 16, n_keys / 16);
      std::memset(block + ValueCountOffset(shapes[h]), 64, h == 0 ? 1 : 3);
    }
  }
  std::byte* const layer_record = access.At(objects->layer_records[0]);
  std::memset(layer_record, 0, static_cast<size_t>(LayerRecordBytes(shapes[0])));
  const uint32_t ends[] = {64, 256, 320, 512};
  ASSERT_EQ(shapes[0].n_value_entries(), 512);
  std::memcpy(layer_record + ValueSparseEndsOffset(shapes[0]), ends, sizeof(ends));
  cache.PlaceRun(0, *objects);
  const auto status = [&] {
    EXPECT_TRUE(SaveSequence(cache, layout, identity, "", path_).ok());
    BlockPool other_pool(kNoLimit);
    SequenceCache restored(&layout, &other_pool);
    return Restore(layout, &restored, identity).status();
  };
  EXPECT_TRUE(status().ok());
  for (int h = 0; h < 2; ++h) {
    for (int b = 0; b < 2; ++b) {
      std::byte* const counts = access.At(objects->packed[h][b]) + ValueCountOffset(shapes[h]);
      for (const int count : {63, 65, 0}) {
        counts[0] = static_cast<std::byte>(count);
        EXPECT_THAT(MessageOf(status()), HasSubstr("points outside")) << h << b << count;
      }
      counts[0] = std::byte{65};  // as many in all, but more than a channel has tokens
      counts[15] = std::byte{255};
      EXPECT_EQ(status().code(), StatusCode::kDataLoss);
      counts[0] = std::byte{63};
      counts[15] = std::byte{1};
      EXPECT_TRUE(status().ok());
      counts[0] = std::byte{64};
      counts[15] = std::byte{0};
    }
  }
  for (const int token : {64, 255}) {
    layer_record[ValuePlacesOffset(shapes[0]) + 511] = static_cast<std::byte>(token);
    EXPECT_EQ(status().code(), StatusCode::kDataLoss);
  }
}

TEST_F(SequenceFileTest, HostilePositionsOfEntriesAreRefused) {
  const SequenceIdentity identity = {"h2o(keep=0.5,sink=2)", "model-1"};
  CacheLayout layout = {1, 1, 16, 2, {{16, 16, DType::kBf16}}};
  layout.retention = RetentionPlanOf(*Spec::Parse(identity.spec));
  BlockPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(100);
  ASSERT_TRUE(cache.Extend(10).ok());
  cache.device().Fill({cache.head(0, 0).blocks()[0]}, std::byte{0}, BlockBytes(layout.shapes[0]));
  ASSERT_TRUE(SaveSequence(cache, layout, identity, "", path_).ok());
  const std::string bytes = FileBytes();
  const size_t positions = bytes.size() - 4 - EntryTable::BlockBytes(/*has_sums=*/true);
  const auto status_with = [&](int entry, int32_t position) {
    std::string changed = bytes;
    std::memcpy(changed.data() + positions + 4 * entry, &position, 4);
    WriteSealed(changed);
    BlockPool other_pool(kNoLimit);
    SequenceCache restored(&layout, &other_pool);
    return Restore(layout, &restored, identity).status();
  };
  EXPECT_TRUE(status_with(3, 5).ok());  // as it is
  for (const int32_t position : {4, 9, 1, 10, -1}) {
    EXPECT_EQ(status_with(3, position).code(), StatusCode::kDataLoss) << position;
  }
  EXPECT_TRUE(status_with(8, 4).ok());  // no entry is there
}

TEST_F(SequenceFileTest, ForeignFilesAreRefusedWithWhatIsDifferent) {
  const CacheLayout layout = SmallLayout(4);
  Save(layout, 100);
  const auto message = [&](const CacheLayout& other, const SequenceIdentity& identity) {
    const Status status = Refusal(other, identity);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    return MessageOf(status);
  };
  EXPECT_THAT(message(layout, {"none", "model-1"}),
              HasSubstr("saved with --kv 'fdc(rate=0.5)', not with 'none'"));
  EXPECT_THAT(message(layout, {kIdentity.spec, "model-2"}), HasSubstr("another model"));
  EXPECT_THAT(message(SmallLayout(3), kIdentity), HasSubstr("another shape"));
  EXPECT_THAT(message(SmallLayout(4, DType::kF32), kIdentity), HasSubstr("another shape"));
  CacheLayout windowed = layout;
  windowed.windows.assign(layout.n_layers, 4000);
  EXPECT_THAT(message(windowed, kIdentity), HasSubstr("another shape"));
  BlockPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  EXPECT_THAT(MessageOf(RestoreSequence(path_, {kIdentity, &layout, 99}, &cache).status()),
              HasSubstr("holds 100 positions, but the context is 99"));
  std::string later = FileBytes();
  later[8] = 99;
  WriteSealed(later);
  EXPECT_EQ(Refusal(layout).code(), StatusCode::kUnimplemented);
  WriteBytes("a text");
  EXPECT_THAT(MessageOf(Refusal(layout)), HasSubstr("not a saved sequence"));
  path_ = folder_ / "missing";
  EXPECT_EQ(Refusal(layout).code(), StatusCode::kNotFound);
}

TEST_F(SequenceFileTest, AFullPoolRefusesAndStaysEmpty) {
  const CacheLayout layout = SmallLayout(4);
  Save(layout, 300);
  const Status status = Refusal(layout, kIdentity, SequenceBytes(layout, 300) - 64);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  BlockPool pool(SequenceBytes(layout, 300));
  SequenceCache cache(&layout, &pool);
  EXPECT_TRUE(Restore(layout, &cache).ok());
}

TEST_F(SequenceFileTest, WhatCannotBeWrittenLeavesTheOldFile) {
  const CacheLayout layout = SmallLayout(4);
  Save(layout, 10, "old");
  const std::string before = FileBytes();
  BlockPool pool(kNoLimit);
  SequenceCache cache(&layout, &pool);
  EXPECT_FALSE(SaveSequence(cache, layout, kIdentity, "", folder_ / "none/sequence").ok());
  EXPECT_EQ(FileBytes(), before);
  EXPECT_EQ(folder_.n_files(), 1);
}

}  // namespace
}  // namespace kvlathe
