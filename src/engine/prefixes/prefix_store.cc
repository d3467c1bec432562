#include "engine/prefixes/prefix_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace kvlathe {
namespace {

bool IsSameKey(const PrefixKey& a, const PrefixKey& b) {
  return a.layout == b.layout && a.salt == b.salt;
}

int CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

// Where two entries give as much, the one that goes on with the request's own prompt is better, and
// then the more recent.
PrefixStore::Offer PrefixStore::BestOffer(const Question& question, int* n_common) {
  Offer best = {.entry = entries_.end()};
  const auto known = question.tokens.first(question.tokens.size() - 1);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!IsSameKey(entry->key, *question.key)) continue;
    const int n_equal = CommonTokens(known, entry->tokens);
    *n_common = std::max(*n_common, n_equal);
    if (n_equal <= best.n_tokens) continue;
    const auto offer = [&](int64_t n_prompt) {
      const int n = entry->cache->MostShareable(n_equal, n_prompt);
      if (n > best.n_tokens) best = {entry, n, n_prompt};
    };
    offer(question.n_prompt);
    const int64_t n_prompt = entry->cache->n_prompt();
    if (n_prompt <= n_equal && n_prompt != question.n_prompt && best.n_tokens < n_equal &&
        question.may_end_prompt_at && question.may_end_prompt_at(n_prompt)) {
      offer(n_prompt);
    }
  }
  return best;
}

int PrefixStore::CountFound(const Question& question) {
  int n_common = 0;
  const int n_tokens = BestOffer(question, &n_common).n_tokens;
  return n_tokens < kLeastTokens ? 0 : n_tokens;
}

PrefixStore::Found PrefixStore::Find(const Question& question) {
  Found found;
  const Offer best = BestOffer(question, &found.n_common);
  if (best.n_tokens < kLeastTokens) return found;
  entries_.splice(entries_.begin(), entries_, best.entry);  // so it is evicted last
  const PrefixPlace place = {best.n_tokens, best.n_prompt, question.n_generated};
  for (;;) {
    StatusOr<std::unique_ptr<SequenceCache>> fork = best.entry->cache->Fork(place);
    if (fork.ok()) {
      found.cache = *std::move(fork);
      return found;
    }
    if (entries_.size() == 1 || !EvictOldest()) return found;
  }
}

void PrefixStore::Add(const PrefixKey& key, std::span<const int32_t> tokens,
                      std::unique_ptr<SequenceCache> cache) {
  KVL_CHECK_EQ(std::ssize(tokens), cache->n_tokens());
  KVL_CHECK(key.layout == &cache->layout());
  if (!Takes(*key.layout) || std::ssize(tokens) < kLeastTokens) return;
  if (cache->bytes().total() > max_bytes_) return;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    const bool is_alike =
        IsSameKey(entry->key, key) && CommonTokens(tokens, entry->tokens) ==
                                          std::min(std::ssize(tokens), std::ssize(entry->tokens));
    if (is_alike && entry->cache->Covers(*cache)) {
      entries_.splice(entries_.begin(), entries_, entry);
      return;
    }
    if (is_alike && cache->Covers(*entry->cache)) entries_.erase(entry);
    entry = next;
  }
  cache->SetKept();
  entries_.push_front({key, {tokens.begin(), tokens.end()}, std::move(cache)});
  Trim();
}

void PrefixStore::Trim() {
  while (n_entries() > kMaxEntries || pool_->usage().kept_bytes > max_bytes_) {
    if (!EvictOldest()) return;
  }
}

bool PrefixStore::EvictOldest() {
  if (entries_.empty()) return false;
  entries_.pop_back();
  return true;
}

}  // namespace kvlathe
