// Pictures are whole SVG files, at most 800 wide: heat maps side by side, and text in colours.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvlathe {

// Maps of the same rows and columns with one scale of colours, and its legend. There is at least
// one value.
struct HeatMapPanel {
  std::string title;
  std::vector<double>
      values;  // [n_rows * n_columns], finite; above 0 where colours are logarithmic
};
struct HeatMapPanels {
  std::string title;
  std::string row_name, column_name;  // what is counted from 0 along the sides
  std::string value_name;             // with its unit
  std::vector<HeatMapPanel> panels;
  int n_rows = 0, n_columns = 0;
  bool is_log = false;  // colours go by the logarithm
};
std::string ToSvgFile(const HeatMapPanels& chart);

// Pieces of a text, of which neighbours may form a segment. A segment of several pieces has a
// colour, one that differs from its neighbours'; one of a single piece is white.
struct TextPiece {
  std::string text;  // UTF-8; a line ends behind a newline
  int segment = 0;   // from 0, never falling
};
struct SegmentedText {
  std::string title, subtitle;
  std::string of_several, of_one;  // what the legend calls segments of several pieces, and of one
  std::vector<TextPiece> pieces;
};
std::string ToSvgFile(const SegmentedText& text);

}  // namespace kvlathe
