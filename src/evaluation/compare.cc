#include "evaluation/compare.h"

#include <fmt/format.h>

#include <algorithm>

#include "evaluation/kv_parts.h"

namespace kvlathe {

namespace {

nlohmann::ordered_json OverStepsJson(const Quality& q) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const StretchQuality& stretch : q.over_steps) {
    list.push_back({{"tokens", stretch.n_tokens},
                    {"kl", stretch.kl},
                    {"logit_deviation", stretch.logit_deviation},
                    {"top1_agreement", stretch.top1_agreement}});
  }
  return list;
}

std::string LabelOf(const CompareRow& row) {
  return row.rate.has_value() ? fmt::format("{} at {}", row.kv, *row.rate) : row.kv;
}

size_t LabelWidth(const Comparison& comparison) {
  size_t width = 2;
  for (const CompareRow& row : comparison.rows) width = std::max(width, LabelOf(row).size());
  return width;
}

}  // namespace

nlohmann::ordered_json ToJson(const Comparison& comparison) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const CompareRow& row : comparison.rows) {
    const Quality& q = row.quality;
    rows.push_back({{"kv", row.kv},
                    {"kv_resolved", row.kv_resolved},
                    {"kv_fraction", q.kv_fraction},
                    {"kv_bytes_per_token", q.kv_bytes_per_token},
                    {"perplexity", q.perplexity},
                    {"perplexity_change", q.perplexity_change},
                    {"perplexity_change_stderr", q.perplexity_change_stderr},
                    {"bits_per_byte", q.bits_per_byte},
                    {"kl", q.kl},
                    {"kl_stderr", q.kl_stderr},
                    {"top1_agreement", q.top1_agreement},
                    {"kl_median", q.kl_tail.median},
                    {"kl_p99", q.kl_tail.p99},
                    {"kl_p999", q.kl_tail.p999},
                    {"kl_worst_window", q.kl_tail.worst_window},
                    {"top1_worst_window", q.kl_tail.worst_window_top1},
                    {"ttft_ms", nullptr},
                    {"tbt_ms", nullptr},
                    {"kv_reserved_bytes", q.kv_reserved_bytes},
                    {"kv_peak_fraction", q.kv_peak_fraction},
                    {"kv_parts", PartsJson(q.kv_bytes)},
                    {"kv_reencoded", ReencodingJson(q.reencoding)},
                    {"over_steps", OverStepsJson(q)}});
    if (row.latency.has_value()) {
      rows.back()["ttft_ms"] = row.latency->ttft_ms;
      rows.back()["tbt_ms"] = row.latency->tbt_ms;
    }
    if (row.rate.has_value()) rows.back()["rate"] = *row.rate;
    if (row.predicted_kl.has_value()) rows.back()["predicted_kl"] = *row.predicted_kl;
  }
  return {{"model", comparison.model},
          {"text", comparison.text},
          {"tokens", comparison.n_tokens},
          {"rows", std::move(rows)}};
}

std::string ToTable(const Comparison& comparison) {
  const size_t width = LabelWidth(comparison);
  std::string table =
      fmt::format("{:<{}}  {:>9}  {:>11}  {:>10}  {:>15}  {:>17}  {:>7}  {:>8}  {:>7}\n", "kv",
                  width, "KV size %", "bytes/token", "perplexity", "change %", "KL nats/token",
                  "top-1 %", "TTFT ms", "TBT ms");
  for (const CompareRow& row : comparison.rows) {
    const Quality& q = row.quality;
    table += fmt::format(
        "{:<{}}  {:>9.2f}  {:>11.0f}  {:>10.3f}  {:>+8.2f} +-{:>4.2f}  {:>8.5f} +-{:>7.5f}  "
        "{:>7.2f}  {:>8}  {:>7}\n",
        LabelOf(row), width, 100 * q.kv_fraction, q.kv_bytes_per_token, q.perplexity,
        100 * q.perplexity_change, 100 * q.perplexity_change_stderr, q.kl, q.kl_stderr,
        100 * q.top1_agreement,
        row.latency.has_value() ? fmt::format("{:.2f}", row.latency->ttft_ms) : "-",
        row.latency.has_value() ? fmt::format("{:.3f}", row.latency->tbt_ms) : "-");
  }
  return table;
}

std::string ToTailsTable(const Comparison& comparison) {
  const size_t width = LabelWidth(comparison);
  std::string table =
      fmt::format("{:<{}}  {:>8}  {:>9}  {:>8}  {:>8}  {:>12}  {:>7}  {:>12}\n", "kv", width,
                  "KL mean", "median", "99%", "99.9%", "worst window", "top-1 %", "worst window");
  for (const CompareRow& row : comparison.rows) {
    const Quality& q = row.quality;
    const KlTail& tail = q.kl_tail;
    table += fmt::format(
        "{:<{}}  {:>8.5f}  {:>9.6f}  {:>8.4f}  {:>8.4f}  {:>12.5f}  {:>7.2f}  {:>12.2f}\n",
        LabelOf(row), width, q.kl, tail.median, tail.p99, tail.p999, tail.worst_window,
        100 * q.top1_agreement, 100 * tail.worst_window_top1);
  }
  return table;
}

std::string ToPartsTable(const Comparison& comparison) {
  const size_t width = LabelWidth(comparison);
  std::string table = fmt::format("{:<{}}  {:>11}  {:>9}  {:>11}  {:>13}  {:>9}  {:>9}  {:>11}\n",
                                  "kv", width, "blocks", "sinks", "run records", "layer records",
                                  "tables", "entries", "KV bytes");
  for (const CompareRow& row : comparison.rows) {
    const KvBytes& bytes = row.quality.kv_bytes;
    table += fmt::format("{:<{}}  {:>11}  {:>9}  {:>11}  {:>13}  {:>9}  {:>9}  {:>11}\n",
                         LabelOf(row), width, bytes.blocks, bytes.sinks, bytes.run_records,
                         bytes.layer_records, bytes.tables, bytes.entries, bytes.total());
  }
  return table;
}

}  // namespace kvlathe
