#include "evaluation/merging/merging_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "evaluation/svg_chart.h"
#include "evaluation/svg_picture.h"

namespace kvlathe {
namespace {

constexpr char kRatioName[] = "compression ratio (positions per entry)";
constexpr size_t kMostPieces = 480;  // of a text that is drawn

double CompressionOf(const ModelMerging& merging) {
  return CompressionByLength(merging.texts).back().all;
}

std::string TextsOf(const ModelMerging& merging) {
  const size_t n = merging.texts.size();
  return fmt::format("{} of {} tokens", n == 1 ? "a text" : fmt::format("{} texts", n),
                     merging.texts.front().n_tokens);
}

std::string DrawHeads(std::span<const ModelMerging> models) {
  const MergedText& shape = models.back().texts.front();
  HeatMapPanels chart = {
      .title = fmt::format("Compression by layer and head{}, {}",
                           models.size() > 1 ? " along training" : "", TextsOf(models.back())),
      .row_name = "layer",
      .column_name = "KV head",
      .value_name = "positions per entry",
      .n_rows = shape.n_layers,
      .n_columns = shape.n_kv_heads,
      .is_log = true};
  for (const ModelMerging& model : models) {
    chart.panels.push_back({fmt::format("{}: {:.2f}", model.name, CompressionOf(model)),
                            CompressionByHead(model.texts)});
  }
  return ToSvgFile(chart);
}

std::string DrawLengths(std::span<const ModelMerging> models) {
  LineChart chart{.title = "Compression by length, " + TextsOf(models.back()),
                  .x = {"tokens of the text (log)", true},
                  .y = {kRatioName, models.size() == 1},
                  .y_line = std::numeric_limits<double>::quiet_NaN()};
  for (const ModelMerging& model : models) {
    LineSeries all{models.size() > 1 ? model.name : "all heads", {}};
    LineSeries most{"most merged head", {}}, least{"least merged head", {}};
    for (const LengthCompression& length : CompressionByLength(model.texts)) {
      all.points.emplace_back(length.n_tokens, length.all);
      most.points.emplace_back(length.n_tokens, length.most);
      least.points.emplace_back(length.n_tokens, length.least);
    }
    chart.series.push_back(all);
    if (models.size() > 1) continue;
    chart.series.push_back(most);
    chart.series.push_back(least);
  }
  return ToSvgFile(chart);
}

std::string DrawAlpha(std::span<const ModelMerging> models) {
  LineChart chart{.title = "Mean alpha by position, " + TextsOf(models.back()),
                  .x = {"position in the context"},
                  .y = {"mean alpha (share of heads in which the position joins an entry)"},
                  .y_line = std::numeric_limits<double>::quiet_NaN()};
  for (const ModelMerging& model : models) {
    LineSeries& series = chart.series.emplace_back(LineSeries{model.name, {}});
    for (const AlphaRange& range : AlphaByPosition(model.texts)) {
      series.points.emplace_back((range.begin + range.end - 1) / 2.0, range.alpha);
    }
  }
  return ToSvgFile(chart);
}

std::string DrawSegments(const ModelMerging& model, const SegmentedHead& segments) {
  const MergedText& text = model.texts.front();
  const size_t n =
      std::min({segments.pieces.size(), static_cast<size_t>(text.n_tokens), kMostPieces});
  SegmentedText picture;
  int segment = -1;
  for (size_t t = 0; t < n; ++t) {
    if (t == 0 || text.Begins(static_cast<int>(t), segments.head)) ++segment;
    picture.pieces.push_back({segments.pieces[t], segment});
  }
  picture.title =
      fmt::format("Entries of layer {}, KV head {}: {}", segments.head / text.n_kv_heads,
                  segments.head % text.n_kv_heads, model.name);
  picture.subtitle =
      fmt::format("the first {} of {} tokens become {} entries", n, text.n_tokens, segment + 1);
  picture.of_several = "the tokens of one entry share a colour";
  picture.of_one = "an entry of one token";
  return ToSvgFile(picture);
}

}  // namespace

nlohmann::ordered_json MergingJson(const ModelMerging& merging) {
  using json = nlohmann::ordered_json;
  const MergedText& shape = merging.texts.front();
  json by_head = json::array(), by_length = json::array(), by_position = json::array();
  const std::vector<double> ratios = CompressionByHead(merging.texts);
  for (int l = 0; l < shape.n_layers; ++l) {
    const auto first = ratios.begin() + int64_t{l} * shape.n_kv_heads;
    by_head.push_back(std::vector<double>(first, first + shape.n_kv_heads));
  }
  for (const LengthCompression& length : CompressionByLength(merging.texts)) {
    by_length.push_back({{"tokens", length.n_tokens},
                         {"compression", length.all},
                         {"least", length.least},
                         {"most", length.most}});
  }
  for (const AlphaRange& range : AlphaByPosition(merging.texts)) {
    by_position.push_back({{"begin", range.begin}, {"end", range.end}, {"alpha", range.alpha}});
  }
  return {{"texts", merging.texts.size()},         {"tokens", shape.n_tokens},
          {"compression", CompressionOf(merging)}, {"compression_by_head", by_head},
          {"compression_by_length", by_length},    {"alpha_by_position", by_position}};
}

int TypicalHead(const ModelMerging& merging) {
  const double all = CompressionOf(merging);
  const std::vector<double> ratios = CompressionByHead(merging.texts);
  const auto nearest =
      std::ranges::min_element(ratios, {}, [all](double ratio) { return std::abs(ratio - all); });
  return static_cast<int>(nearest - ratios.begin());
}

nlohmann::ordered_json SegmentsJson(const ModelMerging& merging, int head) {
  const MergedText& text = merging.texts.front();
  std::vector<int> begins;
  for (int t = 0; t < text.n_tokens; ++t) {
    if (text.Begins(t, head)) begins.push_back(t);
  }
  return {{"layer", head / text.n_kv_heads},
          {"kv_head", head % text.n_kv_heads},
          {"entries", begins.size()},
          {"begins", begins}};
}

std::vector<Figure> DrawMerging(std::span<const ModelMerging> models,
                                const SegmentedHead& segments) {
  return {{"compression-by-head.svg", DrawHeads(models)},
          {"compression-by-length.svg", DrawLengths(models)},
          {"alpha-by-position.svg", DrawAlpha(models)},
          {"segments.svg", DrawSegments(models.back(), segments)}};
}

}  // namespace kvlathe
