#include "engine/kv_forecast.h"

#include <algorithm>

namespace kvlathe {

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

int64_t LeastBytesAlone(const CacheLayout& layout, int64_t n_tokens, int64_t max_step,
                        int64_t n_prompt) {
  if (!layout.ModelDecidesEntries()) {
    return PeakSequenceBytes(layout, n_tokens, max_step, n_prompt);
  }
  return PeakSequenceBytes(layout, std::min<int64_t>(n_tokens, layout.n_sink + 1), 1, n_prompt);
}

}  // namespace kvlathe
