#include "load_generation/rate_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ServedRateTest, IsWhereTheLatencyMeetsTheBound) {
  const RatePoint points[] = {{1, 10}, {2, 40}, {4, 160}, {8, std::nullopt}};
  ServedRate served = ServedRateOf(points, 80);  // half way in the logarithm
  EXPECT_NEAR(served.rate, 3, 1e-12);
  EXPECT_EQ(served.kind, ServedRate::Kind::kBetween);
  served = ServedRateOf(points, 40);
  EXPECT_NEAR(served.rate, 2, 1e-12);
  served = ServedRateOf(points, 1000);
  EXPECT_EQ(served.rate, 4);  // behind it requests fail
  EXPECT_EQ(served.kind, ServedRate::Kind::kBetween);
  served = ServedRateOf(std::span(points).first(2), 50);
  EXPECT_EQ(served.rate, 2);
  EXPECT_EQ(served.kind, ServedRate::Kind::kAtLeast);
  served = ServedRateOf(points, 5);
  EXPECT_EQ(served.rate, 1);
  EXPECT_EQ(served.kind, ServedRate::Kind::kBelow);
}

nlohmann::json RunAt(double rate, double p90) {
  return {
      {"label", "x"}, {"request_rate", rate}, {"p90_normalized_latency_ms", p90}, {"completed", 5}};
}

TEST(PlotLatencyTest, JoinsRunsOfALabelAndDrawsTheBound) {
  const ResultFile files[] = {
      {"a", RunAt(2, 30)},
      {"b", RunAt(1, 20)},
      {"c",
       {{"label", "lathe(ratio=4) <&>"},
        {"slo_normalized_latency_ms", 25},
        {"runs", {RunAt(1, 10), RunAt(3, 15)}}}},
  };
  const auto svg = PlotLatency(files, "p90");
  ASSERT_TRUE(svg.ok()) << svg.status();
  EXPECT_THAT(*svg, HasSubstr("xmlns"));
  EXPECT_THAT(*svg, HasSubstr(">x</text>"));
  EXPECT_THAT(*svg, HasSubstr("lathe(ratio=4) &lt;&amp;&gt;"));
  EXPECT_THAT(*svg, HasSubstr("bound 25 ms"));
  size_t n_lines = 0;
  for (size_t at = svg->find("<polyline"); at != std::string::npos;
       at = svg->find("<polyline", at + 1))
    ++n_lines;
  EXPECT_EQ(n_lines, 2u);
  EXPECT_THAT(*svg, Not(HasSubstr("nan")));
}

TEST(PlotLatencyTest, NamesAFileThatIsSomethingElse) {
  const auto error = [](nlohmann::json json) {
    const ResultFile file{"f.json", std::move(json)};
    return MessageOf(PlotLatency(std::span(&file, 1), "p90").status());
  };
  EXPECT_THAT(error({{"request_rate", "inf"}, {"p90_normalized_latency_ms", 3}}),
              HasSubstr("f.json"));
  EXPECT_THAT(error({{"request_rate", 3}}), HasSubstr("p90_normalized_latency_ms"));
  EXPECT_THAT(error(nlohmann::json::array()), HasSubstr("f.json"));
  EXPECT_THAT(error({{"runs", {1, 2}}}), HasSubstr("f.json"));
}

}  // namespace
}  // namespace kvlathe
