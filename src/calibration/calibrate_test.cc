#include "calibration/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "analysis/statistics/gram.h"
#include "base/random.h"
#include "calibration/position_shift.h"
#include "io/files.h"
#include "model/rope.h"

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

// R m and R M R^T of every head, R the rotation by n positions, in double.
HeadMoments Turned(const HeadMoments& moments, int n, const std::vector<double>& frequencies) {
  const auto half = std::ssize(frequencies), d = 2 * half;
  std::vector<double> turn(d * d);
  for (int64_t i = 0; i < half; ++i) {
    turn[i * d + i] = turn[(i + half) * d + i + half] = std::cos(n * frequencies[i]);
    turn[(i + half) * d + i] = std::sin(n * frequencies[i]);
    turn[i * d + i + half] = -turn[(i + half) * d + i];
  }
  HeadMoments to = moments;
  for (size_t row = 0; row < to.mean.size(); ++row) {
    const auto i = static_cast<int64_t>(row) % d, first = static_cast<int64_t>(row) - i;
    double mean = 0;
    for (int64_t j = 0; j < d; ++j) mean += turn[i * d + j] * moments.mean[first + j];
    to.mean[row] = static_cast<float>(mean);
    for (int64_t j = 0; j < d; ++j) {
      double sum = 0;
      for (int64_t a = 0; a < d; ++a) {
        for (int64_t b = 0; b < d; ++b) {
          sum += turn[i * d + a] * moments.covariance[(first + a) * d + b] * turn[j * d + b];
        }
      }
      to.covariance[row * d + j] = static_cast<float>(sum);
    }
  }
  return to;
}

// As many rows of a as of b; `n` rows of a token.
void ExpectMean(const HeadMoments& found, const HeadMoments& a, const HeadMoments& b, int dim,
                int n) {
  for (size_t i = 0; i < found.mean.size(); ++i) {
    EXPECT_NEAR(found.mean[i], (a.mean[i] + b.mean[i]) / 2, 1e-5);
  }
  for (int64_t h = 0; h * dim < std::ssize(found.mean); ++h) {
    const std::vector<double> gram = GramOf(found, h, dim, n);
    const std::vector<double> mean =
        WeightedSum(0.5, GramOf(a, h, dim, n), 0.5, GramOf(b, h, dim, n));
    for (size_t i = 0; i < gram.size(); ++i) EXPECT_NEAR(gram[i], mean[i], 1e-5);
  }
}

TEST_F(CalibrateTest, RowsAfterRopeAreAsFromAllOverTheContext) {
  job_.rope_dim = kShape.head_dim;
  job_.sequences = {job_.sequences[0], job_.sequences[0]};
  const CalibrationStatistics near = *Calibrate(job_);
  EXPECT_EQ(near.source.n_positions, 200);
  job_.n_positions = 4096;
  const CalibrationStatistics all = *Calibrate(job_);
  EXPECT_EQ(all.source.n_positions, 4096);
  const int start = SpreadStarts(2, 200, 4096)[1];
  EXPECT_GT(start, 2000);
  const std::vector<double> frequencies = RopeFrequencies(job_.attention.of(0).rope, job_.rope_dim);
  for (HeadMoments CalibrationStatistics::*moments :
       {&CalibrationStatistics::q_post, &CalibrationStatistics::k_post}) {
    const int n = moments == &CalibrationStatistics::q_post ? kShape.gqa_group() : 1;
    ExpectMean(all.*moments, near.*moments, Turned(near.*moments, start, frequencies),
               kShape.head_dim, n);
  }
  for (HeadMoments CalibrationStatistics::*moments :
       {&CalibrationStatistics::q_pre, &CalibrationStatistics::k_pre, &CalibrationStatistics::v,
        &CalibrationStatistics::sink_k_post}) {
    EXPECT_EQ((all.*moments).covariance, (near.*moments).covariance);
  }
}

TEST_F(CalibrateTest, SequencesThatMayNotTurnOnStayWhereTheyStand) {
  job_.rope_dim = kShape.head_dim;
  job_.sequences = {job_.sequences[0], job_.sequences[0]};
  const CalibrationStatistics near = Calibrate(job_).value();
  job_.n_positions = 4096;
  job_.turns_on = false;
  const CalibrationStatistics all = Calibrate(job_).value();
  EXPECT_EQ(all.source.n_positions, 4096);
  EXPECT_EQ(all.q_post.covariance, near.q_post.covariance);
  EXPECT_EQ(all.joint.k.covariance, near.joint.k.covariance);
}

