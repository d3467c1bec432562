#include "analysis/statistics/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/random.h"
#include "io/files.h"

namespace kvlathe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string TestPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

CalibrationStatistics RandomStatistics() {
  CalibrationStatistics s = MakeStatistics({2, 4, 2, 16});
  s.source = {"abc123", "default theta=10000", "random", 42, 8192, 1024, 4096};
  s.n_rows = 8160;
  s.n_sink_rows = 32;
  s.joint.n_tokens = 6000;
  s.held_back.n_tokens = 2000;
  Random random(1);
  for (std::vector<float>* values : {&s.q_post.covariance,
                                     &s.k_post.covariance,
                                     &s.k_pre.mean,
                                     &s.v.covariance,
                                     &s.q_pre.covariance,
                                     &s.q_pre.mean,
                                     &s.sink_v.covariance,
                                     &s.v_histograms.counts,
                                     &s.k_post_histograms.center,
                                     &s.joint.k.mean,
                                     &s.joint.k_pre.covariance,
                                     &s.joint.v.fisher,
                                     &s.joint.v.weighed_covariance,
                                     &s.held_back.k.weighed_mean,
                                     &s.held_back.k.fisher,
                                     &s.held_back.v.covariance,
                                     &s.through_all.v.fisher,
                                     &s.through_all.k.fisher,
                                     &s.through_all.k_centred.weighed_mean,
                                     &s.through_all.k_pre.weighed_covariance}) {
    EXPECT_FALSE(values->empty());
    for (float& x : *values) x = static_cast<float>(random.Normal());
  }
  return s;
}

TEST(StatisticsTest, WhatIsWrittenIsRead) {
  const CalibrationStatistics written = RandomStatistics();
  const std::string path = TestPath("statistics_round_trip.safetensors");
  ASSERT_TRUE(WriteStatistics(written, path).ok());
  const auto read = ReadStatistics(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->shape, written.shape);
  EXPECT_EQ(read->source.model_hash, "abc123");
  EXPECT_EQ(read->source.rope, written.source.rope);
  EXPECT_EQ(read->source.token_source, "random");
  EXPECT_EQ(read->source.seed, 42u);
  EXPECT_EQ(read->source.n_tokens, 8192);
  EXPECT_EQ(read->source.sequence_tokens, 1024);
  EXPECT_EQ(read->source.n_positions, 4096);
  EXPECT_EQ(read->n_rows, 8160);
  EXPECT_EQ(read->n_sink_rows, 32);
  EXPECT_EQ(read->q_post.covariance, written.q_post.covariance);
  EXPECT_EQ(read->k_post.covariance, written.k_post.covariance);
  EXPECT_EQ(read->k_pre.mean, written.k_pre.mean);
  EXPECT_EQ(read->q_pre.covariance, written.q_pre.covariance);
  EXPECT_EQ(read->sink_v.covariance, written.sink_v.covariance);
  EXPECT_EQ(read->v_histograms.counts, written.v_histograms.counts);
  EXPECT_EQ(read->k_post_histograms.center, written.k_post_histograms.center);
  EXPECT_EQ(read->joint.n_tokens, 6000);
  EXPECT_EQ(read->joint.k.mean, written.joint.k.mean);
  EXPECT_EQ(read->joint.k_pre.covariance, written.joint.k_pre.covariance);
  EXPECT_EQ(read->joint.v.fisher, written.joint.v.fisher);
  EXPECT_EQ(read->joint.v.weighed_covariance, written.joint.v.weighed_covariance);
  EXPECT_EQ(read->held_back.k.weighed_mean, written.held_back.k.weighed_mean);
  EXPECT_EQ(read->held_back.n_tokens, 2000);
  EXPECT_EQ(read->held_back.k.fisher, written.held_back.k.fisher);
  EXPECT_EQ(read->held_back.v.covariance, written.held_back.v.covariance);
  EXPECT_EQ(read->through_all.v.fisher, written.through_all.v.fisher);
  EXPECT_EQ(read->through_all.k_centred.fisher, written.through_all.k.fisher);
  EXPECT_EQ(read->through_all.k_centred.weighed_mean, written.through_all.k_centred.weighed_mean);
  EXPECT_EQ(read->through_all.k_pre.weighed_covariance,
            written.through_all.k_pre.weighed_covariance);
  // What all queries have in common with far ones.
  EXPECT_EQ(read->through_all.k_pre.covariance, written.joint.k_pre.covariance);
  EXPECT_EQ(read->through_all.k.mean, written.joint.k.mean);
  EXPECT_EQ(read->through_all.n_tokens, 6000);
}

