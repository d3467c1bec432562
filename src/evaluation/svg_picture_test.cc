#include "evaluation/svg_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

namespace kvlathe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

// Every element is closed by its own end, and only known entities are there.
void ExpectWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)([^<>]*?)(/?)>");
  std::string rest = svg;
  for (std::sregex_iterator it(svg.begin(), svg.end(), tag), end; it != end; ++it) {
    if ((*it)[4] == "/") continue;
    if ((*it)[1] != "/") {
      open.push_back((*it)[2]);
      continue;
    }
    ASSERT_FALSE(open.empty());
    EXPECT_EQ(open.back(), (*it)[2]);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
  EXPECT_THAT(std::regex_replace(svg, tag, ""), Not(HasSubstr("<")));
  EXPECT_EQ(Matches(svg, "(&(?!amp;|lt;|gt;|quot;|#39;))").size(), 0u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

HeatMapPanels Maps(int n_panels, int n_rows, int n_columns) {
  HeatMapPanels chart = {.title = "a < b",
                         .row_name = "layer",
                         .column_name = "KV head",
                         .value_name = "ratio",
                         .n_rows = n_rows,
                         .n_columns = n_columns};
  for (int i = 0; i < n_panels; ++i) {
    HeatMapPanel& panel = chart.panels.emplace_back();
    panel.title = "map " + std::to_string(i);
    for (int v = 0; v < n_rows * n_columns; ++v) panel.values.push_back(1 + i + 0.5 * v);
  }
  return chart;
}

TEST(HeatMapPanelsTest, HaveOneScaleAndACellForEveryValue) {
  const std::string svg = ToSvgFile(Maps(2, 3, 2));
  ExpectWellFormed(svg);
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 "));
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_EQ(Matches(svg, "<title>(map \\d, layer \\d, KV head \\d: [0-9.]+)</title>").size(), 12u);
  // The least value of all is dark, the largest bright.
  EXPECT_THAT(svg, HasSubstr("fill=\"#181458\"><title>map 0, layer 0, KV head 0: 1.00<"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#fce24e\"><title>map 1, layer 2, KV head 1: 4.50<"));
  EXPECT_THAT(svg, HasSubstr(">ratio</text>"));
  EXPECT_EQ(Matches(svg, ">(4\\.50)</text>").size(), 2u);  // in its cell and at the legend
}

TEST(HeatMapPanelsTest, ColoursMayGoByTheLogarithm) {
  HeatMapPanels chart = Maps(1, 1, 3);
  chart.panels[0].values = {1, 32, 1024};
  EXPECT_THAT(ToSvgFile(chart),
              Not(HasSubstr("fill=\"#168c8a\"><title>map 0, layer 0, KV head 1: 32.0<")));
  chart.is_log = true;  // 32 is half way
  const std::string svg = ToSvgFile(chart);
  EXPECT_THAT(svg, HasSubstr("fill=\"#168c8a\"><title>map 0, layer 0, KV head 1: 32.0<"));
  EXPECT_EQ(Matches(svg, ">(32\\.0|1024|1\\.00|5\\.66|181)</text>").size(), 3u + 5u);
}

TEST(HeatMapPanelsTest, StayInsideThePicture) {
  for (const auto& [n_panels, n_rows, n_columns] :
       {std::array{1, 2, 1}, {1, 80, 8}, {7, 32, 32}, {5, 6, 2}, {3, 40, 64}}) {
    const std::string svg = ToSvgFile(Maps(n_panels, n_rows, n_columns));
    ExpectWellFormed(svg);
    EXPECT_LE(std::stod(Matches(svg, "viewBox=\"0 0 (\\d+) ").at(0)), 800);
    const double height = std::stod(Matches(svg, "viewBox=\"0 0 \\d+ (\\d+)\"").at(0));
    for (const std::string& x : Matches(svg, "<rect x=\"([0-9.]+)\"[^>]*><title>")) {
      EXPECT_LT(std::stod(x), 680) << n_panels << " " << n_columns;
    }
    for (const std::string& y : Matches(svg, " y=\"(-?[0-9.]+)\"")) {
      EXPECT_LE(std::stod(y), height);
      EXPECT_GE(std::stod(y), 0);
    }
  }
}

TEST(SegmentedTextTest, PiecesOfASegmentShareAColourThatTheNextHasNot) {
  SegmentedText text = {
      .title = "text",
      .subtitle = "under it",
      .of_several = "several",
      .of_one = "one",
      .pieces = {{"a", 0}, {" <b", 0}, {"c", 1}, {"d", 2}, {"e", 2}, {"f", 3}, {"g", 3}}};
  const std::string svg = ToSvgFile(text);
  ExpectWellFormed(svg);
  const std::vector<std::string> fills =
      Matches(svg, "<rect [^>]*fill=\"(#[0-9a-f]+)\"/><text class=\"letters\"");
  ASSERT_EQ(fills.size(), 7u);
  EXPECT_EQ(fills[0], fills[1]);
  EXPECT_EQ(fills[2], "#fff");
  EXPECT_EQ(fills[3], fills[4]);
  EXPECT_EQ(fills[5], fills[6]);
  EXPECT_EQ((std::set{fills[0], fills[2], fills[3], fills[5]}).size(), 4u);
  EXPECT_THAT(svg, HasSubstr("> &lt;b</text>"));
  EXPECT_THAT(svg, HasSubstr(">several</text>"));
}

TEST(SegmentedTextTest, LinesEndAtNewlinesAndAtTheMargin) {
  SegmentedText text = {
      .title = "text", .subtitle = "", .of_several = "", .of_one = "", .pieces = {}};
  text.pieces = {{"first\n", 0}, {"\u00e4\u00f6", 1}, {"", 2}};
  for (int i = 0; i < 60; ++i) text.pieces.push_back({" word", 3 + i});
  const std::string svg = ToSvgFile(text);
  ExpectWellFormed(svg);
  const std::vector<std::string> ys = Matches(svg, "class=\"letters\"[^>]* y=\"([0-9.]+)\"");
  ASSERT_EQ(ys.size(), 63u);
  EXPECT_EQ((std::set<std::string>(ys.begin(), ys.end())).size(), 5u);
  EXPECT_LT(std::stod(ys[0]), std::stod(ys[1]));
  EXPECT_THAT(svg, HasSubstr("first\u21b5</text>"));
  EXPECT_THAT(svg, HasSubstr(">\u00b7</text>"));  // a token without a whole character
  for (const std::string& x : Matches(svg, "class=\"letters\"[^>]* x=\"([0-9.]+)\"")) {
    EXPECT_LT(std::stod(x), 760);
  }
}

}  // namespace
}  // namespace kvlathe