TEST(SpreadStartsTest, AnyFewSequencesLieAllOverTheContext) {
  EXPECT_THAT(SpreadStarts(3, 2048, 2048), ElementsAre(0, 0, 0));
  EXPECT_THAT(SpreadStarts(2, 100, 50), ElementsAre(0, 0));
  for (const int n : {4, 21, 100}) {
    std::vector<int> starts = SpreadStarts(n, 2048, 8192);
    EXPECT_EQ(starts[0], 0);
    EXPECT_LE(*std::ranges::max_element(starts), 8192 - 2048);
    std::ranges::sort(starts);
    starts.push_back(8192 - 2048);
    for (int i = 0; i < n; ++i) EXPECT_LT(starts[i + 1] - starts[i], 2 * 6144 / n);
  }
}

TEST(CalibrationContextTest, ShortContextsShareStatistics) {
  EXPECT_EQ(CalibrationContext(256, 1024), 1024);
  EXPECT_EQ(CalibrationContext(256, 8192), 2048);
  EXPECT_EQ(CalibrationContext(2048, 8192), 2048);
  EXPECT_EQ(CalibrationContext(4096, 8192), 4096);
}

TEST(CalibrationPositionsTest, AreThoseOfTheContextOrTwiceAsManyAtMost) {
  EXPECT_EQ(CalibrationPositions(512), 512);
  EXPECT_EQ(CalibrationPositions(2048), 2048);
  EXPECT_EQ(CalibrationPositions(2049), 4096);
  EXPECT_EQ(CalibrationPositions(131072), 131072);
}

class GradientsTest : public CalibrateTest {
 protected:
  GradientsTest() {
    job_.gradients = [this](std::span<const int32_t> ids, uint64_t seed, QkvObserver* observer,
                            const std::function<void(const RowGradients&)>& sink) {
      seeds_.push_back(seed);
      if (observer != nullptr) KVL_RETURN_IF_ERROR(model_.Forward(ids, observer));
      // Sequences have 200, 200 and 100 tokens, the last of which is held back.
      const std::vector<float> rows(ids.size() * kShape.head_dim, ids.size() == 100 ? 2.0f : 1.0f);
      for (int l = kShape.n_layers - 1; l >= 0; --l) {
        sink({l, std::ssize(ids), rows.data(), rows.data(), rows.data(), rows.data(), rows.data(),
              rows.data()});
      }
      return OkStatus();
    };
  }

  std::vector<uint64_t> seeds_;
};

TEST_F(GradientsTest, OfSequencesMakeFAndThoseHeldBackAreApart) {
  job_.forward = nullptr;  // what is seen on the way forwards is enough
  const CalibrationStatistics s = *Calibrate(job_);
  EXPECT_THAT(seeds_, ElementsAre(0, 1, 2));
  EXPECT_EQ(s.n_rows, 500 - 3 * kCalibrationSinks);
  EXPECT_EQ(s.joint.n_tokens, 400);
  EXPECT_EQ(s.held_back.n_tokens, 100);
  EXPECT_FLOAT_EQ(s.joint.v.fisher.back(), 0.5f * 196 / 200);
  EXPECT_FLOAT_EQ(s.held_back.k_pre.fisher.back(), 0.5f * 4 * 96 / 100);
  // The rows of both parts together are those of all statistics.
  const double n = s.n_rows, n_held_back = 100 - kCalibrationSinks;
  // About zero, where shares of rows add up.
  const int dim = kShape.head_dim;
  for (int l = 0; l < kShape.n_layers; ++l) {
    const std::vector<double> gram = GramOf(s.v, l, dim);
    const auto gram_of = [&](const JointMoments& v) {
      return GramOf({v.mean, v.covariance}, l, dim);
    };
    const std::vector<double> sum =
        WeightedSum(n - n_held_back, gram_of(s.joint.v), n_held_back, gram_of(s.held_back.v));
    for (size_t i = 0; i < gram.size(); ++i) EXPECT_NEAR(gram[i], sum[i] / n, 1e-5);
  }
}

TEST_F(GradientsTest, RowsThatMergeAreSeenByTheModelThatMergesThem) {
  const CalibrationStatistics s = *Calibrate(job_);
  const auto run = job_.gradients;
  job_.gradients = [&](std::span<const int32_t> ids, uint64_t seed, QkvObserver* observer,
                       const std::function<void(const RowGradients&)>& sink) {
    EXPECT_EQ(observer, nullptr);
    return run(ids, seed, observer, sink);
  };
  job_.source.merging = "dmc-12";
  const CalibrationStatistics merged = *Calibrate(job_);
  EXPECT_EQ(merged.n_rows, s.n_rows);
  EXPECT_EQ(merged.v.covariance, s.v.covariance);
  EXPECT_EQ(merged.joint.v.fisher, s.joint.v.fisher);
}

TEST_F(GradientsTest, ErrorsComeThroughAndWithoutThemThereIsNoF) {
  job_.gradients = [](std::span<const int32_t>, uint64_t, QkvObserver*,
                      const std::function<void(const RowGradients&)>&) {
    return Error(StatusCode::kResourceExhausted, "no memory");
  };
  EXPECT_EQ(Calibrate(job_).status().code(), StatusCode::kResourceExhausted);
  job_.gradients = nullptr;
  EXPECT_EQ(Calibrate(job_)->joint.n_tokens, 0);
}

