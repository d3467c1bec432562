// How many entries of a prompt each head keeps where all heads compete for one budget.
#include <algorithm>
#include <functional>
#include <vector>

#include "base/check.h"
#include "format/entry_table.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

// The votes for the first n entries of a head.
std::vector<int64_t> VotesOf(const CacheHead& head, int64_t n, Device* device) {
  const int64_t n_blocks = (n + kBlockSize - 1) / kBlockSize;
  std::vector<std::byte> bytes(n_blocks * EntryTable::BlockBytes(/*has_sums=*/true));
  device->Download({head.entries().object}, bytes);
  const EntryTable table(bytes.data(), /*has_sums=*/true);
  std::vector<int64_t> votes(n);
  for (int64_t e = 0; e < n; ++e) votes[e] = table.sum(e);
  return votes;
}

}  // namespace

void SequenceCache::EndReadingAgain() {
  KVL_CHECK(must_read_again() && !is_on_trial());
  has_read_again_ = true;
  if (told() != nullptr) told()->ReadAgain(number_);
  if (!layout_->DropsByHead()) return;
  const size_t n_heads = objects_.heads().size();
  const KeptEntries kept = KeptAt(*layout_->retention, {layout_->n_sink, n_prompt()}, n_prompt());
  // The newest stay in every head; the last token of the prompt is among them.
  const int64_t n_voted = std::max<int64_t>(0, n_prompt() - layout_->n_sink - kept.n_recent);
  const int64_t n_wanted = static_cast<int64_t>(n_heads) * (kept.n - kept.n_recent);
  std::vector<std::vector<int64_t>> votes;
  std::vector<int64_t> all;
  for (size_t i = 0; i < n_heads; ++i) {
    const int l = static_cast<int>(i) / layout_->n_kv_heads;
    const int g = static_cast<int>(i) % layout_->n_kv_heads;
    votes.push_back(VotesOf(head(l, g), n_voted, &device()));
    all.insert(all.end(), votes.back().begin(), votes.back().end());
  }
  std::vector<int64_t> n_to_keep(n_heads, kept.n_recent);
  if (n_wanted > 0) {
    KVL_CHECK_LE(n_wanted, std::ssize(all));
    const auto last = all.begin() + n_wanted - 1;
    std::nth_element(all.begin(), last, all.end(), std::greater<>());
    const int64_t least = *last;
    int64_t n_left = n_wanted;  // for entries with the fewest votes that still stay
    for (size_t i = 0; i < n_heads; ++i) {
      const auto n_more = std::ranges::count_if(votes[i], [least](int64_t v) { return v > least; });
      n_to_keep[i] += n_more;
      n_left -= n_more;
    }
    for (size_t i = 0; i < n_heads; ++i) {
      const auto n_equal = std::min<int64_t>(n_left, std::ranges::count(votes[i], least));
      n_to_keep[i] += n_equal;
      n_left -= n_equal;
    }
  }
  SetToKeep(n_to_keep);
}

void SequenceCache::SetToKeep(std::span<const int64_t> n_to_keep) { objects_.SetToKeep(n_to_keep); }

}  // namespace kvlathe
