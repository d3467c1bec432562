#include "evaluation/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evaluation/svg_style.h"

namespace kvlathe {
namespace {

// Where a chart draws, in units of its view box; text has 11 of them.
struct Frame {
  double left, top, right, bottom;
};

// A range of values on a line of the chart.
class Scale {
 public:
  // `values` as they are drawn; `from` and `to` in chart units.
  Scale(bool is_log, std::span<const double> values, double from, double to)
      : is_log_(is_log), from_(from), to_(to) {
    bool is_first = true;
    for (double v : values) {
      if (!std::isfinite(v) || (is_log && v <= 0)) continue;
      low_ = is_first ? v : std::min(low_, v);
      high_ = is_first ? v : std::max(high_, v);
      is_first = false;
    }
    if (is_first) low_ = high_ = 1;
    if (is_log_) {
      low_ = std::log10(low_);
      high_ = std::log10(high_);
    }
    const double margin =
        high_ > low_ ? 0.06 * (high_ - low_) : std::max(0.5 * std::abs(high_), 0.1);
    low_ -= margin;
    high_ += margin;
  }

  double At(double value) const {
    if (is_log_) value = value > 0 ? std::log10(value) : low_;
    return from_ + (to_ - from_) * std::clamp((value - low_) / (high_ - low_), 0.0, 1.0);
  }

  // Round numbers inside, about five; powers of ten (and between them) where the scale has them.
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (is_log_) {
      const bool has_few = high_ - low_ < 2.5;
      for (int e = static_cast<int>(std::floor(low_)); e <= std::ceil(high_); ++e) {
        for (double digit : {1.0, 2.0, 5.0}) {
          const double at = e + std::log10(digit);
          if (at < low_ || at > high_ || (digit > 1 && !has_few)) continue;
          ticks.push_back(std::pow(10.0, e) * digit);
        }
      }
      return ticks;
    }
    const double raw = (high_ - low_) / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
    const double step = power * (raw < 2 * power ? 2 : raw < 5 * power ? 5 : 10);
    for (double t = std::ceil(low_ / step) * step; t <= high_; t += step) {
      ticks.push_back(std::abs(t) < step / 1e6 ? 0 : t);
    }
    return ticks;
  }

 private:
  bool is_log_;
  double from_, to_;
  double low_ = 0, high_ = 0;  // logarithms where is_log_
};

std::string Open(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n<text class=\"title\" x=\"4\" y=\"14\">{}</text>\n",
      width, height, width, height, EscapeHtml(title), EscapeHtml(title));
}

std::string TickText(double value) { return fmt::format("{:.4g}", value); }

std::string DrawAxes(const Frame& f, const Scale& x, const Scale& y, const std::string& x_label,
                     const std::string& y_label) {
  std::string svg;
  for (double t : x.Ticks()) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"tick\" text-anchor=\"middle\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
        x.At(t), f.top, f.bottom, f.bottom + 14, TickText(t));
  }
  for (double t : y.Ticks()) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{1:.1f}\" x2=\"{2:.1f}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>"
        "<text class=\"tick\" text-anchor=\"end\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5}</text>\n",
        y.At(t), f.left, f.right, f.left - 5, y.At(t) + 4, TickText(t));
  }
  svg += fmt::format(
      "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
      (f.left + f.right) / 2, f.bottom + 30, EscapeHtml(x_label));
  svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", f.left,
                     f.top - 6, EscapeHtml(y_label));
  return svg;
}

constexpr double kNameWidth = 6, kNameHeight = 12;

