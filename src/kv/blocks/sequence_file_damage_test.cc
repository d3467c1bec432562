#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "format/entry_table.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_file_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

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
  HostPool pool(kUnlimitedBytes);
  SequenceCache cache(&layout, &pool), restored(&layout, &pool);
  ASSERT_TRUE(cache.Extend(200).ok());
  cache.SetMerged(0, 0, 50);
  const auto save = [&](int n_joined) {
    SetJoined(&cache, 0, n_joined);
    ASSERT_TRUE(SaveSequence(cache, identity, "state", path_).ok());
  };
  save(3);
  ASSERT_TRUE(Restore(layout, &restored, identity).ok());
  EXPECT_EQ(restored.head(0, 0).n_entries(), 50);
  EXPECT_EQ(restored.bytes().total(), cache.bytes().total());
  const std::string bytes = FileBytes();
  const size_t length = 20 + 4 + identity.spec.size() + 4 + identity.model.size() + 216;
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
TEST_F(SequenceFileTest, SealedBlocksThatCannotBeAreRefused) {
  const SequenceIdentity identity = {"dmc(sink=0)+int8", "model-1"};
  CacheLayout layout = {1, 1, 16, 0, {{16, 16, DType::kBf16}}};
  layout.retention = RetentionPlanOf(*Spec::Parse(identity.spec));
  layout.seal = SealPlanOf(*Spec::Parse(identity.spec));
  HostPool pool(kUnlimitedBytes);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(100);
  Random random(1);
  GrowMerging(layout, 300, &random, &cache);  // merges nothing
  ASSERT_EQ(cache.head(0, 0).merged_length(), (MergedLength{300, 1, 4}));
  SetJoined(&cache, 0, 1);
  ASSERT_TRUE(SaveSequence(cache, identity, "state", path_).ok());
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

TEST_F(SequenceFileTest, PressedRunsComeBackAndHostilePlacesAreRefused) {
  const SequenceIdentity identity = {"lathe(ratio=4,under_pressure=8,run=64,newest=0,sink=0)",
                                     "model-1"};
  CacheLayout layout = {1, 1, 16, 0, {{16, 16, DType::kBf16}}};
  layout.seal = SealPlanOf(*Spec::Parse(identity.spec));
  layout.keys = Spec::Parse(identity.spec)->keys();
  HeadBits bits;
  bits.middle.k.channels[2] = bits.middle.v.channels[2] = 16;    // 4 bits
  bits.pressed.k.channels[5] = bits.pressed.v.channels[5] = 16;  // 1 bit
  layout.storages = {bits};
  HostPool pool(kUnlimitedBytes);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(300);
  while (cache.n_tokens() < 300) {
    ASSERT_TRUE(cache.Extend(static_cast<int>(std::min<int64_t>(50, cache.max_step()))).ok());
    if (!cache.must_seal()) continue;
    const auto objects = cache.TakeRunObjects(0);
    ASSERT_TRUE(objects.ok());
    cache.PlaceRun(0, *objects);
  }
  for (const int run_idx : {0, 2}) ASSERT_TRUE(cache.PressRun(run_idx).ok());
  for (int b = 0; b < 4; ++b) {
    const RunExtent run = ExtentOf(cache.head(0, 0).runs()[b]);
    cache.device().Fill({cache.head(0, 0).blocks()[b]}, static_cast<std::byte>(b),
                        PackedBlockObjectBytes(PackedShapeOf(layout, 0, 0, run)));
  }
  ASSERT_TRUE(SaveSequence(cache, identity, "state", path_).ok());
  SequenceCache restored(&layout, &pool);
  const auto state = Restore(layout, &restored, identity);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(restored.pressed_runs(), (std::vector<int>{0, 2}));
  EXPECT_EQ(restored.bytes().total(), cache.bytes().total());
  EXPECT_EQ(pool.usage().used_bytes, 2 * cache.bytes().total());
  for (int b = 0; b < 4; ++b) {
    std::byte first{};
    restored.device().Download({restored.head(0, 0).blocks()[b]}, {&first, 1});
    EXPECT_EQ(first, static_cast<std::byte>(b));
  }
  const std::string bytes = FileBytes();
  const auto file = ParseSequenceFile(std::as_bytes(std::span(bytes)), path_);
  ASSERT_TRUE(file.ok());
  // Behind the number and two places: the state with its length, the rows and the checksum.
  const size_t numbers = bytes.size() - 4 - file->rows.size() - (8 + 5) - 12;
  const auto refuse = [&](uint32_t n, uint32_t first, uint32_t second) {
    std::string hostile = bytes;
    const uint32_t values[] = {n, first, second};
    std::memcpy(hostile.data() + numbers, values, sizeof(values));
    WriteSealed(hostile);
    EXPECT_EQ(Refusal(layout, identity).code(), StatusCode::kDataLoss)
        << n << ' ' << first << ' ' << second;
  };
  for (const uint32_t n : {0u, 1u, 3u, 0x80000000u, 0xFFFFFFFFu}) refuse(n, 0, 2);
  refuse(2, 2, 0);
  refuse(2, 2, 2);
  refuse(2, 0, 4);
  refuse(2, 0, 0x7FFFFFFF);
  refuse(2, 0xFFFFFFFF, 2);
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
  HostPool pool(kUnlimitedBytes);
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
  ASSERT_TRUE(SaveSequence(cache, identity, "", path_).ok());
  HostPool other_pool(kUnlimitedBytes);
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
  HostPool pool(kUnlimitedBytes);
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
    EXPECT_TRUE(SaveSequence(cache, identity, "", path_).ok());
    HostPool other_pool(kUnlimitedBytes);
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
  HostPool pool(kUnlimitedBytes);
  SequenceCache cache(&layout, &pool);
  cache.set_n_prompt(100);
  ASSERT_TRUE(cache.Extend(10).ok());
  cache.device().Fill({cache.head(0, 0).blocks()[0]}, std::byte{0}, BlockBytes(layout.shapes[0]));
  ASSERT_TRUE(SaveSequence(cache, identity, "", path_).ok());
  const std::string bytes = FileBytes();
  const size_t positions = bytes.size() - 4 - EntryTable::BlockBytes(/*has_sums=*/true);
  const auto status_with = [&](int entry, int32_t position) {
    std::string changed = bytes;
    std::memcpy(changed.data() + positions + 4 * entry, &position, 4);
    WriteSealed(changed);
    HostPool other_pool(kUnlimitedBytes);
    SequenceCache restored(&layout, &other_pool);
    return Restore(layout, &restored, identity).status();
  };
  EXPECT_TRUE(status_with(3, 5).ok());  // as it is
  for (const int32_t position : {4, 9, 1, 10, -1}) {
    EXPECT_EQ(status_with(3, position).code(), StatusCode::kDataLoss) << position;
  }
  EXPECT_TRUE(status_with(8, 4).ok());  // no entry is there
}

}  // namespace
}  // namespace kvlathe
