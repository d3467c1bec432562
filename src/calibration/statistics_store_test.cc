#include "calibration/statistics_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "analysis/bases/lathe_maps.h"
#include "io/files.h"

namespace kvlathe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr StatisticsShape kShape = {1, 2, 1, 16};

CalibrationStatistics StatisticsOf(const std::string& model_hash) {
  CalibrationStatistics statistics = MakeStatistics(kShape);
  statistics.source = {model_hash, "none", "random", 0, 100, 100, 100};
  statistics.n_rows = 96;
  statistics.n_sink_rows = 4;
  return statistics;
}

class StatisticsStoreTest : public ::testing::Test {
 protected:
  StatisticsStoreTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = ::testing::TempDir() + "/statistics_store_" + info->name();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ + "/model");
    setenv("XDG_CACHE_HOME", (root_ + "/xdg").c_str(), 1);
    request_.model_basis_path = root_ + "/model/basis.safetensors";
    request_.shape = kShape;
    request_.model_hash = "hash1";
    request_.rope = "none";
    request_.settings = "random 8192 seed 0";
  }
  ~StatisticsStoreTest() override { unsetenv("XDG_CACHE_HOME"); }

  StatusOr<FoundStatistics> Find() {
    return FindOrCalibrate(request_,
                           [&](const CalibrationCall& call) -> StatusOr<CalibrationStatistics> {
                             ++n_calibrations_;
                             lacking_ = call.lacking;
                             last_call_ = call;
                             return StatisticsOf(request_.model_hash);
                           });
  }

  std::string root_;
  StatisticsRequest request_;
  int n_calibrations_ = 0;
  std::string lacking_;  // what the last calibration was told
  CalibrationCall last_call_;
};

TEST_F(StatisticsStoreTest, CalibrationRunsOnceAndIsKept) {
  auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->is_new);
  EXPECT_THAT(found->warning, IsEmpty());
  EXPECT_THAT(found->path, StartsWith(root_ + "/xdg/kvlathe/"));
  found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->is_new);
  EXPECT_EQ(n_calibrations_, 1);
  for (std::string StatisticsRequest::*key :
       {&StatisticsRequest::settings, &StatisticsRequest::model_hash}) {
    const std::string path = KeptStatisticsPath(request_);
    request_.*key = "other";
    EXPECT_NE(KeptStatisticsPath(request_), path);
  }
}

TEST_F(StatisticsStoreTest, FilesThatHoldMoreAreUsed) {
  request_.contents = {.n_positions = 2048, .gradients = true};
  ASSERT_TRUE(Find().ok());
  request_.contents.gradients = false;
  EXPECT_FALSE(Find()->is_new);
  // A longer context has rows after RoPE of its own; what reads none of them takes any.
  request_.contents.n_positions = 4096;
  request_.model_positions = {2048, 4096};
  request_.any_positions = true;
  EXPECT_FALSE(Find()->is_new);
  request_.any_positions = false;
  EXPECT_TRUE(Find()->is_new);
  EXPECT_EQ(lacking_, "what is kept is for contexts of 2048 tokens");
  EXPECT_EQ(n_calibrations_, 2);
}

TEST_F(StatisticsStoreTest, WhatLacksIsSaidAndNeedlessFilesGo) {
  const std::string without = KeptStatisticsPath(request_);
  ASSERT_TRUE(Find().ok());
  EXPECT_TRUE(FileExists(without));
  request_.contents.gradients = true;
  ASSERT_TRUE(Find().ok());
  EXPECT_EQ(lacking_, "what is kept has no gradients");
  EXPECT_FALSE(FileExists(without));
  request_.contents.gradients = false;
  EXPECT_EQ(Find()->path, KeptStatisticsPath([&] {
              StatisticsRequest with = request_;
              with.contents.gradients = true;
              return with;
            }()));
  EXPECT_EQ(n_calibrations_, 2);
}