bool Overlap(const Frame& a, const Frame& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

// Where a name of `width` stands: beside its point, or as near above or below as nothing is covered
// and all of it is inside `f`. A chart that is full of names has it at the nearest place.
Frame PlaceOf(double px, double py, double width, const std::vector<Frame>& taken, const Frame& f) {
  constexpr double kGap = 8;
  const auto box = [&](bool is_left, double shift) {
    const double left = is_left ? px - kGap - width : px + kGap;
    const double middle = py - kNameHeight / 2 + shift;
    return Frame{left, middle - kNameHeight / 2, left + width, middle + kNameHeight / 2};
  };
  const auto is_inside = [&](const Frame& b) {
    return b.left >= f.left && b.right <= f.right && b.top >= f.top && b.bottom <= f.bottom;
  };
  const bool prefers_left = px + kGap + width > f.right;
  for (int n = 0; kNameHeight * n < f.bottom - f.top; ++n) {
    for (const double shift : {-kNameHeight * n, kNameHeight * n}) {
      for (const bool is_left : {prefers_left, !prefers_left}) {
        const Frame place = box(is_left, shift);
        const auto covers = [&](const Frame& other) { return Overlap(place, other); };
        if (is_inside(place) && std::ranges::none_of(taken, covers)) return place;
      }
    }
  }
  return box(prefers_left, 0);
}

// A name for every point that is not faint, with a line to its point where it stands apart.
std::string DrawNames(const ScatterChart& chart, const Scale& x, const Scale& y, const Frame& f) {
  std::vector<Frame> taken;
  std::string svg;
  for (const ScatterPoint& point : chart.points) {
    if (point.is_faint) continue;
    const double px = x.At(point.x), py = y.At(point.y);
    const double width = kNameWidth * static_cast<double>(point.name.size());
    const Frame box = PlaceOf(px, py, width, taken, f);
    taken.push_back(box);
    const bool is_left = box.left < px;
    const double near_x = is_left ? box.right : box.left, middle = (box.top + box.bottom) / 2;
    if (std::abs(middle + kNameHeight / 2 - py) > kNameHeight / 2) {
      svg += fmt::format(
          "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", px,
          py, near_x, middle);
    }
    svg +=
        fmt::format("<text class=\"name\" text-anchor=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                    is_left ? "end" : "start", near_x, box.bottom - 2, EscapeHtml(point.name));
  }
  return svg;
}

// Colours that differ in lightness too, and four marks; more lines than colours get the same
// colours with other marks.
constexpr std::string_view kLineColours[] = {"#222222", "#0072b2", "#d55e00", "#009e73",
                                             "#cc79a7", "#8a6d00", "#56b4e9", "#7b3294",
                                             "#a6611a", "#1b9e77", "#e7298a"};

std::string Mark(size_t kind, double x, double y) {
  switch (kind % 4) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>", x, y);
    case 1:
      return fmt::format("<path d=\"M{:.1f} {:.1f}h7v7h-7z\"/>", x - 3.5, y - 3.5);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4.5 8h-9z\"/>", x, y - 5);
    default:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z\"/>", x, y - 4.5);
  }
}

constexpr std::string_view kFileStyle =
    "<style>text { fill: #444; font: 12px system-ui, sans-serif; } "
    ".title { fill: #111; font-weight: 600; font-size: 14px; } .name { fill: #111; } "
    ".grid { stroke: #e4e4e4; } .level { stroke: #b3541e; stroke-dasharray: 5 4; } "
    ".axis { stroke: #888; fill: none; } .line { fill: none; stroke-width: 1.8; }</style>\n";

}  // namespace

std::string HeatColour(double heat) {
  constexpr double kLow[] = {24, 20, 88}, kMiddle[] = {22, 140, 138}, kHigh[] = {252, 226, 78};
  int rgb[3];
  for (int i = 0; i < 3; ++i) {
    rgb[i] =
        static_cast<int>(std::lround(heat < 0.5 ? std::lerp(kLow[i], kMiddle[i], 2 * heat)
                                                : std::lerp(kMiddle[i], kHigh[i], 2 * heat - 1)));
  }
  return fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]);
}

std::string OpenSvgFile(double width, double height, std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\">\n{2}<rect width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "fill=\"#fff\"/>\n<text class=\"title\" x=\"8\" y=\"22\">{3}</text>\n",
      width, height, kFileStyle, EscapeHtml(title));
}

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        // Control characters are not allowed in XML.
        escaped += static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return escaped;
}

std::string ToSvg(const ScatterChart& chart) {
  constexpr Frame kFrame = {64, 44, 740, 380};
  std::vector<double> xs, ys;
  for (const ScatterPoint& point : chart.points) {
    xs.push_back(point.x);
    ys.push_back(point.y);
  }
  if (std::isfinite(chart.y_line)) ys.push_back(chart.y_line);
  const Scale x(chart.x.is_log, xs, kFrame.left, kFrame.right);
  const Scale y(chart.y.is_log, ys, kFrame.bottom, kFrame.top);
  std::string svg = Open(760, 420, chart.title);
  svg += DrawAxes(kFrame, x, y, chart.x.label, chart.y.label);
  if (std::isfinite(chart.y_line)) {
    svg += fmt::format(
        "<line class=\"level\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        kFrame.left, kFrame.right, y.At(chart.y_line), y.At(chart.y_line));
  }
  std::string path;
  for (const auto& [px, py] : chart.steps) {
    path += path.empty() ? fmt::format("M{:.1f} {:.1f}", x.At(px), y.At(py))
                         : fmt::format("H{:.1f}V{:.1f}", x.At(px), y.At(py));
  }
  if (!path.empty()) svg += fmt::format("<path class=\"front\" d=\"{}\"/>\n", path);
  for (const ScatterPoint& point : chart.points) {
    svg += fmt::format(
        "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}: {} {:.5g}, {} {:.5g}"
        "</title></circle>\n",
        point.is_faint ? "faint" : "point", x.At(point.x), y.At(point.y), EscapeHtml(point.name),
        EscapeHtml(chart.x.label), point.x, EscapeHtml(chart.y.label), point.y);
  }
  return svg + DrawNames(chart, x, y, kFrame) + "</svg>\n";
}

std::string ToSvg(const HeatMapChart& chart) {
  constexpr double kTop = 22, kLeft = 24;
  const double width = std::clamp(240.0 / chart.n_kv_heads, 8.0, 26.0);
  const double height = std::clamp(320.0 / chart.n_layers, 8.0, 18.0);
  const auto [least, largest] = std::ranges::minmax(chart.values);
  const double range = largest - least;
  const std::string title = fmt::format("{} {:.{}f} to {:.{}f}", chart.title, least,
                                        chart.n_decimals, largest, chart.n_decimals);
  std::string svg =
      Open(std::max(kLeft + width * chart.n_kv_heads + 8, 7.0 * static_cast<double>(title.size())),
           kTop + height * chart.n_layers + 8, title);
  for (int l = 0; l < chart.n_layers; ++l) {
    svg += fmt::format(
        "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kLeft - 4,
        kTop + height * (l + 0.5) + 4, l);
    for (int g = 0; g < chart.n_kv_heads; ++g) {
      const double value = chart.values[l * chart.n_kv_heads + g];
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>"
          "layer {}, KV head {}: {:.{}f}</title></rect>\n",
          kLeft + width * g, kTop + height * l, width - 1, height - 1,
          HeatColour(range > 0 ? (value - least) / range : 0.5), l, g, value, chart.n_decimals);
    }
  }
  return svg + "</svg>\n";
}

