#include "kvlathe/suggestions.h"

#include <algorithm>
#include <utility>

namespace kvlathe {
namespace {

// Edits between two words; neighbours that change places are one (optimal string alignment).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

constexpr std::string_view kOnCpu = "is not needed: kvlathe computes on the CPU";
constexpr std::string_view kTokens = "is called -n or --max-tokens here";
constexpr std::string_view kCacheType =
    "is part of --kv here, for keys and values together: --kv q8_0, --kv q4_0, --kv "
    "'kivi(bits=4)', ...";
constexpr std::string_view kNotNeeded = "is not needed here; leave it out";

constexpr std::pair<std::string_view, std::string_view> kForeignOptions[] = {
    {"--n-predict", kTokens},
    {"--predict", kTokens},
    {"-ngl", kOnCpu},
    {"--gpu-layers", kOnCpu},
    {"--n-gpu-layers", kOnCpu},
    {"-ctk", kCacheType},
    {"-ctv", kCacheType},
    {"--cache-type-k", kCacheType},
    {"--cache-type-v", kCacheType},
    {"--kv-cache-dtype", kCacheType},
    {"-fa", kNotNeeded},
    {"--flash-attn", kNotNeeded},
    {"--mlock", kNotNeeded},
    {"--no-mmap", kNotNeeded},
    {"-b", kNotNeeded},
    {"-ub", kNotNeeded},
    {"--batch-size", kNotNeeded},
    {"--ubatch-size", kNotNeeded},
    {"--jinja", kNotNeeded},
    {"-no-cnv", kNotNeeded},
    {"-tb", "is called -t or --threads here"},
    {"--threads-batch", "is called -t or --threads here"},
    {"--temperature", "is called --temp here"},
    {"--max-model-len", "is called -c or --ctx-size here"},
    {"--gpu-memory-utilization", "is called --kv-memory here, and takes a size"},
    {"--enable-prefix-caching", "is always on here, with --prefix-memory as its bound"},
    {"--no-enable-prefix-caching", "is called --prefix-memory 0 here"},
    {"--cache-ram", "is called --prefix-memory here, and takes a size"},
    {"--slot-save-path", "is called --prefix-dir here"},
    {"-sys", "is called --system here"},
    {"--system-prompt", "is called --system here"},
    {"-cnv", "is a verb of its own here: kvlathe chat"},
    {"--conversation", "is a verb of its own here: kvlathe chat"},
};

}  // namespace

std::optional<std::string> NearestOf(std::string_view word,
                                     const std::vector<std::string>& candidates) {
  std::optional<std::string> nearest;
  size_t fewest = 0;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(word, candidate);
    if (distance > std::max<size_t>(1, candidate.size() / 3)) continue;
    if (nearest.has_value() && distance >= fewest) continue;
    nearest = candidate;
    fewest = distance;
  }
  return nearest;
}

std::optional<std::string_view> NameHere(std::string_view option) {
  for (const auto& [name, meaning] : kForeignOptions) {
    if (name == option) return meaning;
  }
  return std::nullopt;
}

}  // namespace kvlathe
