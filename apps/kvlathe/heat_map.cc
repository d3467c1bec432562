#include "kvlathe/heat_map.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace kvlathe {
namespace {

constexpr std::string_view kShades = " .:-=+*#%@";
constexpr int kLabelColumns = 5;  // the number of a layer
constexpr int kGapColumns = 3;

struct Rgb {
  double red, green, blue;
};
// From dark to bright, so that the order survives on paper and for the colour-blind.
constexpr Rgb kLow = {24, 20, 88}, kMiddle = {22, 140, 138}, kHigh = {252, 226, 78};

Rgb Mix(const Rgb& a, const Rgb& b, double share_of_b) {
  return {std::lerp(a.red, b.red, share_of_b), std::lerp(a.green, b.green, share_of_b),
          std::lerp(a.blue, b.blue, share_of_b)};
}

// n_columns of the shade for `heat` in [0, 1].
std::string Cell(double heat, int n_columns, HeatMapStyle::Colours colours) {
  const size_t n = static_cast<size_t>(n_columns);
  if (colours == HeatMapStyle::Colours::kNone) {
    const auto n_shades = static_cast<double>(kShades.size());
    return std::string(n, kShades[static_cast<size_t>(std::min(heat * n_shades, n_shades - 1))]);
  }
  const Rgb colour = heat < 0.5 ? Mix(kLow, kMiddle, 2 * heat) : Mix(kMiddle, kHigh, 2 * heat - 1);
  const std::string spaces(n, ' ');
  if (colours == HeatMapStyle::Colours::k24Bit) {
    return fmt::format("\033[48;2;{:.0f};{:.0f};{:.0f}m{}\033[0m", colour.red, colour.green,
                       colour.blue, spaces);
  }
  // The colour cube of 6 levels each behind the 16 basic colours.
  const auto level = [](double component) { return static_cast<int>(component / 255 * 5 + 0.5); };
  const int index = 16 + 36 * level(colour.red) + 6 * level(colour.green) + level(colour.blue);
  return fmt::format("\033[48;5;{}m{}\033[0m", index, spaces);
}

std::string Legend(HeatMapStyle::Colours colours) {
  std::string scale;
  for (size_t i = 0; i < kShades.size(); ++i) {
    const auto last = static_cast<double>(kShades.size() - 1);
    scale += Cell(static_cast<double>(i) / last, 1, colours);
  }
  return fmt::format("a row per layer, a column per KV head; least [{}] largest\n", scale);
}

// A map with what its rows need.
struct Panel {
  const HeatMap* map;
  std::string title;
  double least, largest;
  int n_columns;
};

Panel MakePanel(const HeatMap& map, int cell_columns, int n_kv_heads) {
  const auto [least, largest] = std::minmax_element(map.values.begin(), map.values.end());
  const std::string title = fmt::format("{} {:.{}f}..{:.{}f}", map.title, *least, map.n_decimals,
                                        *largest, map.n_decimals);
  return {&map, title, *least, *largest,
          std::max(static_cast<int>(title.size()), cell_columns * n_kv_heads)};
}

std::string RenderLine(std::span<const Panel> panels, int n_layers, int n_kv_heads,
                       int cell_columns, HeatMapStyle::Colours colours) {
  const auto padding = [](int n_columns) { return std::string(n_columns, ' '); };
  std::string text = padding(kLabelColumns);
  int n_before = 0;  // columns to the end of the last panel
  for (const Panel& panel : panels) {
    text += padding(n_before + kGapColumns) + panel.title;
    n_before = panel.n_columns - static_cast<int>(panel.title.size());
  }
  for (int l = 0; l < n_layers; ++l) {
    text += fmt::format("\n{:>{}}", l, kLabelColumns);
    n_before = 0;
    for (const Panel& panel : panels) {
      text += padding(n_before + kGapColumns);
      n_before = panel.n_columns - cell_columns * n_kv_heads;
      const double range = panel.largest - panel.least;
      for (int g = 0; g < n_kv_heads; ++g) {
        const double value = panel.map->values[l * n_kv_heads + g];
        text += Cell(range > 0 ? (value - panel.least) / range : 0.5, cell_columns, colours);
      }
    }
  }
  return text + '\n';
}

}  // namespace

HeatMapStyle StyleOfOutput() {
  HeatMapStyle style;
  if (isatty(STDOUT_FILENO) == 0) return style;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.n_columns = size.ws_col;
  }
  const auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (!variable("NO_COLOR").empty() || variable("TERM") == "dumb") return style;
  const std::string_view kind = variable("COLORTERM");
  style.colours = kind == "truecolor" || kind == "24bit" ? HeatMapStyle::Colours::k24Bit
                                                         : HeatMapStyle::Colours::k256;
  return style;
}

std::string RenderHeatMaps(std::span<const HeatMap> maps, int n_layers, int n_kv_heads,
                           const HeatMapStyle& style) {
  const int n_free = style.n_columns - kLabelColumns - kGapColumns;
  const int cell_columns = 2 * n_kv_heads <= n_free ? 2 : 1;  // two are about a square
  std::vector<Panel> panels;
  for (const HeatMap& map : maps) panels.push_back(MakePanel(map, cell_columns, n_kv_heads));
  std::string text = Legend(style.colours);
  for (size_t begin = 0; begin < panels.size();) {
    int n_used = kLabelColumns;
    size_t end = begin;
    while (end < panels.size() &&
           (end == begin || n_used + kGapColumns + panels[end].n_columns <= style.n_columns)) {
      n_used += kGapColumns + panels[end++].n_columns;
    }
    text += RenderLine(std::span(panels).subspan(begin, end - begin), n_layers, n_kv_heads,
                       cell_columns, style.colours);
    begin = end;
  }
  return text;
}

}  // namespace kvlathe
