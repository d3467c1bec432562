#include "calibration/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/random.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;

TEST(DrawRandomSequencesTest, SequencesStartWithBosAndAvoidSpecialIds) {
  RandomTokens tokens;
  tokens.n_tokens = 2500;
  tokens.first_id = 3;
  tokens.vocab_size = 100;
  tokens.bos_id = 1;
  const auto sequences = *DrawRandomSequences(tokens, 1024);
  ASSERT_EQ(sequences.size(), 3u);
  EXPECT_EQ(sequences[0].size(), 1024u);
  EXPECT_EQ(sequences[2].size(), 452u);
  std::set<int32_t> seen;
  for (const auto& sequence : sequences) {
    EXPECT_EQ(sequence[0], 1);
    seen.insert(sequence.begin() + 1, sequence.end());
  }
  EXPECT_EQ(*seen.begin(), 3);
  EXPECT_EQ(*seen.rbegin(), 99);
  EXPECT_EQ(seen.size(), 97u);
}

TEST(DrawRandomSequencesTest, TheSeedDecidesTheTokens) {
  RandomTokens tokens;
  tokens.vocab_size = 5000;
  const auto first = *DrawRandomSequences(tokens, 2048);
  EXPECT_EQ(first, *DrawRandomSequences(tokens, 2048));
  EXPECT_EQ(first.size(), 4u);
  tokens.seed = 1;
  EXPECT_NE(first, *DrawRandomSequences(tokens, 2048));
}

TEST(DrawRandomSequencesTest, WhatCannotBeDrawnIsRefused) {
  RandomTokens tokens;
  tokens.vocab_size = 10;
  tokens.first_id = 10;
  EXPECT_EQ(DrawRandomSequences(tokens, 64).status().code(), StatusCode::kInvalidArgument);
  tokens.first_id = 0;
  EXPECT_EQ(DrawRandomSequences(tokens, 4).status().code(), StatusCode::kInvalidArgument);
  tokens.n_tokens = 3;
  EXPECT_EQ(DrawRandomSequences(tokens, 64).status().code(), StatusCode::kInvalidArgument);
}

TEST(CutSequencesTest, TextIsCutInOrderWithBosInFront) {
  std::vector<int32_t> ids(19);
  std::iota(ids.begin(), ids.end(), 100);
  const auto sequences = *CutSequences(ids, 8, 1);
  ASSERT_EQ(sequences.size(), 3u);
  EXPECT_THAT(sequences[0], ElementsAre(1, 100, 101, 102, 103, 104, 105, 106));
  EXPECT_THAT(sequences[1], ElementsAre(1, 107, 108, 109, 110, 111, 112, 113));
  EXPECT_THAT(sequences[2], ElementsAre(1, 114, 115, 116, 117, 118));
  EXPECT_EQ(CutSequences(ids, 8, -1)->size(), 2u);  // the rest of 3 would be all sinks
  EXPECT_FALSE(CutSequences(std::span(ids).first(3), 8, 1).ok());
}

// A model whose every activation is a function of the token id, in chunks of 64.
class IdModel {
 public:
  explicit IdModel(const StatisticsShape& shape) : shape_(shape) {}
  Status Forward(std::span<const int32_t> ids, QkvObserver* observer) {
    for (size_t begin = 0; begin < ids.size(); begin += 64) {
      const auto chunk = ids.subspan(begin, std::min<size_t>(64, ids.size() - begin));
      std::vector<int> positions(chunk.size());
      std::iota(positions.begin(), positions.end(), static_cast<int>(begin));
      for (int l = 0; l < shape_.n_layers; ++l) {
        const auto q = Rows(chunk, l, shape_.n_heads), k = Rows(chunk, l, shape_.n_kv_heads);
        observer->Observe({l, static_cast<int>(chunk.size()), positions.data(), q.data(), q.data(),
                           k.data(), k.data(), k.data()});
      }
    }
    return OkStatus();
  }
  int bad_layer = -1;

 private:
  std::vector<float> Rows(std::span<const int32_t> ids, int layer_idx, int n_heads) const {
    std::vector<float> rows;
    for (const int32_t id : ids) {
      Random random(id, layer_idx);
      for (int i = 0; i < n_heads * shape_.head_dim; ++i) {
        rows.push_back(layer_idx == bad_layer ? NAN : static_cast<float>(random.Normal()));
      }
    }
    return rows;
  }
  StatisticsShape shape_;
};

class CalibrateTest : public ::testing::Test {
 protected:
  CalibrateTest() : model_(kShape), pool_(2) {
    RandomTokens tokens;
    tokens.n_tokens = 500;
    tokens.vocab_size = 1000;
    job_.shape = kShape;
    job_.source.model_hash = "m";
    job_.source.token_source = "random";
    job_.sequences = *DrawRandomSequences(tokens, 200);
    job_.pool = &pool_;
    job_.forward = [this](std::span<const int32_t> ids, QkvObserver* observer) {
      return model_.Forward(ids, observer);
    };
  }
  static constexpr StatisticsShape kShape = {3, 2, 1, 16};
  IdModel model_;
  ThreadPool pool_;
  CalibrationJob job_;
};

TEST_F(CalibrateTest, EveryTokenIsCountedAndProgressReported) {
  std::vector<double> done;
  job_.on_progress = [&](double fraction) { done.push_back(fraction); };
  const auto statistics = Calibrate(job_);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  // A step of 64 tokens of one layer, of 500 tokens in three.
  EXPECT_DOUBLE_EQ(done.front(), 64 / 1500.0);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_DOUBLE_EQ(done.back(), 1);
  EXPECT_EQ(statistics->n_rows, 500 - 3 * kCalibrationSinks);
  EXPECT_EQ(statistics->n_sink_rows, 3 * kCalibrationSinks);
  EXPECT_EQ(statistics->source.n_tokens, 500);
  EXPECT_EQ(statistics->source.sequence_tokens, 200);
  EXPECT_EQ(statistics->source.model_hash, "m");
}

TEST_F(CalibrateTest, ADamagedModelStopsAtItsFirstBadLayer) {
  model_.bad_layer = 2;
  double done = 0;
  job_.on_progress = [&](double fraction) { done = fraction; };
  EXPECT_THAT(MessageOf(Calibrate(job_).status()),
              ::testing::HasSubstr("layer 2: queries are not"));
  EXPECT_LE(done, 0.4);  // the first of three sequences
}

TEST_F(CalibrateTest, ErrorsOfTheModelComeThrough) {
  job_.forward = [](std::span<const int32_t>, QkvObserver*) {
    return Error(StatusCode::kResourceExhausted, "no memory");
  };
  EXPECT_EQ(Calibrate(job_).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvlathe
