#include "evaluation/kv_parts.h"

#include <fmt/format.h>

#include <cmath>

#include "format/rows/block_layout.h"

namespace kvlathe {

nlohmann::ordered_json PartsJson(const KvBytes& bytes) {
  return {{"blocks", bytes.blocks},           {"sinks", bytes.sinks},
          {"run_records", bytes.run_records}, {"layer_records", bytes.layer_records},
          {"tables", bytes.tables},           {"entries", bytes.entries}};
}

nlohmann::ordered_json ReencodingJson(const Reencoding& r) {
  const auto share = [](double error, double norm) {
    return norm > 0 ? std::sqrt(error / norm) : 0;
  };
  return {{"times", r.n_times},
          {"rows", r.n_rows},
          {"k_error", share(r.k_error, r.k_norm)},
          {"v_error", share(r.v_error, r.v_norm)}};
}

std::string PartsText(const KvBytes& bytes) {
  const nlohmann::ordered_json parts = PartsJson(bytes);
  std::string text;
  for (const auto& [name, n_bytes] : parts.items()) {
    if (n_bytes == 0) continue;
    std::string words = name;
    for (char& c : words) c = c == '_' ? ' ' : c;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", words, n_bytes.get<int64_t>());
  }
  return text;
}

std::string ShareOfReferenceText(double fraction, int64_t n_tokens) {
  constexpr int64_t kTellingBlocks = 4;  // of fewer, one that is not full is much
  if (fraction > 1 && n_tokens < kTellingBlocks * kBlockSize) {
    return fmt::format(
        "too short to tell its share of the 16-bit cache (blocks are filled by {} tokens)",
        kBlockSize);
  }
  const std::string share = fmt::format("{:.2f}% of the 16-bit cache", 100 * fraction);
  if (fraction <= 1) return share;
  return fmt::format("{} (blocks are filled by {} tokens)", share, kBlockSize);
}

}  // namespace kvlathe