TEST(StatisticsTest, AsManyHeadsAreJoinedAsDivideTheHeadsAndFit) {
  EXPECT_EQ(JointHeads({1, 9, 3, 64}), 3);
  EXPECT_EQ(JointHeads({1, 32, 8, 128}), 4);
  EXPECT_EQ(JointHeads({1, 12, 12, 64}), 6);  // 8 would fit, but do not divide 12
  EXPECT_EQ(JointHeads({1, 4, 1, 256}), 1);
  EXPECT_EQ(JointHeads({1, 4, 4, 1024}), 1);
  const CalibrationStatistics s = MakeStatistics({2, 32, 8, 128});
  EXPECT_EQ(s.joint.k.mean.size(), 2u * 2 * 512);
  EXPECT_EQ(s.held_back.v.fisher.size(), 2u * 2 * 512 * 512);
}

TEST(StatisticsTest, GramMatricesAcrossHeadsAreReadWhereTheyAreWritten) {
  CalibrationStatistics written = RandomStatistics();
  const std::string path = TestPath("statistics_across_heads.safetensors");
  ASSERT_TRUE(WriteStatistics(written, path).ok());
  EXPECT_TRUE(ReadStatistics(path)->k_pre_across_heads.empty());
  for (int i = 0; i < 2 * 32 * 32; ++i) {
    written.k_pre_across_heads.push_back(static_cast<float>(i));
    written.v_across_heads.push_back(static_cast<float>(-i));
  }
  ASSERT_TRUE(WriteStatistics(written, path).ok());
  const auto read = ReadStatistics(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->k_pre_across_heads, written.k_pre_across_heads);
  EXPECT_EQ(read->v_across_heads, written.v_across_heads);
  EXPECT_EQ(read->v.covariance, written.v.covariance);
}

TEST(StatisticsTest, StatisticsOfAnotherModelAreRefusedWithTheWayOut) {
  const CalibrationStatistics s = RandomStatistics();
  EXPECT_TRUE(CheckStatisticsMatch(s, "f", s.shape, "abc123", s.source.rope).ok());
  const auto refused = [&](const StatisticsShape& shape, const char* hash, const char* rope) {
    const Status status = CheckStatisticsMatch(s, "f", shape, hash, rope);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(status), HasSubstr("kvlathe calibrate"));
  };
  refused(s.shape, "abc124", "default theta=10000");
  refused(s.shape, "abc123", "yarn");
  refused({3, 4, 2, 16}, "abc123", "default theta=10000");
}

TEST(StatisticsTest, DamagedFilesAreErrors) {
  const std::string path = TestPath("statistics_damaged.safetensors");
  CalibrationStatistics s = RandomStatistics();
  ASSERT_TRUE(WriteStatistics(s, path).ok());
  const std::string whole = *ReadTextFile(path);
  for (const size_t n_bytes :
       {size_t{0}, size_t{7}, size_t{200}, whole.size() / 2, whole.size() - 1}) {
    ASSERT_TRUE(WriteFileAtomically(path, std::string_view(whole).substr(0, n_bytes)).ok());
    EXPECT_EQ(ReadStatistics(path).status().code(), StatusCode::kDataLoss) << n_bytes;
  }
  std::string other = whole;
  other.replace(other.find("\"n_heads\":\"4\""), 13, "\"n_heads\":\"6\"");
  ASSERT_TRUE(WriteFileAtomically(path, other).ok());
  EXPECT_FALSE(ReadStatistics(path).ok());
  other = whole;
  other.replace(other.find("\"format_version\":\"15\""), 21, "\"format_version\":\"07\"");
  ASSERT_TRUE(WriteFileAtomically(path, other).ok());
  EXPECT_THAT(MessageOf(ReadStatistics(path).status()),
              AllOf(HasSubstr("format version 07"), HasSubstr("kvlathe calibrate")));

  s.v.covariance[3] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(WriteStatistics(s, path).ok());
  EXPECT_THAT(MessageOf(ReadStatistics(path).status()), HasSubstr("not finite"));
}

// Bits all over the header and the data, in every place of a byte.
TEST(StatisticsTest, AFlippedBitAnywhereIsRefusedInOneLine) {
  const std::string path = TestPath("statistics_flipped.safetensors");
  CalibrationStatistics s = MakeStatistics({1, 1, 1, 2});
  s.source = RandomStatistics().source;
  s.n_rows = 8160;
  ASSERT_TRUE(WriteStatistics(s, path).ok());
  ASSERT_TRUE(ReadStatistics(path).ok());
  const std::string whole = *ReadTextFile(path);
  for (size_t bit = 0; bit < 8 * whole.size(); bit += 197) {
    std::string other = whole;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ 1 << bit % 8);
    ASSERT_TRUE(WriteFileAtomically(path, other).ok());
    const Status status = ReadStatistics(path).status();
    ASSERT_FALSE(status.ok()) << "bit " << bit;
    EXPECT_THAT(MessageOf(status), HasSubstr(path));
    EXPECT_THAT(MessageOf(status), Not(HasSubstr("\n")));
  }
}

TEST(StatisticsTest, OtherSafetensorsFilesAreRefused) {
  const std::string path = KVLATHE_SOURCE_DIR "/models/lathe-nano/model.safetensors";
  EXPECT_THAT(MessageOf(ReadStatistics(path).status()), HasSubstr("not a file of calibration"));
}

}  // namespace
}  // namespace kvlathe
