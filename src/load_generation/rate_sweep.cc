#include "load_generation/rate_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "evaluation/svg_chart.h"

namespace kvlathe {
namespace {

bool Keeps(const RatePoint& point, double bound_ms) {
  return point.p90_ms.has_value() && *point.p90_ms <= bound_ms;
}

nlohmann::json MemberOf(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : nlohmann::json();
}

// Adds one run to the line of its label.
Status AddRun(const std::string& path, const nlohmann::json& run, const std::string& label,
              const std::string& key, std::vector<LineSeries>* lines) {
  const nlohmann::json rate = MemberOf(run, "request_rate"), value = MemberOf(run, key.c_str());
  if (!rate.is_number() || !value.is_number()) {
    return Error(StatusCode::kDataLoss,
                 "{}: no finite \"request_rate\" with \"{}\"; --plot takes files of kvlathe bench "
                 "serve with a rate",
                 path, key);
  }
  if (MemberOf(run, "completed") == 0) return OkStatus();  // there is no latency
  auto line = std::ranges::find(*lines, label, &LineSeries::name);
  if (line == lines->end()) line = lines->insert(lines->end(), LineSeries{label, {}});
  line->points.emplace_back(rate.get<double>(), value.get<double>());
  return OkStatus();
}

}  // namespace

std::string_view ToString(ServedRate::Kind kind) {
  switch (kind) {
    case ServedRate::Kind::kBetween:
      return "between";
    case ServedRate::Kind::kAtLeast:
      return "at least";
    case ServedRate::Kind::kBelow:
      return "below";
  }
  return "";
}

ServedRate ServedRateOf(std::span<const RatePoint> points, double bound_ms) {
  const auto above = std::ranges::find_if(
      points, [bound_ms](const RatePoint& point) { return !Keeps(point, bound_ms); });
  if (above == points.end()) return {points.back().rate, ServedRate::Kind::kAtLeast};
  if (above == points.begin()) return {above->rate, ServedRate::Kind::kBelow};
  const RatePoint& below = *std::prev(above);
  if (!above->p90_ms.has_value()) return {below.rate, ServedRate::Kind::kBetween};
  const double low = std::log(std::max(*below.p90_ms, 1e-9)), high = std::log(*above->p90_ms);
  const double share = (std::log(bound_ms) - low) / (high - low);
  return {below.rate + share * (above->rate - below.rate), ServedRate::Kind::kBetween};
}

StatusOr<std::string> PlotLatency(std::span<const ResultFile> files, const std::string& statistic) {
  LineChart chart;
  chart.title = "Normalized latency against request rate";
  chart.x.label = "request rate (requests/s)";
  chart.y = {fmt::format("{} of latency from arrival to the end / output tokens (ms)", statistic),
             true};
  const std::string key = fmt::format("{}_normalized_latency_ms", statistic);
  std::set<double> bounds;
  for (const ResultFile& file : files) {
    const nlohmann::json name = MemberOf(file.json, "label"), runs = MemberOf(file.json, "runs");
    const std::string label = name.is_string() ? name.get<std::string>() : file.path;
    const nlohmann::json bound = MemberOf(file.json, "slo_normalized_latency_ms");
    if (bound.is_number()) bounds.insert(bound.get<double>());
    if (!runs.is_array()) {
      KVL_RETURN_IF_ERROR(AddRun(file.path, file.json, label, key, &chart.series));
      continue;
    }
    for (const nlohmann::json& run : runs) {
      KVL_RETURN_IF_ERROR(AddRun(file.path, run, label, key, &chart.series));
    }
  }
  for (LineSeries& line : chart.series) std::ranges::sort(line.points);
  chart.y_line = bounds.size() == 1 ? *bounds.begin() : NAN;
  if (bounds.size() == 1) chart.y_line_name = fmt::format("bound {:g} ms", *bounds.begin());
  return ToSvgFile(chart);
}

}  // namespace kvlathe
