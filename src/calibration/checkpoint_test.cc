#include "calibration/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    place_ = {::testing::TempDir() + "/checkpoint_" + info->name(), std::string(32, 'a')};
    std::filesystem::remove(place_.path);
  }
  ~CheckpointTest() override { std::filesystem::remove(place_.path); }

  SumBytes Bytes() {
    SumBytes bytes;
    AppendSums(&numbers_, &bytes);
    AppendSums(&counts_, &bytes);
    return bytes;
  }

  CheckpointPlace place_;
  std::vector<double> numbers_ = {0.1, -3, 1e300};
  std::vector<int64_t> counts_ = {7};
};

TEST_F(CheckpointTest, SumsComeBackBitForBit) {
  EXPECT_EQ(*ReadCheckpoint(place_, Bytes()), 0);  // no file
  ASSERT_TRUE(WriteCheckpoint(place_, 5, Bytes()).ok());
  numbers_ = {0, 0, 0};
  counts_ = {0};
  EXPECT_EQ(*ReadCheckpoint(place_, Bytes()), 5);
  EXPECT_EQ(numbers_, (std::vector<double>{0.1, -3, 1e300}));
  EXPECT_EQ(counts_, std::vector<int64_t>{7});
}

TEST_F(CheckpointTest, OfAnotherKeyOrSizeOrKindIsRefused) {
  ASSERT_TRUE(WriteCheckpoint(place_, 5, Bytes()).ok());
  const CheckpointPlace other = {place_.path, std::string(32, 'b')};
  EXPECT_THAT(MessageOf(ReadCheckpoint(other, Bytes()).status()), HasSubstr("another model"));
  numbers_.push_back(1);
  EXPECT_THAT(MessageOf(ReadCheckpoint(place_, Bytes()).status()), HasSubstr("another model"));
  std::ofstream(place_.path) << "something else, longer than what a checkpoint begins with........"
                                "........................";
  EXPECT_THAT(MessageOf(ReadCheckpoint(place_, Bytes()).status()), HasSubstr("not a checkpoint"));
  std::ofstream(place_.path).flush();
  EXPECT_EQ(ReadCheckpoint(place_, Bytes()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CheckpointTest, DamageIsFound) {
  ASSERT_TRUE(WriteCheckpoint(place_, 5, Bytes()).ok());
  const auto n_bytes = static_cast<int64_t>(std::filesystem::file_size(place_.path));
  {
    std::fstream file(place_.path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(n_bytes - 10);
    file.put('x');
  }
  EXPECT_EQ(ReadCheckpoint(place_, Bytes()).status().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(WriteCheckpoint(place_, 5, Bytes()).ok());
  std::filesystem::resize_file(place_.path, n_bytes - 1);
  EXPECT_EQ(ReadCheckpoint(place_, Bytes()).status().code(), StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, AFolderThatIsNotThereIsAnError) {
  place_.path += "/missing/sums";
  EXPECT_FALSE(WriteCheckpoint(place_, 1, Bytes()).ok());
}

}  // namespace
}  // namespace kvlathe
