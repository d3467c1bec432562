#include "evaluation/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evaluation/svg_chart.h"

namespace kvlathe {
namespace {

// Colours of charts are variables, so that the dark scheme changes them too.
constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2026; --soft: #5c6570; --grid: #e1e5ea;
  --accent: #0a6c8f; --weak: #a9b3be; --level: #b3541e; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171b; --text: #e4e8ec; --soft: #9aa5b1; --grid: #2b3138; --accent: #58b8d8;
    --weak: #56616d; --level: #e0894f; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
  max-width: 1180px; margin: 2em auto; padding: 0 1.5em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2.2em; }
h3 { font-size: 1em; font-family: ui-monospace, monospace; margin-bottom: 0.3em; overflow-wrap: anywhere; }
p { color: var(--soft); max-width: 75ch; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 0.2em 0.8em; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th.text, td.text { text-align: left; } td.text { font-family: ui-monospace, monospace; font-size: 0.92em; }
.charts { display: flex; flex-wrap: wrap; gap: 1em 2em; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg text.title { fill: var(--text); font-weight: 600; font-size: 12px; } svg text.name { fill: var(--text); }
.grid { stroke: var(--grid); } .level { stroke: var(--level); stroke-dasharray: 5 4; }
.point { fill: var(--accent); } .faint { fill: var(--weak); }
.front { fill: none; stroke: var(--accent); stroke-width: 1.5; }
.curve { fill: none; stroke: var(--accent); stroke-opacity: 0.75; }
)";

struct Column {
  std::string name;
  bool is_text = false;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {
    html_ = "<div class=\"wide\"><table>\n<tr>";
    for (const Column& c : columns_) {
      html_ += fmt::format("<th{}>{}</th>", c.is_text ? " class=\"text\"" : "", EscapeHtml(c.name));
    }
    html_ += "</tr>\n";
  }
  void AddRow(const std::vector<std::string>& cells) {
    html_ += "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      html_ += fmt::format("<td{}>{}</td>", columns_[i].is_text ? " class=\"text\"" : "",
                           EscapeHtml(cells[i]));
    }
    html_ += "</tr>\n";
  }
  std::string Html() const { return html_ + "</table></div>\n"; }

 private:
  std::vector<Column> columns_;
  std::string html_;
};

std::string Heading(int level, std::string_view text) {
  return fmt::format("<h{}>{}</h{}>\n", level, EscapeHtml(text), level);
}
std::string Paragraph(std::string_view text) { return "<p>" + EscapeHtml(text) + "</p>\n"; }

std::string FactsTable(const Report& report) {
  Table table({{"model", true}, {report.model, true}});
  for (const auto& [name, value] : report.facts) table.AddRow({name, value});
  return table.Html();
}

std::string ComparisonSection(const Comparison& comparison) {
  std::string html = Heading(2, "Size and quality");
  html += Paragraph(fmt::format(
      "{} scored tokens of {}. KV size is relative to the 16-bit cache, tables and padding "
      "included; KL is nats per token to the uncompressed model.",
      comparison.n_tokens, comparison.text));
  ScatterChart chart{.title = "KL against size",
                     .x = {"KV size %"},
                     .y = {"KL, nats per token", true},
                     .y_line = NAN};
  Table table({{"kv", true},
               {"KV size %"},
               {"bytes/token"},
               {"perplexity"},
               {"bits/byte"},
               {"KL nats/token"},
               {"+-"},
               {"top-1 %"},
               {"TTFT ms"},
               {"TBT ms"}});
  for (const CompareRow& row : comparison.rows) {
    const Quality& q = row.quality;
    // The uncompressed model has no KL to itself, and a logarithm no place for it.
    if (q.kl > 0) chart.points.push_back({100 * q.kv_fraction, q.kl, row.kv});
    table.AddRow({row.kv, fmt::format("{:.2f}", 100 * q.kv_fraction),
                  fmt::format("{:.0f}", q.kv_bytes_per_token), fmt::format("{:.3f}", q.perplexity),
                  fmt::format("{:.4f}", q.bits_per_byte), fmt::format("{:.5f}", q.kl),
                  fmt::format("{:.5f}", q.kl_stderr), fmt::format("{:.2f}", 100 * q.top1_agreement),
                  row.latency ? fmt::format("{:.2f}", row.latency->ttft_ms) : "-",
                  row.latency ? fmt::format("{:.3f}", row.latency->tbt_ms) : "-"});
  }
  if (!chart.points.empty()) html += ToSvg(chart);
  html += table.Html();
  html += Heading(2, "KV bytes at a window's end, by part");
  Table parts({{"kv", true},
               {"blocks"},
               {"sinks"},
               {"run records"},
               {"layer records"},
               {"tables"},
               {"entries"},
               {"KV bytes"}});
  for (const CompareRow& row : comparison.rows) {
    const KvBytes& b = row.quality.kv_bytes;
    std::vector<std::string> cells = {row.kv};
    for (int64_t n :
         {b.blocks, b.sinks, b.run_records, b.layer_records, b.tables, b.entries, b.total()}) {
      cells.push_back(fmt::format("{}", n));
    }
    parts.AddRow(cells);
  }
  return html + parts.Html();
}

// The least accurate of the smallest first; only what is more accurate than all smaller caches.
std::vector<std::pair<double, double>> AccuracySteps(const Profile& profile) {
  std::vector<std::pair<double, double>> points, steps;
  for (const TunePoint& p : profile.points) {
    if (!p.is_cut_short) points.emplace_back(100 * p.kv_fraction, profile.AccuracyOf(p));
  }
  std::ranges::sort(points);
  for (const auto& point : points) {
    if (steps.empty() || point.second > steps.back().second) steps.push_back(point);
  }
  return steps;
}