TEST_F(GradientsTest, ProgressCountsBothWaysAndTheFirstSequenceTellsTheTime) {
  std::vector<double> done;
  int n_estimates = 0;
  job_.on_progress = [&](double fraction) { done.push_back(fraction); };
  job_.on_estimate = [&](double seconds) {
    ++n_estimates;
    EXPECT_GT(seconds, 0);
    EXPECT_EQ(seeds_.size(), 1u);
  };
  ASSERT_TRUE(Calibrate(job_).ok());
  EXPECT_DOUBLE_EQ(done.front(), 64 / 6000.0);  // of 500 tokens in three layers; back counts thrice
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_DOUBLE_EQ(done.back(), 1);
  EXPECT_EQ(n_estimates, 1);
}

// A calibration that is killed in its last sequence, and one that goes on after it.
class ResumedCalibrationTest : public GradientsTest {
 protected:
  ResumedCalibrationTest() {
    job_.checkpoint_path = ::testing::TempDir() + "/resumed_calibration.part";
    std::filesystem::remove(job_.checkpoint_path);
    job_.checkpoint_seconds = 0;
    job_.on_checkpoint = [this](const std::string& line) { told_.push_back(line); };
  }
  ~ResumedCalibrationTest() override { std::filesystem::remove(job_.checkpoint_path); }

  void RunUntilKilled() {
    const auto run = job_.gradients;
    job_.gradients = [&](std::span<const int32_t> ids, uint64_t seed, QkvObserver* observer,
                         const std::function<void(const RowGradients&)>& sink) -> Status {
      if (seed == 2) return Error(StatusCode::kAborted, "killed");
      return run(ids, seed, observer, sink);
    };
    EXPECT_EQ(Calibrate(job_).status().code(), StatusCode::kAborted);
    job_.gradients = run;
    EXPECT_TRUE(std::filesystem::exists(job_.checkpoint_path));
    seeds_.clear();
    told_.clear();
  }
  std::string BytesOf(const CalibrationStatistics& statistics) {
    const std::string path = ::testing::TempDir() + "/resumed_calibration.safetensors";
    EXPECT_TRUE(WriteStatistics(statistics, path).ok());
    const std::string bytes = *ReadTextFile(path);
    std::filesystem::remove(path);
    return bytes;
  }

  std::vector<std::string> told_;
};

TEST_F(ResumedCalibrationTest, GivesTheSameStatisticsBitForBit) {
  const std::string expected = BytesOf(*Calibrate(job_));
  std::filesystem::remove(job_.checkpoint_path);
  RunUntilKilled();
  std::vector<double> done;
  job_.on_progress = [&](double fraction) { done.push_back(fraction); };
  EXPECT_EQ(BytesOf(*Calibrate(job_)), expected);
  EXPECT_THAT(seeds_, ElementsAre(2));
  EXPECT_GT(done.front(), 0.8);  // 400 of 500 tokens were done before
  EXPECT_DOUBLE_EQ(done.back(), 1);
  EXPECT_THAT(told_, ElementsAre(::testing::HasSubstr("goes on behind 2 of 3 sequences")));
}

TEST_F(ResumedCalibrationTest, ACheckpointOfAnotherModelOrTextOrDamagedIsRefusedAndAllIsDoneAnew) {
  const std::string expected = BytesOf(*Calibrate(job_));
  const auto expect_anew = [&](const std::string& why) {
    SCOPED_TRACE(why);
    const CalibrationStatistics statistics = *Calibrate(job_);
    EXPECT_THAT(seeds_, ElementsAre(0, 1, 2));
    EXPECT_THAT(told_, ElementsAre(AllOf(::testing::HasSubstr(why), ::testing::HasSubstr("anew"))));
    if (why == "damaged") EXPECT_EQ(BytesOf(statistics), expected);
  };
  RunUntilKilled();
  job_.source.model_hash = "another";
  expect_anew("another model");
  RunUntilKilled();
  std::swap(job_.sequences[0][7], job_.sequences[0][8]);
  expect_anew("another model, text");
  std::swap(job_.sequences[0][7], job_.sequences[0][8]);
  job_.source.model_hash = "m";
  RunUntilKilled();
  const auto n_bytes = std::filesystem::file_size(job_.checkpoint_path);
  std::filesystem::resize_file(job_.checkpoint_path, n_bytes - 100);
  expect_anew("damaged");
}

TEST_F(ResumedCalibrationTest, WhatCannotBeWrittenIsToldOnceAndCalibrationGoesOn) {
  job_.checkpoint_path = ::testing::TempDir() + "/no such folder/part";
  EXPECT_TRUE(Calibrate(job_).ok());
  EXPECT_THAT(told_, ElementsAre(::testing::HasSubstr("should it be interrupted")));
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
