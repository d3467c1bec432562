// What the tests of sequence files share: sequences of random bits, saved and restored.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "base/crc32c.h"
#include "base/random.h"
#include "cpu/memory/cpu_device.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_file.h"

namespace kvlathe {

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kLengthOffset = 12;
inline const SequenceIdentity kIdentity = {"fdc(rate=0.5)", "model-1"};

// Heads of different ranks.
inline CacheLayout SmallLayout(int n_sink, DType row_type = DType::kBf16) {
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
inline void SetJoined(SequenceCache* cache, int layer_idx, int n_joined) {
  cache->device().Upload({cache->head(layer_idx, 0).open_entry()},
                         std::as_bytes(std::span(&n_joined, 1)));
}

// One position at a time, of which heads merge shares of their own; sealed without being filled.
inline void GrowMerging(const CacheLayout& layout, int n_tokens, Random* random,
                        SequenceCache* cache) {
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
    HostPool pool(kUnlimitedBytes);
    SequenceCache cache(&layout, &pool);
    Fill(layout, &cache, n_tokens);
    ASSERT_TRUE(SaveSequence(cache, kIdentity, state, path_).ok());
  }
  StatusOr<std::string> Restore(const CacheLayout& layout, SequenceCache* cache,
                                const SequenceIdentity& identity = kIdentity) {
    return RestoreSequence(path_, {identity, &layout, /*max_tokens=*/4096}, cache);
  }
  // The status of restoring the file into a pool of budget_bytes, of which nothing must stay used.
  Status Refusal(const CacheLayout& layout, const SequenceIdentity& identity = kIdentity,
                 int64_t budget_bytes = kUnlimitedBytes) {
    HostPool pool(budget_bytes);
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

}  // namespace kvlathe
