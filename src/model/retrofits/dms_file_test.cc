#include "model/retrofits/dms_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "model/small_config.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

const std::map<std::string, std::string> kMetadata = {{"dms_window_size", "64"},
                                                      {"dms_alpha_scale", "50"},
                                                      {"dms_initial_alpha_offset", "1.5"},
                                                      {"dms_alpha_per", "head"},
                                                      {"dms_separate_alpha", "true"}};

class DmsFile : public testing::Test {
 protected:
  void Write(const std::map<std::string, std::string>& metadata, int n_layers = 2) {
    std::vector<TensorToWrite> tensors;
    for (int l = 0; l < n_layers; ++l) {
      tensors.push_back({DmsNormName(l) + ".weight", DType::kF32, {64}, numbers_.data()});
      tensors.push_back({DmsProjectionName(l) + ".weight", DType::kF32, {2, 64}, numbers_.data()});
    }
    ASSERT_TRUE(WriteSafetensors(path_, tensors, metadata).ok());
  }
  std::string ErrorOfOpening() {
    ModelConfig config = SmallConfig();
    return MessageOf(OpenDmsFile(path_, &config).status());
  }

  ScratchFolder folder_;
  const std::string path_ = folder_ / "model.dms.safetensors";
  const std::vector<float> numbers_ = std::vector<float>(128, 0.5F);
};

TEST_F(DmsFile, SaysWhatWasLearned) {
  Write(kMetadata);
  ModelConfig config = SmallConfig();
  auto reader = OpenDmsFile(path_, &config);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(config.dms.has_value());
  EXPECT_EQ(config.dms->window, 64);
  EXPECT_EQ(config.dms->scale, 50);
  EXPECT_EQ(config.dms->offset, 1.5F);
  const auto source = WithDmsTensors(MakeRandomSource(3), *std::move(reader));
  const auto learned = source->Get(DmsProjectionName(1) + ".weight", {2, 64});
  ASSERT_TRUE(learned.ok()) << learned.status();
  float first = 0;
  learned->Read(0, 1, &first);
  EXPECT_EQ(first, 0.5F);
  EXPECT_FALSE(source->Has(DmsProjectionName(1) + ".bias"));
  EXPECT_TRUE(source->Get("model.norm.weight", {64}).ok());
  EXPECT_EQ(source->Get(DmsProjectionName(1) + ".weight", {4, 64}).status().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(source->Get(DmsProjectionName(2) + ".weight", {2, 64}).status().code(),
            StatusCode::kNotFound);
}

TEST_F(DmsFile, LiesBesideItsModel) {
  EXPECT_EQ(DmsPathBeside("/models/smollm2.gguf"), "/models/smollm2.dms.safetensors");
  EXPECT_EQ(DmsPathBeside(folder_ / ""), (folder_ / "") + "/dms.safetensors");
}

TEST_F(DmsFile, IsRefusedWhereItIsNone) {
  EXPECT_THAT(ErrorOfOpening(), HasSubstr(path_));
  Write({});
  EXPECT_THAT(ErrorOfOpening(), HasSubstr("lack dms_window_size"));
  for (const auto& [key, wrong] :
       {std::pair("dms_window_size", "0"), std::pair("dms_window_size", "many"),
        std::pair("dms_alpha_scale", "nan"), std::pair("dms_alpha_per", "token"),
        std::pair("dms_separate_alpha", "false")}) {
    std::map<std::string, std::string> metadata = kMetadata;
    metadata[key] = wrong;
    Write(metadata);
    EXPECT_THAT(ErrorOfOpening(), HasSubstr("dms_")) << key << '=' << wrong;
  }
  std::map<std::string, std::string> in_queries = kMetadata;
  in_queries.erase("dms_separate_alpha");
  Write(in_queries);
  EXPECT_THAT(ErrorOfOpening(), HasSubstr("dms_separate_alpha in its metadata is not true"));
  Write(kMetadata, 3);
  EXPECT_THAT(ErrorOfOpening(), HasSubstr("the model has 2 layers"));
  const auto whole = ReadTextFile(path_);
  ASSERT_TRUE(whole.ok());
  std::ofstream(path_, std::ios::binary) << whole->substr(0, whole->size() / 2);
  EXPECT_THAT(ErrorOfOpening(), HasSubstr(path_));
}

TEST_F(DmsFile, IsNotTakenBesideAModelThatBringsItsOwn) {
  Write(kMetadata);
  ModelConfig config = SmallConfig();
  config.dms = DmsConfig{};
  EXPECT_THAT(MessageOf(OpenDmsFile(path_, &config).status()), HasSubstr("leave the file out"));
}

}  // namespace
}  // namespace kvlathe