std::string ToSvg(const CurveChart& chart) {
  constexpr Frame kFrame = {52, 24, 264, 150};
  constexpr double kLeastShare = 1e-6;  // of the largest value: below it lies rounding
  double largest = 0;
  size_t n_longest = 1;
  for (std::span<const double> curve : chart.curves) {
    for (double v : curve) largest = std::max(largest, v);
    n_longest = std::max(n_longest, curve.size());
  }
  std::vector<double> xs = {1, static_cast<double>(n_longest)}, ys;
  for (std::span<const double> curve : chart.curves) {
    for (double v : curve) ys.push_back(std::max(v, kLeastShare * largest));
  }
  const Scale x(false, xs, kFrame.left, kFrame.right), y(true, ys, kFrame.bottom, kFrame.top);
  std::string svg = Open(280, 172, chart.title) + DrawAxes(kFrame, x, y, "", "");
  for (size_t c = 0; c < chart.curves.size(); ++c) {
    std::string points;
    for (size_t i = 0; i < chart.curves[c].size(); ++i) {
      points += fmt::format("{:.1f},{:.1f} ", x.At(static_cast<double>(i + 1)),
                            y.At(std::max(chart.curves[c][i], kLeastShare * largest)));
    }
    svg += fmt::format(
        "<polyline class=\"curve\" points=\"{}\"><title>KV head {}</title></polyline>\n", points,
        c);
  }
  return svg + "</svg>\n";
}

std::string ToSvgFile(const LineChart& chart) {
  constexpr Frame kFrame = {70, 56, 640, 430};
  std::vector<double> xs, ys;
  size_t n_longest = 12;
  for (const LineSeries& series : chart.series) {
    n_longest = std::max(n_longest, series.name.size());
    for (const auto& [x, y] : series.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  if (std::isfinite(chart.y_line)) ys.push_back(chart.y_line);
  const Scale x(chart.x.is_log, xs, kFrame.left, kFrame.right);
  const Scale y(chart.y.is_log, ys, kFrame.bottom, kFrame.top);
  const double width = kFrame.right + 40 + 7.2 * static_cast<double>(n_longest);
  const double height =
      std::max(kFrame.bottom + 46, kFrame.top + 20.0 * static_cast<double>(chart.series.size()));
  std::string svg = OpenSvgFile(width, height, chart.title);
  svg += DrawAxes(kFrame, x, y, chart.x.label, chart.y.label);
  svg += fmt::format("<path class=\"axis\" d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\"/>\n", kFrame.left,
                     kFrame.top, kFrame.bottom, kFrame.right);
  if (std::isfinite(chart.y_line)) {
    svg += fmt::format(
        "<line class=\"level\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text text-anchor=\"end\" x=\"{1:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
        kFrame.left, kFrame.right, y.At(chart.y_line), y.At(chart.y_line) - 5,
        EscapeHtml(chart.y_line_name));
  }
  for (size_t s = 0; s < chart.series.size(); ++s) {
    const LineSeries& series = chart.series[s];
    std::string path, marks;
    for (const auto& [px, py] : series.points) {
      path += fmt::format("{:.1f},{:.1f} ", x.At(px), y.At(py));
      marks += Mark(s, x.At(px), y.At(py));
    }
    const std::string_view colour = kLineColours[s % std::size(kLineColours)];
    const double at = kFrame.top + 12 + 20.0 * static_cast<double>(s);
    svg += fmt::format(
        "<polyline class=\"line\" stroke=\"{0}\" points=\"{1}\"/><g fill=\"{0}\">{2}{3}</g>"
        "<text class=\"name\" x=\"{4:.1f}\" y=\"{5:.1f}\">{6}</text>\n",
        colour, path, marks, Mark(s, kFrame.right + 18, at - 4), kFrame.right + 30, at,
        EscapeHtml(series.name));
  }
  return svg + "</svg>\n";
}

}  // namespace kvlathe
