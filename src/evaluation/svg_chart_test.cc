#include "evaluation/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>

namespace kvlathe {
namespace {

using testing::HasSubstr;

// Numbers of an attribute of all elements of a kind, in their order.
std::vector<double> NumbersOf(const std::string& svg, const std::string& element,
                              const std::string& attribute) {
  std::vector<double> numbers;
  const std::regex pattern("<" + element + " [^>]*\\b" + attribute + "=\"([-0-9.]+)\"");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    numbers.push_back(std::stod((*it)[1]));
  }
  return numbers;
}

TEST(EscapeHtmlTest, LeavesNoMarkup) {
  EXPECT_EQ(EscapeHtml("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;");
  EXPECT_EQ(EscapeHtml(std::string_view("x\0\x1by", 4)), "x  y");
}

TEST(ScatterChartTest, LargerIsFurtherRightAndHigher) {
  ScatterChart chart{.title = "t", .x = {"size"}, .y = {"loss", true}, .y_line = NAN};
  chart.points = {{10, 1e-4, "a"}, {20, 1e-3, "b"}, {30, 1e-1, "c<d"}};
  const std::string svg = ToSvg(chart);
  const std::vector<double> x = NumbersOf(svg, "circle", "cx"), y = NumbersOf(svg, "circle", "cy");
  ASSERT_EQ(x.size(), 3u);
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.2);        // linear
  EXPECT_NEAR(2 * (y[0] - y[1]), y[1] - y[2], 0.3);  // decades upwards
  EXPECT_THAT(svg, HasSubstr("c&lt;d: size 30, loss 0.1"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("class=\"level\"")));
}

TEST(ScatterChartTest, OnePointOrNoneIsNoProblem) {
  ScatterChart chart{.title = "t", .x = {"x", true}, .y = {"y", true}, .y_line = NAN};
  EXPECT_THAT(ToSvg(chart), HasSubstr("</svg>"));
  chart.points = {{0, 0, "zero"}};
  chart.steps = {{1, 1}};
  chart.y_line = 1;
  const std::string svg = ToSvg(chart);
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
}

TEST(ScatterChartTest, EveryNameIsThereInsideAndCoversNoOther) {
  ScatterChart chart{.title = "t", .x = {"x"}, .y = {"y"}, .y_line = NAN};
  chart.points = {{1, 1, "first"}, {1, 1, "second"}, {2, 5, "third"}, {2, 5.01, "a longer name"}};
  const std::string svg = ToSvg(chart);
  const std::regex name(
      "class=\"name\" text-anchor=\"(start|end)\" x=\"([-0-9.]+)\" y=\"([-0-9.]+)\">([^<]*)<");
  struct Box {
    double left, right, bottom;
  };
  std::vector<Box> boxes;
  for (std::sregex_iterator it(svg.begin(), svg.end(), name), end; it != end; ++it) {
    const double x = std::stod((*it)[2]), width = 6.0 * static_cast<double>((*it)[4].length());
    const bool is_end = (*it)[1] == "end";
    boxes.push_back({is_end ? x - width : x, is_end ? x : x + width, std::stod((*it)[3])});
    EXPECT_GE(boxes.back().left, 64) << (*it)[4];
    EXPECT_LE(boxes.back().right, 740) << (*it)[4];
  }
  ASSERT_EQ(boxes.size(), chart.points.size());
  for (size_t a = 0; a < boxes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      EXPECT_TRUE(boxes[a].left >= boxes[b].right || boxes[b].left >= boxes[a].right ||
                  std::abs(boxes[a].bottom - boxes[b].bottom) >= 11.9)
          << a << " covers " << b;
    }
  }
}

TEST(ScatterChartTest, MoreNamesThanRoomAreStillDrawn) {
  ScatterChart chart{.title = "t", .x = {"x"}, .y = {"y"}, .y_line = NAN};
  for (int i = 0; i < 300; ++i) chart.points.push_back({1, 1, "name " + std::to_string(i)});
  const std::string svg = ToSvg(chart);
  EXPECT_THAT(svg, HasSubstr(">name 0</text>"));
  EXPECT_THAT(svg, HasSubstr(">name 299</text>"));
}

TEST(HeatMapChartTest, ACellForEveryHead) {
  const std::vector<double> values = {16, 32, 48, 64, 80, 128};
  const std::string svg = ToSvg(HeatMapChart{"rank", values, 3, 2, 0});
  EXPECT_EQ(NumbersOf(svg, "rect", "x").size(), 6u);
  EXPECT_THAT(svg, HasSubstr("rank 16 to 128"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#181458\"><title>layer 0, KV head 0: 16<"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#fce24e\"><title>layer 2, KV head 1: 128<"));
}

TEST(CurveChartTest, FallsAndHasACurveForEveryHead) {
  const std::vector<double> a = {100, 10, 1, 0}, b = {50, 40};
  const std::string svg = ToSvg(CurveChart{"spectra", {a, b}});
  EXPECT_EQ(NumbersOf(svg, "polyline", "points").size(), 0u);  // lists, not numbers
  const std::regex list("<polyline [^>]*points=\"([^\"]*)\"");
  std::vector<std::string> lists;
  for (std::sregex_iterator it(svg.begin(), svg.end(), list), end; it != end; ++it) {
    lists.push_back((*it)[1]);
  }
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(std::ranges::count(lists[0], ','), 4);
  EXPECT_EQ(std::ranges::count(lists[1], ','), 2);
  EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
}

TEST(LineChartTest, IsAFileWithALineAndANameForEachSeries) {
  LineChart chart{.title = "a < b",
                  .x = {"rate"},
                  .y = {"latency", true},
                  .y_line = 20,
                  .y_line_name = "bound"};
  for (int i = 0; i < 12; ++i) {  // more than there are colours
    chart.series.push_back({"line " + std::to_string(i), {{1, 10.0 + i}, {2, 100.0 + i}}});
  }
  chart.series.push_back({"empty", {}});
  const std::string svg = ToSvgFile(chart);
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  for (const LineSeries& series : chart.series)
    EXPECT_THAT(svg, HasSubstr(">" + series.name + "</text>"));
  const std::regex line("<polyline[^>]*points=\"([0-9.]+),([0-9.]+) ([0-9.]+),([0-9.]+) \"");
  const auto n_lines = std::distance(std::sregex_iterator(svg.begin(), svg.end(), line), {});
  EXPECT_EQ(n_lines, 12);
  for (std::sregex_iterator it(svg.begin(), svg.end(), line), end; it != end; ++it) {
    EXPECT_LT(std::stod((*it)[1]), std::stod((*it)[3]));  // a higher rate is further right
    EXPECT_GT(std::stod((*it)[2]), std::stod((*it)[4]));  // a longer latency is higher up
  }
  EXPECT_THAT(svg, HasSubstr(">bound</text>"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace kvlathe
