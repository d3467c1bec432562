#include "lockstep/order.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/random.h"

namespace kvlathe {
namespace {

using Bytes = std::vector<std::byte>;

RankOrder OrderWithEverything() {
  RankOrder order = {.kind = RankOrder::Kind::kStep,
                     .model = 3,
                     .cache = 4,
                     .run_idx = 5,
                     .kv = "kivi(bits=4)",
                     .rate = 0.5,
                     .identity = "a model",
                     .payload = "bytes of a cache"};
  order.events.push_back({.kind = CacheEvent::Kind::kForked,
                          .subject = 7,
                          .other = 8,
                          .numbers = {9, 10, 11},
                          .rate = 0.25});
  order.events.push_back({.kind = CacheEvent::Kind::kExtended, .subject = 8, .numbers = {40}});
  order.parts.push_back({.cache = 8, .logits = 2, .token_ids = {1, 2, 3}});
  order.parts.push_back({.cache = 7, .logits = 1, .token_ids = {}});
  return order;
}

RankAnswer AnswerWithEverything() {
  return {.code = 8,
          .message = "no memory",
          .failures = {{.step_idx = 1, .code = 15, .message = "rows are not finite"}, {}},
          .pools = {{.pool = 2, .used_bytes = int64_t{1} << 40}, {.pool = 5, .used_bytes = 64}},
          .payload = "part"};
}

TEST(RankMessages, SayWhatWasEncoded) {
  const RankOrder order = OrderWithEverything();
  const auto read = DecodeOrder(Encode(order));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kind, order.kind);
  ASSERT_EQ(read->events.size(), 2u);
  EXPECT_EQ(read->events[0].kind, CacheEvent::Kind::kForked);
  EXPECT_EQ(read->events[0].subject, 7);
  EXPECT_EQ(read->events[0].other, 8);
  EXPECT_EQ(read->events[0].numbers[2], 11);
  EXPECT_EQ(read->events[0].rate, 0.25);
  EXPECT_EQ(read->events[1].numbers[0], 40);
  EXPECT_EQ(read->model, 3);
  EXPECT_EQ(read->cache, 4);
  EXPECT_EQ(read->run_idx, 5);
  EXPECT_EQ(read->kv, order.kv);
  EXPECT_EQ(read->rate, 0.5);
  ASSERT_EQ(read->parts.size(), 2u);
  EXPECT_EQ(read->parts[0].cache, 8);
  EXPECT_EQ(read->parts[0].logits, 2);
  EXPECT_EQ(read->parts[0].token_ids, order.parts[0].token_ids);
  EXPECT_TRUE(read->parts[1].token_ids.empty());
  EXPECT_EQ(read->identity, order.identity);
  EXPECT_EQ(read->payload, order.payload);

  const RankAnswer answer = AnswerWithEverything();
  const auto heard = DecodeAnswer(Encode(answer));
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->code, 8);
  EXPECT_EQ(heard->message, answer.message);
  ASSERT_EQ(heard->failures.size(), 2u);
  EXPECT_EQ(heard->failures[0].step_idx, 1);
  EXPECT_EQ(heard->failures[0].code, 15);
  EXPECT_EQ(heard->failures[0].message, answer.failures[0].message);
  ASSERT_EQ(heard->pools.size(), 2u);
  EXPECT_EQ(heard->pools[0].used_bytes, int64_t{1} << 40);
  EXPECT_EQ(heard->pools[1].pool, 5);
  EXPECT_EQ(heard->payload, "part");
}

// Bytes that are read say the same when they are written again; all others are kDataLoss.
void ExpectReadOrRefused(const Bytes& bytes) {
  const auto order = DecodeOrder(bytes);
  if (order.ok()) {
    EXPECT_EQ(Encode(*order), bytes);
  } else {
    EXPECT_EQ(order.status().code(), StatusCode::kDataLoss);
  }
  const auto answer = DecodeAnswer(bytes);
  if (answer.ok()) {
    EXPECT_EQ(Encode(*answer), bytes);
  } else {
    EXPECT_EQ(answer.status().code(), StatusCode::kDataLoss);
  }
}

TEST(RankMessages, AreRefusedWhereTheyEndTooSoonOrTooLate) {
  for (Bytes bytes : {Encode(OrderWithEverything()), Encode(AnswerWithEverything())}) {
    for (size_t n = 0; n < bytes.size(); ++n) {
      const Bytes beginning(bytes.begin(), bytes.begin() + static_cast<int64_t>(n));
      EXPECT_FALSE(DecodeOrder(beginning).ok()) << n;
      EXPECT_FALSE(DecodeAnswer(beginning).ok()) << n;
      ExpectReadOrRefused(beginning);
    }
    bytes.push_back(std::byte{0});
    EXPECT_EQ(DecodeOrder(bytes).status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(DecodeAnswer(bytes).status().code(), StatusCode::kDataLoss);
  }
}

TEST(RankMessages, AreReadOrRefusedWhateverIsDamaged) {
  Random random(1);
  for (const Bytes& whole : {Encode(OrderWithEverything()), Encode(AnswerWithEverything())}) {
    for (size_t i = 0; i < whole.size(); ++i) {
      for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
        Bytes bytes = whole;
        bytes[i] = static_cast<std::byte>(value);
        ExpectReadOrRefused(bytes);
      }
    }
    for (int n = 0; n < 2000; ++n) {
      Bytes bytes = whole;
      for (uint64_t k = 1 + random.Below(8); k > 0; --k) {
        bytes[random.Below(bytes.size())] = static_cast<std::byte>(random.Below(256));
      }
      ExpectReadOrRefused(bytes);
    }
  }
}

TEST(RankMessages, OfUnknownKindsAreRefused) {
  Bytes bytes = Encode(RankOrder());
  bytes[0] = static_cast<std::byte>(RankOrder::kNumKinds);
  EXPECT_EQ(DecodeOrder(bytes).status().code(), StatusCode::kDataLoss);
  RankOrder order;
  order.events.push_back({.kind = static_cast<CacheEvent::Kind>(CacheEvent::kNumKinds)});
  EXPECT_EQ(DecodeOrder(Encode(order)).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvlathe
