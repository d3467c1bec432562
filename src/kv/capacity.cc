#include "kv/capacity.h"

#include <algorithm>

#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

// The most that a sequence holds while it decodes, what is set aside for sealing included.
int64_t MostWhileDecoding(const CacheLayout& layout, const SequenceLength& length) {
  if (layout.retention.has_value()) {
    return PeakSequenceBytes(layout, length.n_tokens, length.n_step, length.n_prompt);
  }
  int64_t most_bytes = 0, bytes_before = 0;
  for (int64_t n = std::min(length.n_prompt, length.n_tokens); n <= length.n_tokens; ++n) {
    const int64_t n_sealed = SealedBlocks(layout, n - 1, length.n_prompt);
    const RunExtent run = RunEndingAt(layout, n, length.n_prompt, n_sealed);
    if (run.n_blocks > 0 && n > length.n_prompt) {
      // The position that ends a run takes no block; the list of runs of every head may grow.
      const auto table_bytes = static_cast<int64_t>(layout.shapes.size()) * kObjectAlignment;
      most_bytes =
          std::max(most_bytes, bytes_before + SealRoomBytes(layout, run, 0, n - 1) + table_bytes);
    }
    bytes_before = SequenceBytes(layout, n, 1, length.n_prompt);
    most_bytes = std::max(most_bytes, bytes_before);
  }
  return most_bytes;
}

}  // namespace

int64_t LongestPrompt(const CacheLayout& layout, int64_t budget_bytes, int64_t max_step,
                      int64_t max_tokens) {
  int64_t fits = 0, too_long = max_tokens + 1;
  while (too_long - fits > 1) {
    const int64_t n = fits + (too_long - fits) / 2;
    (PeakSequenceBytes(layout, n, max_step, n) <= budget_bytes ? fits : too_long) = n;
  }
  return fits;
}

int64_t SequencesThatFit(const CacheLayout& layout, const SequenceLength& length,
                         int64_t budget_bytes) {
  const int64_t n_read = std::min(length.n_prompt, length.n_tokens);
  const int64_t reading_bytes = PeakSequenceBytes(layout, n_read, length.n_step, length.n_prompt);
  const int64_t decoding_bytes = std::max<int64_t>(1, MostWhileDecoding(layout, length));
  if (reading_bytes > budget_bytes) return 0;
  // Those that have read their prompts wait for the newest.
  const int64_t waiting_bytes =
      std::max<int64_t>(1, SequenceBytes(layout, n_read, 1, length.n_prompt));
  return std::min(1 + (budget_bytes - reading_bytes) / waiting_bytes,
                  budget_bytes / decoding_bytes);
}

}  // namespace kvlathe
