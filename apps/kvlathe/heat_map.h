// A heat map shows one number per layer and KV head as a picture of characters.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvlathe {

struct HeatMap {
  std::string title;
  std::vector<double> values;  // [n_layers * n_kv_heads]
  int n_decimals = 0;          // of the range behind the title
};

struct HeatMapStyle {
  enum class Colours { kNone, k256, k24Bit };
  Colours colours = Colours::kNone;  // none: shades are characters
  int n_columns = 100;               // of a line
};

// What standard output takes: colours on a terminal only and not when the environment sets
// NO_COLOR, in 24 bits where COLORTERM says so.
HeatMapStyle StyleOfOutput();

// A legend and the maps: a row for each layer, a column for each head, every map with shades of its
// own from its least value to its largest. Maps stand side by side as far as the line holds them.
std::string RenderHeatMaps(std::span<const HeatMap> maps, int n_layers, int n_kv_heads,
                           const HeatMapStyle& style);

}  // namespace kvlathe
