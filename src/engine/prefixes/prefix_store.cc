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

}  // namespace

// Where two entries give as much, the one that goes on with the request's own prompt is better, and
// then the more recent.
PrefixStore::BestEntry PrefixStore::FindBest(const Question& question, int* n_common) {
  BestEntry best = {.entry = entries_.end(), .offer = {}};
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!IsSameKey(entry->key, *question.key)) continue;
    const int n_equal = CommonTokens(question.sharable(), entry->tokens);
    *n_common = std::max(*n_common, n_equal);
    if (n_equal <= best.offer.n_tokens) continue;
    const SequenceCache& cache = *entry->cache;
    const PrefixOffer offer = OfferOf(question, n_equal, cache.n_prompt(), [&](int64_t n_prompt) {
      return cache.MostShareable(n_equal, n_prompt);
    });
    if (offer.n_tokens > best.offer.n_tokens) best = {entry, offer};
  }
  return best;
}

int PrefixStore::CountFound(const Question& question) {
  int n_common = 0;
  const int n_tokens = FindBest(question, &n_common).offer.n_tokens;
  return n_tokens < kLeastTokens ? 0 : n_tokens;
}

PrefixStore::Found PrefixStore::Find(const Question& question) {
  Found found;
  const auto [entry, offer] = FindBest(question, &found.n_common);
  if (archive_ != nullptr && question.key->identity != nullptr) {
    found.n_common =
        std::max(found.n_common, archive_->Find(question, max_bytes_, offer.n_tokens).n_common);
  }
  if (offer.n_tokens < kLeastTokens) return found;
  entries_.splice(entries_.begin(), entries_, entry);  // so it is evicted last
  if (!entry->file.empty()) archive_->NoteUse(entry->file);
  const PrefixPlace place = {offer.n_tokens, offer.n_prompt, question.n_generated};
  for (;;) {
    StatusOr<std::unique_ptr<SequenceCache>> fork = entry->cache->Fork(place);
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
    if (is_alike && cache->Covers(*entry->cache)) {
      LeaveUnsaved(entry);
      entries_.erase(entry);
    }
    entry = next;
  }
  cache->SetKept();
  entries_.push_front({.key = key,
                       .tokens = {tokens.begin(), tokens.end()},
                       .cache = std::move(cache),
                       .is_saved = archive_ == nullptr || key.identity == nullptr ||
                                   !SharesPrefixes(*key.layout) ||
                                   std::ssize(tokens) < kLeastTokensOnDisk});
  Trim();
}

void PrefixStore::Trim() {
  while (n_entries() > kMaxEntries || pool_->usage().kept_bytes > max_bytes_) {
    if (!EvictOldest()) return;
  }
}

bool PrefixStore::EvictOldest() {
  if (entries_.empty()) return false;
  SaveBeforeItGoes(std::prev(entries_.end()));
  entries_.pop_back();
  return true;
}

void PrefixStore::Clear() {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) LeaveUnsaved(entry);
  entries_.clear();
}

}  // namespace kvlathe
