#include <fmt/format.h>

#include "evaluation/bench/bench_attention.h"

namespace kvlathe {

std::string_view PhaseName(BenchPhase phase) {
  return phase == BenchPhase::kDecode ? "decode" : "prefill";
}

nlohmann::ordered_json ToJson(const AttentionBenchReport& report) {
  nlohmann::ordered_json json;
  json["device"] = report.device;
  json["threads"] = report.n_threads;
  json["read_gb_per_s"] = report.read_gb_per_s;
  json["gemm_tflop_per_s"] = report.gemm_tflop_per_s;
  json["integer_tdot_per_s"] = report.integer_tdot_per_s;
  json["seed"] = report.seed;
  json["ranks"] = report.is_of_model ? "of the model" : "drawn";
  json["rows"] = nlohmann::ordered_json::array();
  for (const AttentionBenchRow& row : report.rows) {
    json["rows"].push_back({{"phase", PhaseName(row.phase)},
                            {"context", row.context},
                            {"n_heads", report.n_heads},
                            {"n_kv_heads", report.n_kv_heads},
                            {"head_dim", report.head_dim},
                            {"kv", row.kv},
                            {"schedule", row.schedule},
                            {"time_us", row.time_us},
                            {"bytes", row.bytes},
                            {"working_set_bytes", row.working_set_bytes},
                            {"speedup_vs_none", row.speedup_vs_none},
                            {"fraction_of_limit", row.fraction_of_limit},
                            {"query_tokens", row.n_tokens}});
  }
  return json;
}

std::string ToMarkdown(const AttentionBenchReport& report) {
  std::string text = fmt::format(
      "{}, {} threads: reads {:.1f} GB/s, multiplies {:.2f} TFLOP/s and {:.2f} Tdot/s of bytes. {} "
      "heads, {} KV heads, "
      "head_dim {}; ranks {} (seed {}).\n\n"
      "| phase | context | tokens | kv | schedule | time us | bytes | working set bytes | speedup "
      "| "
      "of limit |\n"
      "|---|---:|---:|---|---|---:|---:|---:|---:|---:|\n",
      report.device, report.n_threads, report.read_gb_per_s, report.gemm_tflop_per_s,
      report.integer_tdot_per_s, report.n_heads, report.n_kv_heads, report.head_dim,
      report.is_of_model ? "of the model" : "drawn", report.seed);
  for (const AttentionBenchRow& row : report.rows) {
    text += fmt::format("| {} | {} | {} | {} | {} | {:.1f} | {} | {} | {:.2f} | {:.2f} |\n",
                        PhaseName(row.phase), row.context, row.n_tokens, row.kv, row.schedule,
                        row.time_us, row.bytes, row.working_set_bytes, row.speedup_vs_none,
                        row.fraction_of_limit);
  }
  return text;
}

}  // namespace kvlathe