// Maps that come with kvlathe stand behind what was calibrated, and before a calibration.
TEST_F(StatisticsStoreTest, MapsServeWhoReadsNothingElse) {
  request_.maps_path = root_ + "/maps.safetensors";
  CalibrationStatistics statistics = StatisticsOf("hash1");
  statistics.joint.n_tokens = 100;
  const int n_positions = statistics.source.n_positions;
  request_.contents.n_positions = n_positions;
  ASSERT_TRUE(WriteLatheMaps(statistics, KeyRows::kBlock, request_.maps_path).ok());
  request_.maps_of = KeyRows::kBlock;
  auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, request_.maps_path);
  EXPECT_EQ(found->statistics.maps_of, KeyRows::kBlock);
  EXPECT_EQ(n_calibrations_, 0);
  // Those of other positions are for who reads no rows after RoPE.
  request_.contents.n_positions = 2 * n_positions;
  request_.any_positions = true;
  EXPECT_EQ(Find()->path, request_.maps_path);
  request_.any_positions = false;
  EXPECT_TRUE(Find()->is_new);
  request_.contents.n_positions = n_positions;
  n_calibrations_ = 0;
  // What they cannot answer is calibrated, and a warning says why they were not taken.
  request_.maps_of = KeyRows::kAfterRope;
  found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(n_calibrations_, 1);
  EXPECT_THAT(found->warning, HasSubstr("lathe(keys=block) alone"));
  // Now what was calibrated is there.
  request_.maps_of = KeyRows::kBlock;
  EXPECT_EQ(Find()->path, KeptStatisticsPath(request_));
  EXPECT_EQ(n_calibrations_, 1);
  // A file that the user names is no less strict.
  request_.basis_path = request_.maps_path;
  EXPECT_TRUE(Find().ok());
  request_.maps_of.reset();
  EXPECT_EQ(Find().status().code(), StatusCode::kInvalidArgument);
}

TEST_F(StatisticsStoreTest, AnUnwritableCacheDirectoryIsKnownBeforeTheWorkAndAWarning) {
  // A file where the directory should be fails for every user, root included.
  ASSERT_TRUE(WriteFileAtomically(root_ + "/xdg", "in the way").ok());
  const auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->is_new);
  EXPECT_THAT(found->path, IsEmpty());
  EXPECT_THAT(MessageOf(last_call_.keeping), HasSubstr(root_ + "/xdg/kvlathe"));
  EXPECT_THAT(last_call_.checkpoint_path, IsEmpty());
  EXPECT_THAT(found->warning, HasSubstr("the calibration is not kept: "));
}

TEST_F(StatisticsStoreTest, TheCheckpointLiesBesideTheFileAndGoesWithTheWork) {
  const std::string path = KeptStatisticsPath(request_);
  const auto found = FindOrCalibrate(
      request_, [&](const CalibrationCall& call) -> StatusOr<CalibrationStatistics> {
        EXPECT_TRUE(call.keeping.ok()) << call.keeping;
        EXPECT_EQ(call.checkpoint_path, CheckpointPathOf(path));
        std::ofstream(call.checkpoint_path) << "sums";
        return StatisticsOf(request_.model_hash);
      });
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(FileExists(path));
  EXPECT_FALSE(FileExists(CheckpointPathOf(path)));
}

TEST_F(StatisticsStoreTest, ACalibrationThatFailsLeavesItsCheckpoint) {
  const auto found =
      FindOrCalibrate(request_, [](const CalibrationCall& call) -> StatusOr<CalibrationStatistics> {
        std::ofstream(call.checkpoint_path) << "sums";
        return Error(StatusCode::kAborted, "interrupted");
      });
  EXPECT_EQ(found.status().code(), StatusCode::kAborted);
  EXPECT_TRUE(FileExists(CheckpointPathOf(KeptStatisticsPath(request_))));
}

TEST(CheckCanKeepTest, AFolderThatTakesNoFilesOrHasNoSpaceIsNamed) {
  const std::string root = ::testing::TempDir() + "/check_can_keep";
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  EXPECT_TRUE(CheckCanKeep(root + "/basis", kShape, {}).ok());
  EXPECT_FALSE(CheckCanKeep(root + "/missing/basis", kShape, {}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(root));
  std::ofstream(root + "/file") << "no folder";
  EXPECT_THAT(MessageOf(CheckCanKeep(root + "/file/basis", kShape, {})), HasSubstr(root + "/file"));
  EXPECT_FALSE(CheckCanKeep("", kShape, {}).ok());
  // More than any disk has.
  const StatisticsShape vast = {1 << 20, 1 << 12, 1 << 12, 512};
  EXPECT_THAT(MessageOf(CheckCanKeep(root + "/basis", vast, {})),
              AllOf(HasSubstr("are free, and calibration takes"), HasSubstr("XDG_CACHE_HOME")));
  std::filesystem::remove_all(root);
}

TEST(BytesWhileCalibratingTest, AreThoseOfTheFileAndTwiceAsManyOfSums) {
  const StatisticsShape shape = {3, 6, 2, 64};
  const std::string path = ::testing::TempDir() + "/bytes_while_calibrating";
  CalibrationStatistics statistics = MakeStatistics(shape);
  statistics.source = {"hash", "none", "random", 0, 100, 100, 100};
  statistics.n_rows = 96;
  ASSERT_TRUE(WriteStatistics(statistics, path).ok());
  const auto n_bytes = static_cast<double>(std::filesystem::file_size(path));
  // Sums hold the angles of keys too, which the file does not.
  EXPECT_NEAR(static_cast<double>(BytesWhileCalibrating(shape, {})), 3.4 * n_bytes, 0.15 * n_bytes);
  std::filesystem::remove(path);
}

TEST_F(StatisticsStoreTest, ADamagedKeptFileIsReplacedWithAWarning) {
  ASSERT_TRUE(Find().ok());
  ASSERT_TRUE(WriteFileAtomically(KeptStatisticsPath(request_), "damaged").ok());
  const auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->is_new);
  EXPECT_THAT(found->warning, HasSubstr("calibrated again"));
  EXPECT_THAT(lacking_, IsEmpty());
  EXPECT_FALSE(Find()->is_new);
}

