// A cache that grows is sent as a stream, and what arrives is the file of the cache.
#include "kv/blocks/sequence_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "kv/blocks/sequence_file_fixture.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class SequenceStreamTest : public SequenceFileTest {
 protected:
  // The head and the parts of a cache that grows to n_tokens by n_step at a time.
  std::vector<std::string> StreamOf(const CacheLayout& layout, int n_tokens, int n_step = 50) {
    HostPool pool(kUnlimitedBytes);
    SequenceCache cache(&layout, &pool);
    SequenceStreamWriter writer(kIdentity, &layout, PlaceOfFile(cache, n_tokens));
    std::vector<std::string> stream = {writer.Head()};
    while (cache.n_tokens() < n_tokens) {
      Fill(layout, &cache, std::min(cache.n_tokens() + n_step, n_tokens));
      while (true) {
        std::string part = writer.Next(cache);
        if (part.empty()) break;
        stream.push_back(std::move(part));
      }
      EXPECT_EQ(writer.is_at_end(), cache.n_tokens() == n_tokens);
    }
    SequencePieces pieces(&cache, kIdentity, {});
    file_.clear();
    while (!pieces.is_at_end()) file_ += pieces.Next();
    EXPECT_EQ(writer.n_file_bytes(), std::ssize(file_));
    if (!layout.HasWindow()) bits_ = Bits(layout, cache, 0);
    return stream;
  }
  static PrefixPlace PlaceOfFile(const SequenceCache& cache, int n_tokens) {
    return {.n_tokens = n_tokens, .n_prompt = cache.n_prompt()};
  }
  // The error of a stream that comes in pieces, or that it is not whole.
  Status Read(const CacheLayout& layout, std::string_view stream, int n_tokens,
              size_t piece = std::string::npos, const SequenceIdentity& identity = kIdentity) {
    SequenceStreamReader reader("peer", identity, &layout, n_tokens);
    for (size_t begin = 0; begin < stream.size(); begin += std::min(piece, stream.size())) {
      const Status status = reader.Add(stream.substr(begin, piece));
      if (!status.ok()) {
        EXPECT_THAT(MessageOf(status), StartsWith("peer: "));
        EXPECT_EQ(status.message().find('\n'), std::string::npos);
        return status;
      }
    }
    EXPECT_EQ(reader.n_received_bytes(), std::ssize(stream));
    if (!reader.is_whole()) return Error(StatusCode::kAborted, "not whole");
    read_ = reader.TakeFile();
    return OkStatus();
  }
  static std::string Joined(const std::vector<std::string>& stream) {
    std::string joined;
    for (const std::string& piece : stream) joined += piece;
    return joined;
  }
  // Sets the checksum of a head or part right: what remains wrong is hostile, not damaged.
  static std::string Checked(std::string part) {
    const auto checked = std::as_bytes(std::span(part)).first(part.size() - 4);
    const uint32_t crc = ExtendCrc32c(0, checked);
    std::memcpy(part.data() + part.size() - 4, &crc, 4);
    return part;
  }

  std::string file_;  // of the last StreamOf
  std::string bits_;  // likewise: of all rows, where none fell out of a window
  std::string read_;
};

TEST_F(SequenceStreamTest, MakesUpTheSavedFile) {
  for (const int n_sink : {0, 5}) {
    CacheLayout layout = SmallLayout(n_sink);
    for (const int window : {0, 100}) {
      if (window > 0) layout.windows.assign(layout.n_layers, window);
      for (const int n_tokens : {1, 5, 64, 69, 70, 200, 500}) {
        SCOPED_TRACE(fmt::format("{} sinks, window {}, {} tokens", n_sink, window, n_tokens));
        const std::string stream = Joined(StreamOf(layout, n_tokens));
        for (const size_t piece : {size_t{1}, size_t{7}, size_t{1000}, std::string::npos}) {
          const Status status = Read(layout, stream, n_tokens, piece);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(read_ == file_);
        }
      }
    }
  }
}

