#include "io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/gguf_test_writer.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

TEST(Gguf, ReadsBackWhatTheWriterWrote) {
  const ScratchFolder folder;
  GgufTestWriter writer;
  writer.AddText("general.architecture", "llama");
  writer.AddInteger("llama.block_count", 2);
  writer.AddTexts("tokens", {"<s>", "a"});
  writer.AddF32("norm", {2}, {1.5f, -2.0f});
  writer.AddF32("output", {2, 3}, {1, 2, 3, 4, 5, 6});
  writer.Write(folder / "a.gguf");
  const auto file = GgufFile::Open(folder / "a.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->TextOr("general.architecture", ""), "llama");
  EXPECT_EQ(*file->IntegerOr("llama.block_count", 0, 0, 10), 2);
  EXPECT_THAT(**file->Texts("tokens"), testing::ElementsAre("<s>", "a"));
  const auto output = file->GetTensor("output", {2, 3});
  ASSERT_TRUE(output.ok()) << output.status();
  float values[6];
  DequantizeBlocks((*output)->type, (*output)->data, 6, values);
  EXPECT_THAT(values, testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

}  // namespace
}  // namespace kvlathe