TEST_F(StatisticsStoreTest, TheFileBesideTheModelComesBeforeTheKeptOne) {
  const std::string beside_model = root_ + "/model/basis.safetensors";
  ASSERT_TRUE(WriteStatistics(StatisticsOf("hash1"), beside_model).ok());
  EXPECT_EQ(Find()->path, beside_model);
  EXPECT_EQ(n_calibrations_, 0);
}

TEST_F(StatisticsStoreTest, AFileForAShorterContextIsAWarning) {
  ASSERT_TRUE(WriteStatistics(StatisticsOf("hash1"), request_.model_basis_path).ok());
  const int n_positions = Find()->statistics.source.n_positions;
  EXPECT_GT(n_positions, 0);
  request_.context_positions = n_positions;
  EXPECT_THAT(Find()->warning, IsEmpty());
  request_.context_positions = n_positions + 1;
  EXPECT_THAT(Find()->warning, HasSubstr("calibrated for contexts of"));
}

TEST_F(StatisticsStoreTest, FilesOfAnotherModelAreRefusedWhereTheUserPutThem) {
  ASSERT_TRUE(WriteStatistics(StatisticsOf("hash2"), root_ + "/model/basis.safetensors").ok());
  EXPECT_EQ(Find().status().code(), StatusCode::kInvalidArgument);
  request_.basis_path = root_ + "/given.safetensors";
  EXPECT_EQ(Find().status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteStatistics(StatisticsOf("hash1"), request_.basis_path).ok());
  EXPECT_EQ(Find()->path, request_.basis_path);
  EXPECT_EQ(n_calibrations_, 0);
}

TEST(UserCacheDirectoryTest, FallsBackToHome) {
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(UserCacheDirectory(), "/home/someone/.cache/kvlathe");
  unsetenv("HOME");
  EXPECT_EQ(UserCacheDirectory(), "");
  unsetenv("XDG_CACHE_HOME");
}

// A file of rows that merge otherwise is refused, and its own name keeps it beside the other.
TEST_F(StatisticsStoreTest, MergedRowsHaveAFileOfTheirOwn) {
  EXPECT_EQ(StatisticsFileName(""), "basis.safetensors");
  EXPECT_EQ(StatisticsFileName("dmc-12"), "basis-dmc-12.safetensors");
  CalibrationStatistics merged = StatisticsOf("hash1");
  merged.source.merging = "dmc-12";
  const std::string path = root_ + "/merged.safetensors";
  ASSERT_TRUE(WriteStatistics(merged, path).ok());
  request_.basis_path = path;
  EXPECT_THAT(MessageOf(Find().status()),
              AllOf(HasSubstr("merges by dmc-12, and this one does not merge"),
                    HasSubstr("kvlathe calibrate")));
  request_.merging = "dmc-12";
  const auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->statistics.source.merging, "dmc-12");
  request_.merging = "pool-4";
  EXPECT_THAT(MessageOf(Find().status()),
              HasSubstr("merges by dmc-12, and this one merges by pool-4"));
  ASSERT_TRUE(WriteStatistics(StatisticsOf("hash1"), path).ok());
  EXPECT_THAT(MessageOf(Find().status()),
              HasSubstr("does not merge, and this one merges by pool-4"));
  EXPECT_EQ(n_calibrations_, 0);
}

}  // namespace
}  // namespace kvlathe
