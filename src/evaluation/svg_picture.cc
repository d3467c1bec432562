#include "evaluation/svg_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "evaluation/svg_chart.h"
#include "evaluation/svg_style.h"

namespace kvlathe {
namespace {

constexpr double kWidth = 800;
constexpr double kFirstPanel = 16, kPastPanels = 680;  // the legend stands behind them
constexpr double kLegend = 80;
constexpr double kLetterWidth = 6.6, kTitleLetterWidth = 8.6;  // about, in the style of files

// Three digits are enough for a cell.
std::string NumberText(double value) {
  const int n_decimals = std::abs(value) >= 100 ? 0 : std::abs(value) >= 10 ? 1 : 2;
  return fmt::format("{:.{}f}", value, n_decimals);
}

// The colours of the values of all panels.
class ColourScale {
 public:
  explicit ColourScale(const HeatMapPanels& chart) : is_log_(chart.is_log) {
    least_ = largest_ = chart.panels.front().values.front();
    for (const HeatMapPanel& panel : chart.panels) {
      const auto [low, high] = std::ranges::minmax(panel.values);
      least_ = std::min(least_, low);
      largest_ = std::max(largest_, high);
    }
  }
  // From 0 to 1.
  double HeatOf(double value) const {
    if (largest_ <= least_) return 0.5;
    return (Place(value) - Place(least_)) / (Place(largest_) - Place(least_));
  }
  double ValueAt(double heat) const {
    const double place = std::lerp(Place(least_), Place(largest_), heat);
    return is_log_ ? std::exp(place) : place;
  }

 private:
  double Place(double value) const { return is_log_ ? std::log(value) : value; }

  bool is_log_;
  double least_, largest_;
};

// Where the panels of a chart of heat maps lie, in units of its view box.
struct PanelGrid {
  double cell_width = 0, cell_height = 0;
  int n_across = 1;

  static constexpr double kLabels = 34, kGap = 18, kHead = 20, kFoot = 40;
  double PanelWidth(const HeatMapPanels& c) const {
    return kLabels + cell_width * c.n_columns + kGap;
  }
  double PanelHeight(const HeatMapPanels& c) const {
    return kHead + cell_height * c.n_rows + kFoot;
  }
};

PanelGrid PlaceMaps(const HeatMapPanels& chart) {
  constexpr double kNarrowest = 9, kWidest = 64;
  const int n_panels = static_cast<int>(chart.panels.size());
  PanelGrid grid;
  for (grid.n_across = std::min(n_panels, 4); grid.n_across >= 1; --grid.n_across) {
    const double width = (kPastPanels - kFirstPanel) / grid.n_across;
    grid.cell_width = (width - PanelGrid::kLabels - PanelGrid::kGap) / chart.n_columns;
    if (grid.cell_width >= kNarrowest) break;
  }
  grid.n_across = std::max(grid.n_across, 1);
  grid.cell_width = std::min(grid.cell_width, kWidest);
  grid.cell_height = std::clamp(440.0 / chart.n_rows, 10.0, n_panels == 1 ? 34.0 : 24.0);
  return grid;
}

std::string DrawMap(const HeatMapPanels& chart, const HeatMapPanel& panel, const PanelGrid& grid,
                    double left, double top, const ColourScale& scale) {
  const double x0 = left + PanelGrid::kLabels, y0 = top + PanelGrid::kHead;
  const bool has_numbers = grid.cell_width >= 30 && grid.cell_height >= 14;
  const int column_step = std::max(1, static_cast<int>(std::ceil(18 / grid.cell_width)));
  std::string svg = fmt::format("<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x0,
                                y0 - 7, EscapeHtml(panel.title));
  for (int r = 0; r < chart.n_rows; ++r) {
    const double y = y0 + grid.cell_height * r;
    svg += fmt::format("<text text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x0 - 5,
                       y + grid.cell_height / 2 + 4, r);
    for (int c = 0; c < chart.n_columns; ++c) {
      const double value = panel.values[r * chart.n_columns + c];
      const double heat = scale.HeatOf(value);
      const double x = x0 + grid.cell_width * c;
      const std::string number = NumberText(value);
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\">"
          "<title>{}, {} {}, {} {}: {}</title></rect>\n",
          x, y, grid.cell_width - 1, grid.cell_height - 1, HeatColour(heat),
          EscapeHtml(panel.title), EscapeHtml(chart.row_name), r, EscapeHtml(chart.column_name), c,
          number);
      if (!has_numbers) continue;
      svg += fmt::format(
          "<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\" style=\"fill: {}\">{}</text>\n",
          x + grid.cell_width / 2 - 0.5, y + grid.cell_height / 2 + 4,
          heat < 0.55 ? "#fff" : "#111", number);
    }
  }
  const double below = y0 + grid.cell_height * chart.n_rows;
  for (int c = 0; c < chart.n_columns; c += column_step) {
    svg += fmt::format("<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                       x0 + grid.cell_width * (c + 0.5), below + 14, c);
  }
  return svg + fmt::format(
                   "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n"
                   "<text text-anchor=\"middle\" transform=\"translate({:.1f} {:.1f}) "
                   "rotate(-90)\">{}</text>\n",
                   x0, below + 30, EscapeHtml(chart.column_name), x0 - 24, (y0 + below) / 2,
                   EscapeHtml(chart.row_name));
}

// The scale of colours, the largest value on top.
std::string DrawLegend(const HeatMapPanels& chart, const ColourScale& scale, double left,
                       double top) {
  constexpr int kSteps = 24;
  constexpr double kStep = 6, kBar = 16;
  std::string svg = fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left, top - 7,
                                EscapeHtml(chart.value_name));
  for (int i = 0; i < kSteps; ++i) {
    svg += fmt::format(
        "<rect class=\"scale\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"{}\"/>\n",
        left, top + kStep * i, kBar, kStep + 0.2, HeatColour(1 - (i + 0.5) / kSteps));
  }
  for (const double heat : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left + kBar + 5,
                       top + kStep * kSteps * (1 - heat) + 4, NumberText(scale.ValueAt(heat)));
  }
  return svg;
}

