// kvlathe chart: lines through points of a JSON file as an SVG file.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "evaluation/svg_chart.h"
#include "io/files.h"
#include "kvlathe/options.h"

namespace kvlathe {
namespace {

struct ChartOptions {
  std::string data;
  std::string output;
};

Status NotAChart(const std::string& path, const std::string& what) {
  return Error(StatusCode::kDataLoss,
               "{}: {}; expected {{\"title\", \"x\": {{\"label\", \"log\"}}, \"y\": {{\"label\", "
               "\"log\"}}, \"series\": [{{\"name\", \"points\": [[x, y], ...]}}, ...]}}",
               path, what);
}

StatusOr<Axis2d> ReadAxis(const std::string& path, const nlohmann::json& data, const char* name) {
  const auto axis = data.find(name);
  if (axis == data.end() || !axis->is_object() || !axis->contains("label") ||
      !axis->at("label").is_string() || (axis->contains("log") && !axis->at("log").is_boolean())) {
    return NotAChart(path, fmt::format("'{}' is no axis", name));
  }
  return Axis2d{axis->at("label").get<std::string>(), axis->value("log", false)};
}

StatusOr<LineSeries> ReadSeries(const std::string& path, const nlohmann::json& data,
                                const LineChart& chart) {
  if (!data.is_object() || !data.contains("name") || !data.at("name").is_string() ||
      !data.contains("points") || !data.at("points").is_array()) {
    return NotAChart(path, "a series lacks its name or its points");
  }
  LineSeries series{data.at("name").get<std::string>(), {}};
  for (const nlohmann::json& point : data.at("points")) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) {
      return NotAChart(path,
                       fmt::format("'{}' has a point that is no pair of numbers", series.name));
    }
    const auto x = point[0].get<double>(), y = point[1].get<double>();
    if ((chart.x.is_log && x <= 0) || (chart.y.is_log && y <= 0)) {
      return NotAChart(path,
                       fmt::format("'{}' has the point [{}, {}], which a logarithmic axis has "
                                   "no place for",
                                   series.name, x, y));
    }
    if (!series.points.empty() && x < series.points.back().first) {
      return NotAChart(path, fmt::format("the points of '{}' do not rise in x", series.name));
    }
    series.points.emplace_back(x, y);
  }
  return series;
}

StatusOr<LineChart> ReadChart(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json data, ReadJsonFile(path));
  if (!data.is_object() || !data.contains("title") || !data.at("title").is_string() ||
      !data.contains("series") || !data.at("series").is_array() || data.at("series").empty()) {
    return NotAChart(path, "it lacks a title or series");
  }
  LineChart chart{.title = data.at("title").get<std::string>(),
                  .y_line = std::numeric_limits<double>::quiet_NaN()};
  KVL_ASSIGN_OR_RETURN(chart.x, ReadAxis(path, data, "x"));
  KVL_ASSIGN_OR_RETURN(chart.y, ReadAxis(path, data, "y"));
  for (const nlohmann::json& item : data.at("series")) {
    KVL_ASSIGN_OR_RETURN(LineSeries series, ReadSeries(path, item, chart));
    chart.series.push_back(std::move(series));
  }
  if (!data.contains("level")) return chart;
  const nlohmann::json& level = data.at("level");
  if (!level.is_object() || !level.contains("y") || !level.at("y").is_number() ||
      !level.contains("name") || !level.at("name").is_string()) {
    return NotAChart(path, "'level' lacks y or name");
  }
  chart.y_line = level.at("y").get<double>();
  chart.y_line_name = level.at("name").get<std::string>();
  return chart;
}

Status DrawChart(const ChartOptions& options) {
  KVL_ASSIGN_OR_RETURN(const LineChart chart, ReadChart(options.data));
  return WriteFileAtomically(options.output, ToSvgFile(chart));
}

}  // namespace

void AddChartVerb(Verbs* verbs) {
  auto options = std::make_shared<ChartOptions>();
  CLI::App* verb = verbs->Add("chart", "Lines through points of a JSON file as SVG",
                              "kvlathe chart points.json -o points.svg",
                              [options] { return DrawChart(*options); });
  verb->add_option("data", options->data, "JSON: title, x, y, series (docs/evaluation.md)")
      ->required();
  verb->add_option("-o,--out", options->output, "SVG file to write")->required();
}

}  // namespace kvlathe
