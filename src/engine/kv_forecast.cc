#include "engine/kv_forecast.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {

bool ModelDecidesEntries(const CacheLayout& layout) {
  return layout.MergesEntries() && layout.retention->merge->every == 0;
}

MergedCounts MergedCountsOf(const SequenceCache& cache) {
  const CacheLayout& layout = cache.layout();
  MergedCounts counts;
  const int64_t n_positions = std::max(0, cache.n_tokens() - layout.n_sink);
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      counts.n_positions += n_positions;
      counts.n_entries += std::max(0, cache.head(l, g).n_entries());
    }
  }
  return counts;
}

int64_t ForecastBytes(const CacheLayout& layout, const SequenceGrowth& growth, int64_t max_step,
                      int64_t n_prompt, double share) {
  if (!ModelDecidesEntries(layout)) return PeakBytesOfGrowth(layout, growth, max_step, n_prompt);
  // A sequence of entries that never merge. A step takes room for its positions before they merge.
  const auto entries_of = [&](int64_t n) {
    const auto n_behind = static_cast<double>(std::max<int64_t>(0, n - layout.n_sink));
    return std::min(n, layout.n_sink + static_cast<int64_t>(std::ceil(share * n_behind)));
  };
  const int64_t n_step = std::min(max_step, growth.n_tokens - growth.n_held);
  const int64_t n_until = entries_of(growth.n_tokens - n_step) + n_step;
  return PeakBytesOfGrowth(layout, {entries_of(growth.n_held), n_until}, n_step,
                           entries_of(n_prompt));
}

int64_t LeastBytesAlone(const CacheLayout& layout, int64_t n_tokens, int64_t max_step,
                        int64_t n_prompt) {
  if (!ModelDecidesEntries(layout)) {
    return PeakSequenceBytes(layout, n_tokens, max_step, n_prompt);
  }
  return PeakSequenceBytes(layout, std::min<int64_t>(n_tokens, layout.n_sink + 1), 1, n_prompt);
}

}  // namespace kvlathe
