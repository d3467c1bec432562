#include "engine/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"

namespace kvlathe {
namespace {

constexpr int kVocabulary = 100;

Session SmallSession() {
  Session session;
  session.tokens = {5, 7, 11, 99, 0, 5, 6};
  session.turn_ends = {3, 5, 6, 7};
  session.sampling = {.temperature = 0.8f,
                      .top_k = 20,
                      .top_p = 0.9f,
                      .min_p = 0.05f,
                      .repetition_penalty = 1.1f,
                      .repeat_last_n = -1,
                      .presence_penalty = -0.5f,
                      .frequency_penalty = 0.25f,
                      .logit_bias = {{3, 1.5f}, {98, -100.f}},
                      .seed = 0x1234'5678'9abc'def0ull};
  session.n_draws = (uint64_t{1} << 40) + 3;
  return session;
}

Status Refusal(const Session& session) {
  return ParseSessionState(SessionState(session), kVocabulary, "file").status();
}

TEST(SessionState, ComesBackAsItWas) {
  const Session session = SmallSession();
  const auto parsed = ParseSessionState(SessionState(session), kVocabulary, "file");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->tokens, session.tokens);
  EXPECT_EQ(parsed->turn_ends, session.turn_ends);
  EXPECT_EQ(parsed->n_draws, session.n_draws);
  EXPECT_EQ(parsed->sampling.seed, session.sampling.seed);
  EXPECT_EQ(parsed->sampling.logit_bias, session.sampling.logit_bias);
  EXPECT_EQ(parsed->sampling.repeat_last_n, -1);
  EXPECT_EQ(SessionState(*parsed), SessionState(session));
}

TEST(SessionState, OfAnyOtherLengthIsRefused) {
  const std::string state = SessionState(SmallSession());
  for (size_t n_bytes = 0; n_bytes < state.size(); ++n_bytes) {
    const auto begin = std::string_view(state).substr(0, n_bytes);
    EXPECT_EQ(ParseSessionState(begin, kVocabulary, "file").status().code(), StatusCode::kDataLoss)
        << n_bytes;
  }
  EXPECT_FALSE(ParseSessionState(state + "x", kVocabulary, "file").ok());
}

TEST(SessionState, HugeCountsTakeNoMemory) {
  for (const size_t at : {4, 8}) {
    std::string state = SessionState(SmallSession());
    const uint32_t huge = std::numeric_limits<uint32_t>::max();
    std::memcpy(state.data() + at, &huge, sizeof(huge));
    EXPECT_EQ(ParseSessionState(state, kVocabulary, "file").status().code(), StatusCode::kDataLoss);
  }
}

TEST(SessionState, WhatDoesNotFitIsRefused) {
  const auto expect_refused = [](const auto& spoil) {
    Session session = SmallSession();
    spoil(&session);
    const Status status = Refusal(session);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(MessageOf(status), testing::StartsWith("file: "));
  };
  expect_refused([](Session* s) { s->tokens[2] = kVocabulary; });
  expect_refused([](Session* s) { s->tokens[2] = -1; });
  expect_refused([](Session* s) { s->tokens.push_back(1); });
  expect_refused([](Session* s) { s->turn_ends = {}; });
  expect_refused([](Session* s) { s->turn_ends = {7}; });
  expect_refused([](Session* s) { s->turn_ends = {0, 7}; });
  expect_refused([](Session* s) { s->turn_ends = {5, 3, 6, 7}; });
  expect_refused([](Session* s) { s->turn_ends = {-1, 7}; });
  expect_refused([](Session* s) { s->sampling.temperature = -1; });
  expect_refused([](Session* s) { s->sampling.top_p = std::numeric_limits<float>::quiet_NaN(); });
  expect_refused([](Session* s) { s->sampling.logit_bias = {{kVocabulary, 1.f}}; });
}

TEST(SessionState, OfALaterVersionIsNamed) {
  std::string state = SessionState(SmallSession());
  state[0] = 2;
  const Status status = ParseSessionState(state, kVocabulary, "file").status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("format 2"));
}

// A file of a sequence whose state is of something else, or does not fit its positions.
TEST(SessionFile, WithAnotherStateIsRefusedAndHoldsNoMemory) {
  const CacheLayout layout = {1, 1, 16, 1, {{16, 16, DType::kBf16}}};
  const SequenceIdentity identity = {"none", "model"};
  const ScratchFolder folder;
  const std::string path = folder / "session";
  HostPool pool(std::numeric_limits<int64_t>::max());
  for (const int n_positions : {5, 6, 7, 8}) {
    SequenceCache cache(&layout, &pool);
    ASSERT_TRUE(cache.Extend(n_positions).ok());
    const int64_t used_bytes = pool.usage().used_bytes;
    pool.device().Fill(cache.head(0, 0).sink_k(), std::byte{0},
                       SinkBytes(layout, layout.shapes[0]));
    const auto load = [&](std::string_view state) {
      EXPECT_TRUE(SaveSequence(cache, identity, state, path).ok());
      return LoadSession(path, {identity, &layout, 4096}, kVocabulary, &pool).status();
    };
    // Of seven tokens six or seven have positions.
    const bool fits = n_positions == 6 || n_positions == 7;
    EXPECT_EQ(load(SessionState(SmallSession())).ok(), fits) << n_positions;
    EXPECT_EQ(load("other").code(), StatusCode::kUnimplemented);
    EXPECT_EQ(pool.usage().used_bytes, used_bytes);
  }
}

}  // namespace
}  // namespace kvlathe
