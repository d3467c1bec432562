#include "kv/capacity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

// A sequence that merges has fewer entries than positions. This says how many entries it has at n
// positions, if `share` of those behind the sinks stay.
int64_t PositionsOfEntries(const CacheLayout& layout, int64_t n, double share) {
  if (n == kEndlessPrompt) return n;
  constexpr double kRounding = 1e-9;  // a share that was counted is no exact binary fraction
  const auto n_behind = static_cast<double>(std::max<int64_t>(0, n - layout.n_sink));
  return std::min(n, layout.n_sink + static_cast<int64_t>(std::ceil(share * n_behind - kRounding)));
}

// The cache of one head of a model that decides what merges: each is sealed by itself, so that the
// bytes of a sequence are the sum over them.
CacheLayout LayoutOfHead(const CacheLayout& layout, size_t head_idx) {
  CacheLayout head = layout;
  head.n_layers = head.n_kv_heads = 1;
  head.shapes = {layout.shapes[head_idx]};
  if (!layout.storages.empty()) head.storages = {layout.storages[head_idx]};
  return head;
}

// Where the model decides what merges and the share of every head is known: what a sequence holds
// from the end of its prompt on.
class MergedSequence {
 public:
  MergedSequence(const CacheLayout& layout, std::span<const double> shares, int64_t n_prompt)
      : layout_(layout),
        shares_(shares),
        n_prompt_(n_prompt),
        lengths_(shares.size()),
        runs_(shares.size()) {
    EndPrompt();
  }

  // At rest.
  int64_t n_bytes() const { return MergedParts(layout_, lengths_).total(); }

  // The most while it grows to n_tokens, one position at a time.
  int64_t MostUntil(int64_t n_tokens) {
    int64_t most_bytes = n_bytes();
    for (int64_t at = n_prompt_; at < n_tokens;) {
      at = std::min(n_tokens, NextSealPoint(layout_, at, n_prompt_));
      // The newest position takes room before it merges, and so does what may be sealed then.
      for (size_t i = 0; i < lengths_.size(); ++i) lengths_[i].n_entries = EntriesAt(i, at - 1) + 1;
      FindRuns(at);
      most_bytes = std::max(most_bytes, n_bytes() + RoomBytes());
      for (size_t i = 0; i < lengths_.size(); ++i) lengths_[i].n_entries = EntriesAt(i, at);
      FindRuns(at);
      for (size_t i = 0; i < lengths_.size(); ++i) {
        lengths_[i].n_sealed_blocks += static_cast<int>(runs_[i].n_blocks);
      }
      most_bytes = std::max(most_bytes, n_bytes());
    }
    return most_bytes;
  }

 private:
  int EntriesAt(size_t head_idx, int64_t n_tokens) const {
    const int64_t n = PositionsOfEntries(layout_, n_tokens, shares_[head_idx]) - layout_.n_sink;
    return static_cast<int>(std::max<int64_t>(0, n));
  }
  void FindRuns(int64_t at) {
    if (!layout_.seal.has_value()) return;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const MergedLength& length = lengths_[i];
      runs_[i] = RunOfHeadAt(layout_, at, n_prompt_, length.n_entries, length.n_sealed_blocks);
    }
  }
  // To seal runs_; the list of runs of a head may grow.
  int64_t RoomBytes() const {
    const auto n_growing =
        std::ranges::count_if(runs_, [](const RunExtent& run) { return run.n_blocks > 0; });
    if (n_growing == 0) return 0;
    return SealRoomBytes(layout_, runs_, 0) + n_growing * kObjectAlignment;
  }
  void EndPrompt() {
    for (size_t i = 0; i < lengths_.size(); ++i) lengths_[i].n_entries = EntriesAt(i, n_prompt_);
    FindRuns(n_prompt_);
    for (size_t i = 0; i < lengths_.size(); ++i) {
      lengths_[i].n_prompt_blocks = static_cast<int>(runs_[i].n_blocks);
      lengths_[i].n_sealed_blocks = lengths_[i].n_prompt_blocks;
    }
  }

  const CacheLayout& layout_;
  const std::span<const double> shares_;
  const int64_t n_prompt_;
  std::vector<MergedLength> lengths_;  // [n_layers * n_kv_heads], as of the last step
  std::vector<RunExtent> runs_;        // of each head, that the last step ended
};

