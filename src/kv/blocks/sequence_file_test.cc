#include "kv/blocks/sequence_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_file_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

TEST_F(SequenceFileTest, RestoresEveryBitAtLengthsAroundBlocksAndSinks) {
  for (const DType row_type : {DType::kBf16, DType::kF32}) {
    for (const int n_sink : {0, 5}) {
      const CacheLayout layout = SmallLayout(n_sink, row_type);
      for (const int n_tokens : {0, 1, 3, 5, 6, 63, 64, 65, 69, 70, 200}) {
        SCOPED_TRACE(fmt::format("{} sinks, {} tokens", n_sink, n_tokens));
        HostPool pool(kUnlimitedBytes), other_pool(kUnlimitedBytes);
        SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
        Fill(layout, &saved, n_tokens);
        ASSERT_TRUE(SaveSequence(saved, kIdentity, "the state", path_).ok());
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
  for (const int n_tokens : {40, 100, 102, 103, 164, 165, 166, 500, 1000}) {
    SCOPED_TRACE(n_tokens);
    CacheLayout layout = SmallLayout(3);
    layout.windows.assign(layout.n_layers, 100);
    HostPool pool(kUnlimitedBytes), other_pool(kUnlimitedBytes);
    SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
    Fill(layout, &saved, n_tokens);
    ASSERT_TRUE(SaveSequence(saved, kIdentity, "", path_).ok());
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
  HostPool pool(kUnlimitedBytes), other_pool(kUnlimitedBytes);
  SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
  Fill(layout, &saved, 500);
  ASSERT_TRUE(SaveSequence(saved, kIdentity, "", path_).ok());
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
  HostPool pool(kUnlimitedBytes);
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
          pool.device().Fill({block}, fill, BlockObjectBytes(layout, shape));
        }
      }
      other.Clear();
      SequenceCache cache(&layout, &pool);
      Fill(layout, &cache, n_tokens);
      ASSERT_TRUE(SaveSequence(cache, kIdentity, "", path_).ok());
      files.insert(FileBytes());
    }
    EXPECT_EQ(files.size(), 1u);
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
      HostPool pool(kUnlimitedBytes), other_pool(kUnlimitedBytes);
      SequenceCache saved(&layout, &pool), restored(&layout, &other_pool);
      saved.set_n_prompt(n_prompt);
      GrowMerging(layout, n_tokens, &random, &saved);
      for (int l = 0; l < layout.n_layers; ++l) {
        const int n_joined = saved.head(l, 0).n_entries() > 0 ? 1 : 0;
        SetJoined(&saved, l, n_joined);
      }
      ASSERT_TRUE(SaveSequence(saved, identity, "", path_).ok());
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
  HostPool pool(kUnlimitedBytes);
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
  HostPool pool(SequenceBytes(layout, 300));
  SequenceCache cache(&layout, &pool);
  EXPECT_TRUE(Restore(layout, &cache).ok());
}

TEST_F(SequenceFileTest, WhatCannotBeWrittenLeavesTheOldFile) {
  const CacheLayout layout = SmallLayout(4);
  Save(layout, 10, "old");
  const std::string before = FileBytes();
  HostPool pool(kUnlimitedBytes);
  SequenceCache cache(&layout, &pool);
  EXPECT_FALSE(SaveSequence(cache, kIdentity, "", folder_ / "none/sequence").ok());
  EXPECT_EQ(FileBytes(), before);
  EXPECT_EQ(folder_.n_files(), 1);
}

}  // namespace
}  // namespace kvlathe
