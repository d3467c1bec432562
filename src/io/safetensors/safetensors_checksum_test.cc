#include "io/safetensors/safetensors_checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using Metadata = std::map<std::string, std::string>;

class SafetensorsChecksumTest : public ::testing::Test {
 protected:
  // Whether a file of these fits the checksum.
  bool Fits(const std::vector<TensorToWrite>& tensors, const Metadata& metadata,
            const std::string& crc) {
    const std::string path = folder_ / "file.safetensors";
    Metadata all = metadata;
    all["crc32c"] = crc;
    EXPECT_TRUE(WriteSafetensors(path, tensors, all).ok());
    const auto file = SafetensorsReader::OpenFile(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return HasRightChecksum(*file);
  }

  const ScratchFolder folder_;
  const std::vector<float> a_ = {1, 2, 3, 4}, b_ = {5, 6};
  const std::vector<TensorToWrite> tensors_ = {{"b", DType::kF32, {2}, b_.data()},
                                               {"a", DType::kF32, {2, 2}, a_.data()}};
  const Metadata metadata_ = {{"format", "test"}, {"n", "4"}};
  const std::string crc_ = WithChecksum(tensors_, metadata_).at("crc32c");
};

TEST_F(SafetensorsChecksumTest, FitsWhatItWasMadeOfInAnyOrder) {
  EXPECT_TRUE(Fits(tensors_, metadata_, crc_));
  EXPECT_TRUE(Fits({tensors_[1], tensors_[0]}, metadata_, crc_));
  EXPECT_EQ(WithChecksum(tensors_, WithChecksum(tensors_, metadata_)).at("crc32c"), crc_);
}

TEST_F(SafetensorsChecksumTest, FitsNothingElse) {
  EXPECT_FALSE(Fits({tensors_[0]}, metadata_, crc_));
  EXPECT_FALSE(Fits(tensors_, {{"format", "test"}, {"n", "5"}}, crc_));
  EXPECT_FALSE(Fits(tensors_, {{"format", "test"}, {"m", "4"}}, crc_));
  EXPECT_FALSE(Fits(tensors_, {{"format", "test"}}, crc_));
  EXPECT_FALSE(Fits(tensors_, metadata_, "00000000"));
  std::vector<TensorToWrite> other = tensors_;
  other[1].shape = {4};
  EXPECT_FALSE(Fits(other, metadata_, crc_));
  other = tensors_;
  other[0].name = "c";
  EXPECT_FALSE(Fits(other, metadata_, crc_));
  other = tensors_;
  const std::vector<float> b = {5, 7};
  other[0].data = b.data();
  EXPECT_FALSE(Fits(other, metadata_, crc_));
}

TEST_F(SafetensorsChecksumTest, AFileWithoutOneHasNotTheRightOne) {
  const std::string path = folder_ / "plain.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, tensors_, metadata_).ok());
  const auto file = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(HasRightChecksum(*file));
}

}  // namespace
}  // namespace kvlathe
