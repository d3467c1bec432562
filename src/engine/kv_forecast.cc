#include "engine/kv_forecast.h"

#include <algorithm>
#include <vector>

#include "kv/cache_objects.h"
#include "kv/seal/seal_schedule.h"

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

int64_t BytesToPressOff(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt) {
  if (!layout.HasPressedRuns() || layout.HasWindow()) return 0;
  const std::vector<RunExtent> runs = RunsOf(layout, n_tokens, n_prompt);
  if (runs.empty()) return 0;
  int64_t block_bytes = 0;  // of all heads
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      block_bytes += BytesPressedOff(layout, HeadInRunOf(layout, l, g), runs.front());
    }
  }
  return runs.back().first_block * block_bytes;
}

int64_t LeastBytesAlone(const CacheLayout& layout, int64_t n_tokens, int64_t max_step,
                        int64_t n_prompt) {
  if (!layout.ModelDecidesEntries()) {
    return PeakSequenceBytes(layout, n_tokens, max_step, n_prompt);
  }
  return PeakSequenceBytes(layout, std::min<int64_t>(n_tokens, layout.n_sink + 1), 1, n_prompt);
}

}  // namespace kvlathe