std::vector<std::string> PointCells(const Profile& profile, const TunePoint& point) {
  std::vector<std::string> cells = {point.kv, fmt::format("{:.2f}", 100 * point.kv_fraction),
                                    fmt::format("{:.2f}", 1 / point.kv_fraction),
                                    fmt::format("{:.4f}", profile.AccuracyOf(point)),
                                    fmt::format("{:.3f}", point.tbt_ms)};
  for (size_t g = 0; g < profile.goals.size(); ++g) {
    cells.push_back(fmt::format("{:.4f}", point.scores[g].value));
  }
  return cells;
}

std::vector<Column> PointColumns(const Profile& profile) {
  std::vector<Column> columns = {{"kv", true}, {"KV size %"}, {"ratio"}, {"accuracy"}, {"TBT ms"}};
  for (const TuneGoal& goal : profile.goals) columns.push_back({goal.name});
  return columns;
}

ScatterChart TuneChart(const Profile& profile) {
  ScatterChart chart{.title = "Accuracy against size, of all caches measured to the end",
                     .x = {"KV size %", true},
                     .y = {"accuracy, share of the uncompressed model's"},
                     .steps = AccuracySteps(profile),
                     .y_line = NAN};
  std::vector<std::string> found;
  for (const TunedTarget& target : profile.targets) {
    chart.y_line = target.accuracy;
    for (const TunedMethod& method : target.methods) found.push_back(method.kv);
  }
  for (const TunePoint& p : profile.points) {
    if (p.is_cut_short) continue;
    chart.points.push_back({100 * p.kv_fraction, profile.AccuracyOf(p), p.kv,
                            std::ranges::find(found, p.kv) == found.end()});
  }
  return chart;
}

std::string ProfileSection(const Profile& profile, const std::string& path) {
  std::string html = Heading(2, "Tuned caches");
  html +=
      Paragraph(fmt::format("{}: {} caches measured ({}), {} of them only until they had failed. "
                            "Size is at the model's full context. Accuracy is the least over "
                            "the goals of score / baseline, or baseline / perplexity.",
                            path, profile.points.size(), profile.settings,
                            std::ranges::count_if(profile.points, &TunePoint::is_cut_short)));
  html += ToSvg(TuneChart(profile));
  for (const TunedTarget& target : profile.targets) {
    html += Heading(2, fmt::format("Smallest of each method that keeps {}", target.accuracy));
    std::vector<Column> columns = PointColumns(profile);
    columns.insert(columns.begin(), {"method", true});
    Table table(std::move(columns));
    for (const TunedMethod& method : target.methods) {
      const auto point = std::ranges::find(profile.points, method.kv, &TunePoint::kv);
      std::vector<std::string> cells = {"none of those tried"};
      if (point != profile.points.end()) cells = PointCells(profile, *point);
      cells.insert(cells.begin(), method.name);
      cells.resize(6 + profile.goals.size());
      table.AddRow(cells);
    }
    html += table.Html();
  }
  html += Heading(2, "Caches that no other beats in size, accuracy and time");
  Table front(PointColumns(profile));
  for (int i : ParetoFront(profile)) front.AddRow(PointCells(profile, profile.points[i]));
  return html + front.Html();
}

std::string SpectraCharts(const Report& report, const ReportCache& cache, bool is_qk) {
  std::string html;
  for (int l = 0; l < report.n_layers; ++l) {
    CurveChart chart{fmt::format("{}, layer {}", is_qk ? "QK" : "V", l), {}};
    for (int g = 0; g < report.n_kv_heads; ++g) {
      const HeadSpectra& spectra = cache.spectra[l * report.n_kv_heads + g];
      chart.curves.emplace_back(is_qk ? spectra.qk : spectra.v);
    }
    html += ToSvg(chart);
  }
  return "<div class=\"charts\">\n" + html + "</div>\n";
}

std::string CacheSection(const Report& report, const ReportCache& cache) {
  std::string html = Heading(3, cache.kv) + Paragraph(cache.kv_resolved);
  html += "<div class=\"charts\">\n";
  for (const ReportMap& map : cache.maps) {
    html += ToSvg(
        HeatMapChart{map.title, map.values, report.n_layers, report.n_kv_heads, map.n_decimals});
  }
  html += "</div>\n";
  if (cache.spectra.empty()) return html;
  html += Paragraph("Singular values by which the basis chooses ranks, a curve for each KV head:");
  return html + SpectraCharts(report, cache, true) + SpectraCharts(report, cache, false);
}

}  // namespace

std::string ToHtml(const Report& report) {
  const std::string title = "KV caches of " + report.model;
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{}</title>\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<style>{}</style>"
      "</head>\n<body>\n",
      EscapeHtml(title), kStyle);
  html += Heading(1, title) + FactsTable(report);
  if (report.profile.has_value()) html += ProfileSection(*report.profile, report.profile_path);
  html += ComparisonSection(report.comparison);
  const bool has_maps =
      std::ranges::any_of(report.caches, [](const ReportCache& c) { return !c.maps.empty(); });
  if (has_maps) {
    html += Heading(2, "By layer and head");
    html += Paragraph(
        "A row per layer, a column per KV head, dark least, bright largest; each map has a scale "
        "of "
        "its own.");
    for (const ReportCache& cache : report.caches) {
      if (!cache.maps.empty()) html += CacheSection(report, cache);
    }
  }
  return html + "</body></html>\n";
}

}  // namespace kvlathe
