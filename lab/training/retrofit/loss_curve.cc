#include "training/retrofit/loss_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/files.h"

namespace kvlathe {
namespace {

constexpr double kLeft = 60, kRight = 780, kTop = 40, kBottom = 370;

struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;  // pixels
  double At(double x) const { return from + (x - low) / (high - low) * (to - from); }
};

std::string Polyline(const std::vector<std::pair<double, double>>& points, const Axis& x,
                     const Axis& y, const char* colour) {
  std::string path;
  for (const auto& [a, b] : points) {
    path += fmt::format("{:.1f},{:.1f} ", x.At(a), y.At(std::clamp(b, y.low, y.high)));
  }
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\n",
                     colour, path);
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     text);
}

std::string Grid(const Axis& x, const Axis& y) {
  std::string out;
  for (int i = 0; i <= 5; ++i) {
    const double value = y.low + (y.high - y.low) * i / 5, at = y.At(value);
    out += fmt::format("<path d=\"M{} {:.1f}H{}\" stroke=\"#ddd\"/>\n", kLeft, at, kRight);
    out += Text(kLeft - 6, at + 4, "end", fmt::format("{:.2f}", value));
    const double tokens = x.low + (x.high - x.low) * i / 5;
    out += Text(x.At(tokens), kBottom + 18, "middle", fmt::format("{:.1f}M", tokens / 1e6));
  }
  return out;
}

}  // namespace

std::string LossCurveCsv(const std::vector<LossPoint>& points) {
  std::string csv = "step,tokens,context,learning_rate,loss,validation_bits_per_byte,kept_share\n";
  for (const LossPoint& p : points) {
    csv += fmt::format("{},{},{},{:.6g},{:.5f},", p.step, p.tokens, p.context, p.learning_rate,
                       p.loss);
    if (p.validation_bpb >= 0) csv += fmt::format("{:.5f}", p.validation_bpb);
    csv += ",";
    if (p.kept_share >= 0) csv += fmt::format("{:.5f}", p.kept_share);
    csv += "\n";
  }
  return csv;
}

std::string LossCurveSvg(const std::vector<LossPoint>& points, const std::string& title) {
  // At most 400 averages, so that the picture stays small.
  const size_t width = std::max<size_t>(1, (points.size() + 399) / 400);
  std::vector<std::pair<double, double>> loss, validation;
  for (size_t i = 0; i < points.size(); i += width) {
    const size_t end = std::min(points.size(), i + width);
    double sum = 0;
    for (size_t j = i; j < end; ++j) sum += points[j].loss;
    loss.emplace_back(points[end - 1].tokens, sum / static_cast<double>(end - i));
  }
  for (const LossPoint& p : points) {
    if (p.validation_bpb >= 0) validation.emplace_back(p.tokens, p.validation_bpb);
  }
  Axis x{0, 1, kLeft, kRight}, y{0, 1, kBottom, kTop};
  for (const auto& [tokens, value] : loss) {
    x.high = std::max(x.high, tokens);
    // The first steps would squeeze everything after them.
    if (tokens > 0.02 * points.back().tokens) y.high = std::max(y.high, std::ceil(value));
  }
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 420\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"800\" height=\"420\" fill=\"white\"/>\n";
  svg += Grid(x, y);
  svg += Polyline(loss, x, y, "#1f5fa8");
  svg += Polyline(validation, x, y, "#c04a1a");
  svg += Text(kLeft, 22, "start", title);
  svg += Text(kRight, kBottom + 38, "end",
              "tokens; blue: training loss (nats per token), red: validation (bits per byte)");
  return svg + "</svg>\n";
}

Status WriteLossCurve(const std::vector<LossPoint>& points, const std::string& title,
                      const std::string& directory) {
  KVL_RETURN_IF_ERROR(WriteFileAtomically(directory + "/curve.csv", LossCurveCsv(points)));
  return WriteFileAtomically(directory + "/curve.svg", LossCurveSvg(points, title));
}

}  // namespace kvlathe