TEST_F(SequenceStreamTest, RestoresTheCacheBitForBit) {
  const CacheLayout layout = SmallLayout(5);
  ASSERT_TRUE(Read(layout, Joined(StreamOf(layout, 200)), 200).ok());
  HostPool pool(kUnlimitedBytes);
  SequenceCache restored(&layout, &pool);
  const auto state = RestoreSequence(std::as_bytes(std::span(read_)), "peer",
                                     {kIdentity, &layout, /*max_tokens=*/4096}, &restored);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(Bits(layout, restored, 0) == bits_);
}

TEST_F(SequenceStreamTest, WhatIsFinalGoesAtOnce) {
  const CacheLayout layout = SmallLayout(5);
  const std::vector<std::string> stream = StreamOf(layout, 2000, /*n_step=*/64);
  ASSERT_GE(stream.size(), 30u);
  EXPECT_LT(std::ssize(stream.back()), std::ssize(file_) / 10);
}

TEST_F(SequenceStreamTest, RefusesWhatWasNotAskedFor) {
  const CacheLayout layout = SmallLayout(5), other = SmallLayout(4);
  const std::string stream = Joined(StreamOf(layout, 100));
  const auto expect_refused = [](const Status& status, const char* why) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(why));
  };
  expect_refused(Read(layout, stream, 101), "101 were asked for");
  expect_refused(Read(other, stream, 100), "another model");
  expect_refused(Read(layout, stream, 100, 9, {"kivi", "model-1"}), "'kivi'");
  expect_refused(Read(layout, stream, 100, 9, {kIdentity.spec, "model-2"}), "another model");
}

TEST_F(SequenceStreamTest, RefusesDamage) {
  const CacheLayout layout = SmallLayout(2);
  const std::vector<std::string> parts = StreamOf(layout, 150);
  const std::string stream = Joined(parts);
  const size_t n_start = parts[0].size() + 200;
  for (size_t at = 0; at < stream.size(); at += at < n_start ? 1 : 97) {
    std::string damaged = stream;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    EXPECT_FALSE(Read(layout, damaged, 150).ok()) << at;
  }
  for (size_t n = 0; n < stream.size(); n += n < n_start ? 1 : 97) {
    EXPECT_EQ(Read(layout, stream.substr(0, n), 150).code(), StatusCode::kAborted) << n;
  }
}

TEST_F(SequenceStreamTest, RefusesHostileParts) {
  const CacheLayout layout = SmallLayout(2);
  const std::vector<std::string> parts = StreamOf(layout, 150);
  ASSERT_GE(parts.size(), 3u);
  const auto expect_refused = [&](const std::string& stream, const char* why) {
    const Status status = Read(layout, stream, 150);
    EXPECT_THAT(MessageOf(status), HasSubstr(why));
  };
  const auto with_number = [](std::string part, size_t at, uint32_t number) {
    std::memcpy(part.data() + at, &number, sizeof(number));
    return Checked(std::move(part));
  };
  const std::string& head = parts[0];
  expect_refused(head + parts[1] + parts[1], "ranges of part 1");
  expect_refused(Joined(parts) + "x", "behind its end");
  expect_refused(head + with_number(parts[1], 0, 0), "0 ranges");
  expect_refused(head + with_number(parts[1], 0, 1u << 31), "ranges");
  expect_refused(head + with_number(parts[1], 4, 1u << 31), "bytes");
  expect_refused(head + with_number(parts[1], 8, 1u << 31), "ranges of part 0");   // begins outside
  expect_refused(head + with_number(parts[1], 12, 1u << 31), "ranges of part 0");  // is too long
  expect_refused(head + with_number(parts[1], 12, 0), "ranges of part 0");         // is empty
  expect_refused(with_number(head, 8, 2), "format 2");
  expect_refused(with_number(head, 32, 1u << 31), "a head of");
  expect_refused(with_number(head, 24, 1), "another model");  // bytes of the file
  expect_refused(with_number(head, 20, 1u << 31), "");        // a prompt that ends before it begins
  expect_refused(with_number(head, 20, 1u << 30), "another model");
  expect_refused("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n", "not the stream of a prompt");
}

}  // namespace
}  // namespace kvlathe
