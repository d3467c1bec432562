// Charts are inline SVG for the report: no script, no style of their own. Colours are the classes
// and variables of the page (report.cc), so that they follow its light or dark scheme.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {

// Text for HTML and SVG, in elements and in quoted attributes.
std::string EscapeHtml(std::string_view text);

struct Axis2d {
  std::string label;
  bool is_log = false;  // values <= 0 stand at the lower end
};

struct ScatterPoint {
  double x = 0, y = 0;
  std::string name;  // beside the point where there is room, and in its tooltip
  bool is_faint = false;
};

struct ScatterChart {
  std::string title;
  Axis2d x, y;
  std::vector<ScatterPoint> points;
  std::vector<std::pair<double, double>> steps;  // of a front, x ascending; may be empty
  double y_line = 0;                             // a dashed level; NaN: none
};
std::string ToSvg(const ScatterChart& chart);

// One cell per layer (row) and KV head (column); the value is the cell's tooltip.
struct HeatMapChart {
  std::string title;
  std::span<const double> values;  // [n_layers * n_kv_heads]
  int n_layers = 0, n_kv_heads = 0;
  int n_decimals = 0;
};
std::string ToSvg(const HeatMapChart& chart);

// Falling curves over one another, such as the spectra of the heads of a layer; y is logarithmic.
struct CurveChart {
  std::string title;
  std::vector<std::span<const double>> curves;
};
std::string ToSvg(const CurveChart& chart);

// Several lines through points, each with a colour and a mark of its own and its name at the right.
// This one is a whole file: it has its own colours and a white background.
struct LineSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending
};
struct LineChart {
  std::string title;
  Axis2d x, y;
  std::vector<LineSeries> series;
  double y_line = 0;  // a dashed level; NaN: none
  std::string y_line_name;
};
std::string ToSvgFile(const LineChart& chart);

}  // namespace kvlathe
