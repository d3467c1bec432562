#include "evaluation/merging/merging_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two layers of two heads; head h merges h of every h + 1 positions.
MergedText Merged(int n_tokens) {
  MergedText text{.n_layers = 2, .n_kv_heads = 2, .n_tokens = n_tokens, .begins = {}};
  for (int t = 0; t < n_tokens; ++t) {
    for (int h = 0; h < 4; ++h) text.begins.push_back(t % (h + 1) == 0);
  }
  return text;
}

TEST(MergingJsonTest, HasTheNumbersOfTheTexts) {
  const ModelMerging merging{"cr-2", {Merged(24), Merged(24)}};
  const nlohmann::ordered_json json = MergingJson(merging);
  EXPECT_EQ(json["texts"], 2);
  EXPECT_EQ(json["tokens"], 24);
  EXPECT_DOUBLE_EQ(json["compression"], 96.0 / (24 + 12 + 8 + 6));
  EXPECT_EQ(json["compression_by_head"].dump(), "[[1.0,2.0],[3.0,4.0]]");
  EXPECT_EQ(json["compression_by_length"].size(), 2u);
  EXPECT_EQ(json["compression_by_length"][1]["tokens"], 24);
  EXPECT_DOUBLE_EQ(json["compression_by_length"][1]["most"], 4);
  EXPECT_EQ(json["alpha_by_position"].size(), 24u);
  EXPECT_DOUBLE_EQ(json["alpha_by_position"][3]["alpha"], 0.5);
  EXPECT_EQ(TypicalHead(merging), 1);  // 2 is nearest to 1.92
}

TEST(SegmentsJsonTest, SaysWhereEntriesBegin) {
  const nlohmann::ordered_json json = SegmentsJson({"model", {Merged(10)}}, 3);
  EXPECT_EQ(json["layer"], 1);
  EXPECT_EQ(json["kv_head"], 1);
  EXPECT_EQ(json["entries"], 3);
  EXPECT_THAT(json["begins"].get<std::vector<int>>(), ElementsAre(0, 4, 8));
}

TEST(DrawMergingTest, DrawsModelsAlongTraining) {
  const std::vector<ModelMerging> models = {{"early", {Merged(24)}}, {"late", {Merged(48)}}};
  const SegmentedHead segments{3, {"<s>", "It", " is", " a", " truth", "."}};
  const std::vector<Figure> figures = DrawMerging(models, segments);
  std::vector<std::string> names;
  for (const Figure& figure : figures) {
    names.push_back(figure.file_name);
    EXPECT_TRUE(figure.svg.starts_with("<svg xmlns=")) << figure.file_name;
    EXPECT_TRUE(figure.svg.ends_with("</svg>\n")) << figure.file_name;
    EXPECT_THAT(figure.svg, Not(HasSubstr("nan"))) << figure.file_name;
  }
  EXPECT_THAT(names, ElementsAre("compression-by-head.svg", "compression-by-length.svg",
                                 "alpha-by-position.svg", "segments.svg"));
  EXPECT_THAT(figures[0].svg, HasSubstr("late: 1.92, layer 1, KV head 1: 4.00"));
  EXPECT_THAT(figures[0].svg, HasSubstr("along training"));
  EXPECT_THAT(figures[1].svg, HasSubstr(">early</text>"));
  EXPECT_THAT(figures[2].svg, HasSubstr(">late</text>"));
  EXPECT_THAT(figures[3].svg, HasSubstr("the first 6 of 48 tokens become 2 entries"));
  EXPECT_THAT(figures[3].svg, HasSubstr(">&lt;s&gt;</text>"));
}

TEST(DrawMergingTest, DrawsOneModelWithItsOutermostHeads) {
  const std::vector<ModelMerging> models = {{"model", {Merged(64)}}};
  const std::vector<Figure> figures = DrawMerging(models, {0, {"a"}});
  EXPECT_THAT(figures[0].svg, Not(HasSubstr("along training")));
  EXPECT_THAT(figures[1].svg, HasSubstr(">most merged head</text>"));
}

}  // namespace
}  // namespace kvlathe
