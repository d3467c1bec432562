#include "runtime/default_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "io/files.h"
#include "io/gguf/gguf_test_writer.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

class DefaultSamplingTest : public ::testing::Test {
 protected:
  StatusOr<SamplingParams> OfDirectory(const std::string& generation_config) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / "generation_config.json", generation_config).ok());
    return DefaultSampling(folder_.path());
  }
  const ScratchFolder folder_;
};

TEST_F(DefaultSamplingTest, WithoutAWordOfTheFileOneTemperature) {
  for (const auto& sampling : {DefaultSampling(""), DefaultSampling(folder_.path()),
                               OfDirectory("{}"), OfDirectory(R"({"eos_token_id": 2})")}) {
    ASSERT_TRUE(sampling.ok()) << sampling.status();
    EXPECT_EQ(sampling->temperature, kDefaultTemperature);
    EXPECT_EQ(sampling->top_p, 1);
    EXPECT_EQ(sampling->top_k, 0);
  }
}

TEST_F(DefaultSamplingTest, OfADirectory) {
  const auto sampling = OfDirectory(
      R"({"do_sample": true, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": null,
          "repetition_penalty": 1.1})");
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_FLOAT_EQ(sampling->temperature, 0.5F);
  EXPECT_EQ(sampling->top_k, 20);
  EXPECT_FLOAT_EQ(sampling->top_p, 0.9F);
  EXPECT_EQ(sampling->min_p, 0);
  EXPECT_FLOAT_EQ(sampling->repetition_penalty, 1.1F);
  EXPECT_EQ(OfDirectory(R"({"do_sample": false, "temperature": 0.5})")->temperature, 0);
}

TEST_F(DefaultSamplingTest, WhatCannotBeNamesTheFile) {
  for (const char* text : {R"({"temperature": -1})", R"({"temperature": "hot"})", R"({"top_p": 3})",
                           R"({"top_k": 1e300})"}) {
    const Status status = OfDirectory(text).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(MessageOf(status), HasSubstr("generation_config.json"));
  }
}

TEST_F(DefaultSamplingTest, OfAGgufFile) {
  GgufTestWriter writer;
  writer.AddText("general.architecture", "llama");
  writer.AddFloat("general.sampling.temp", 0.25F);
  writer.AddInteger("general.sampling.top_k", 7);
  const std::string path = folder_ / "model.gguf";
  writer.Write(path);
  const auto sampling = DefaultSampling(path);
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_FLOAT_EQ(sampling->temperature, 0.25F);
  EXPECT_EQ(sampling->top_k, 7);
  EXPECT_EQ(sampling->top_p, 1);
}

}  // namespace
}  // namespace kvlathe
