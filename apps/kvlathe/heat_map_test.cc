#include "kvlathe/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(HeatMap, ShadesGoFromTheLeastToTheLargest) {
  const HeatMap map = {"rank", {16, 64, 40, 16}};
  EXPECT_THAT(LinesOf(RenderHeatMaps({&map, 1}, 2, 2, {})),
              ElementsAre("a row per layer, a column per KV head; least [ .:-=+*#%@] largest",
                          "        rank 16..64", "    0     @@", "    1   ++  "));
}

TEST(HeatMap, StandSideBySideAsFarAsTheLineHoldsThem) {
  const std::vector<HeatMap> maps(3, {"a map", std::vector<double>(8, 0.25), 2});
  EXPECT_EQ(LinesOf(RenderHeatMaps(maps, 2, 4, {.n_columns = 100})).size(), 1u + 3);
  EXPECT_EQ(LinesOf(RenderHeatMaps(maps, 2, 4, {.n_columns = 50})).size(), 1u + 2 * 3);
  EXPECT_EQ(LinesOf(RenderHeatMaps(maps, 2, 4, {.n_columns = 10})).size(), 1u + 3 * 3);
  auto lines = LinesOf(RenderHeatMaps(maps, 2, 4, {.n_columns = 50}));
  lines.erase(lines.begin());  // the legend
  for (const std::string& line : lines) EXPECT_LE(line.size(), 50u);
}

TEST(HeatMap, ManyHeadsGetOneColumnEach) {
  const HeatMap map = {"map", std::vector<double>(128, 1)};
  const auto lines = LinesOf(RenderHeatMaps({&map, 1}, 1, 128, {.n_columns = 140}));
  EXPECT_EQ(lines[2].size(), 5u + 3 + 128);
}

// Every cell ends its own colour.
TEST(HeatMap, ColoursAreBackgrounds) {
  const HeatMap map = {"map", {0, 1, 2, 3}};
  for (const auto colours : {HeatMapStyle::Colours::k256, HeatMapStyle::Colours::k24Bit}) {
    const std::string text = RenderHeatMaps({&map, 1}, 2, 2, {.colours = colours});
    const bool is_24_bit = colours == HeatMapStyle::Colours::k24Bit;
    EXPECT_THAT(text, HasSubstr(is_24_bit ? "\033[48;2;24;20;88m  \033[0m" : "\033[48;5;"));
    EXPECT_THAT(text, Not(HasSubstr("@")));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\033'), 2 * (10 + 4));
  }
}

}  // namespace
}  // namespace kvlathe