// --- Text ---

constexpr double kLetter = 7.6, kLine = 23, kMargin = 16;
constexpr int kLettersOfLine = static_cast<int>((kWidth - 2 * kMargin) / kLetter);
// Light enough for dark letters, and told apart by the colour-blind.
constexpr std::string_view kSegmentColours[] = {"#a6cee3", "#fdbf6f", "#b2df8a",
                                                "#cab2d6", "#fb9a99", "#ffe680"};

int LettersOf(std::string_view utf8) {
  return static_cast<int>(std::ranges::count_if(
      utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// As it is shown: white space that ends a line is a sign.
std::string Shown(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (c == '\n') {
      shown += "\u21b5";
    } else {
      shown += c == '\t' || c == '\r' ? ' ' : c;
    }
  }
  return shown.empty() ? "\u00b7" : shown;  // bytes of a character that is not whole yet
}

std::string DrawPiece(const std::string& shown, std::string_view colour, double x, double y) {
  const double width = kLetter * LettersOf(shown);
  return fmt::format(
      "<rect x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" fill=\"{4}\"/>"
      "<text class=\"letters\" xml:space=\"preserve\" textLength=\"{2:.1f}\" x=\"{0:.1f}\" "
      "y=\"{5:.1f}\">{6}</text>\n",
      x, y - 15, width, kLine - 3, colour, y, EscapeHtml(shown));
}

std::string DrawTextLegend(const SegmentedText& text, double y) {
  std::string svg;
  double x = kMargin;
  for (const std::string_view colour : kSegmentColours) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"12\" fill=\"{}\"/>\n",
                       x, y - 11, colour);
    x += 18;
  }
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 6, y,
                     EscapeHtml(text.of_several));
  x += 6 + kLetterWidth * LettersOf(text.of_several) + 24;
  return svg + fmt::format(
                   "<rect class=\"alone\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"12\"/>"
                   "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                   x, y - 11, x + 24, y, EscapeHtml(text.of_one));
}

}  // namespace

std::string ToSvgFile(const HeatMapPanels& chart) {
  constexpr double kTop = 44;
  const PanelGrid grid = PlaceMaps(chart);
  const ColourScale scale(chart);
  const int n_panels = static_cast<int>(chart.panels.size());
  const int n_down = (n_panels + grid.n_across - 1) / grid.n_across;
  const double height = std::max(kTop + 200, kTop + n_down * grid.PanelHeight(chart)) + 8;
  const double legend = kFirstPanel + grid.PanelWidth(chart) * grid.n_across;
  const double width = std::max(
      {legend + kLegend, legend + kLetterWidth * static_cast<double>(chart.value_name.size()),
       kTitleLetterWidth * static_cast<double>(chart.title.size())});
  std::string svg = OpenSvgFile(std::min(width, kWidth), height, chart.title);
  for (int i = 0; i < n_panels; ++i) {
    svg += DrawMap(chart, chart.panels[i], grid,
                   kFirstPanel + grid.PanelWidth(chart) * (i % grid.n_across),
                   kTop + grid.PanelHeight(chart) * (i / grid.n_across), scale);
  }
  return svg + DrawLegend(chart, scale, legend, kTop + PanelGrid::kHead) + "</svg>\n";
}

std::string ToSvgFile(const SegmentedText& text) {
  constexpr double kTop = 96;
  std::map<int, int> n_pieces;  // of a segment
  for (const TextPiece& piece : text.pieces) ++n_pieces[piece.segment];
  std::string lines;
  int column = 0, last_segment = -1;
  size_t n_coloured = 0;  // segments with a colour so far
  double y = kTop;
  for (const TextPiece& piece : text.pieces) {
    const std::string shown = Shown(piece.text);
    if (column > 0 && column + LettersOf(shown) > kLettersOfLine) {
      column = 0;
      y += kLine;
    }
    const bool is_alone = n_pieces[piece.segment] == 1;
    if (piece.segment != last_segment && !is_alone) ++n_coloured;
    last_segment = piece.segment;
    lines += DrawPiece(shown,
                       is_alone ? "#fff" : kSegmentColours[n_coloured % std::size(kSegmentColours)],
                       kMargin + kLetter * column, y);
    column += LettersOf(shown);
    if (piece.text.ends_with('\n')) {
      column = 0;
      y += kLine;
    }
  }
  return OpenSvgFile(kWidth, y + 20, text.title) +
         "<style>.letters { fill: #111; font: 12.6px 'DejaVu Sans Mono', monospace; } "
         ".alone { fill: #fff; stroke: #999; }</style>\n" +
         fmt::format("<text x=\"{:.1f}\" y=\"42\">{}</text>\n", 8.0, EscapeHtml(text.subtitle)) +
         DrawTextLegend(text, 64) + lines + "</svg>\n";
}

}  // namespace kvlathe