// The most that a sequence takes while its prompt is read, by the shares of its heads if there are
// some.
int64_t MostWhileReading(const CacheLayout& layout, std::span<const double> shares, int64_t n_read,
                         int64_t max_step, int64_t n_prompt) {
  if (shares.empty()) return PeakSequenceBytes(layout, n_read, max_step, n_prompt);
  int64_t n_bytes = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    n_bytes +=
        PeakBytesIfMerged(LayoutOfHead(layout, i), {0, n_read}, max_step, n_prompt, shares[i]);
  }
  return n_bytes;
}

// The most that a sequence holds from the end of its prompt on, what is set aside for sealing
// included. Where a prompt does not end, it is all that is read.
int64_t MostWhileDecoding(const CacheLayout& layout, const SequenceLength& length) {
  if (layout.retention.has_value()) {
    if (length.n_prompt == length.n_tokens) {
      return SequenceBytes(layout, length.n_tokens, 1, length.n_prompt);
    }
    const int64_t n_held = length.n_prompt < length.n_tokens ? length.n_prompt : 0;
    return PeakBytesOfGrowth(layout, {n_held, length.n_tokens}, 1, length.n_prompt);
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

// The shares if they say more than lengths do.
std::span<const double> SharesOfHeads(const CacheLayout& layout, std::span<const double> shares) {
  if (!layout.ModelDecidesEntries()) return {};
  KVL_CHECK(shares.empty() || shares.size() == layout.shapes.size());
  return shares;
}

}  // namespace

int64_t PeakBytesIfMerged(const CacheLayout& layout, const SequenceGrowth& growth, int64_t max_step,
                          int64_t n_prompt, double share) {
  if (!layout.ModelDecidesEntries()) return PeakBytesOfGrowth(layout, growth, max_step, n_prompt);
  const auto entries_of = [&](int64_t n) { return PositionsOfEntries(layout, n, share); };
  // A step takes room for its positions before they merge.
  const int64_t n_step = std::min(max_step, growth.n_tokens - growth.n_held);
  const int64_t n_until = entries_of(growth.n_tokens - n_step) + n_step;
  return PeakBytesOfGrowth(layout, {entries_of(growth.n_held), n_until}, n_step,
                           entries_of(n_prompt));
}

int64_t LongestPrompt(const CacheLayout& layout, int64_t budget_bytes, int64_t max_step,
                      int64_t max_tokens, std::span<const double> shares) {
  shares = SharesOfHeads(layout, shares);
  int64_t fits = 0, too_long = max_tokens + 1;
  while (too_long - fits > 1) {
    const int64_t n = fits + (too_long - fits) / 2;
    const int64_t needed = MostWhileReading(layout, shares, n, max_step, n);
    (needed <= budget_bytes ? fits : too_long) = n;
  }
  return fits;
}

int64_t SequencesThatFit(const CacheLayout& layout, const SequenceLength& length,
                         int64_t budget_bytes, std::span<const double> shares) {
  shares = SharesOfHeads(layout, shares);
  const int64_t n_read = std::min(length.n_prompt, length.n_tokens);
  const int64_t reading_bytes =
      MostWhileReading(layout, shares, n_read, length.n_step, length.n_prompt);
  if (reading_bytes > budget_bytes) return 0;
  // Those that have read their prompts wait for the newest.
  int64_t waiting_bytes = 0, decoding_bytes = 0;
  if (shares.empty()) {
    waiting_bytes = SequenceBytes(layout, n_read, 1, length.n_prompt);
    decoding_bytes = MostWhileDecoding(layout, length);
  } else {
    MergedSequence sequence(layout, shares, n_read);
    waiting_bytes = sequence.n_bytes();
    decoding_bytes = sequence.MostUntil(length.n_tokens);
  }
  return std::min(1 + (budget_bytes - reading_bytes) / std::max<int64_t>(1, waiting_bytes),
                  budget_bytes / std::max<int64_t>(1, decoding_bytes));
}

}  // namespace kvlathe
