// The prefix store keeps the caches of what requests have read and generated, compressed as they
// are, so that a request which begins with the same tokens does not compute them again.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// What has to be equal besides the tokens. A layout belongs to one model and one rate, so it stands
// for the weights, the basis and the spec.
struct PrefixKey {
  const CacheLayout* layout = nullptr;
  std::string salt;  // requests of different salts share nothing
};

// An entry is a sequence's tokens and its cache, by reference (SequenceCache::Keep): entries share
// the blocks of what they have in common with each other and with sequences that run. A request is
// compared with the tokens of every entry of its key, one by one, and begins behind the longest
// common prefix that an entry can give (SequenceCache::CanShare).
//
// Entries stay while the bytes that nobody else holds are within the store's bound. The least
// recently used goes first. An entry whose place another one takes in every question goes at once:
// of a conversation stays its last turn.
//
// For the thread that steps the engine alone.
class PrefixStore {
 public:
  // Fewer tokens are read faster than they are found.
  static constexpr int kLeastTokens = 16;
  static constexpr int kMaxEntries = 4096;

  // `pool` outlives the store. `max_bytes`: bound of PoolUsage::kept_bytes. 0: nothing is kept.
  PrefixStore(BlockPool* pool, int64_t max_bytes) : pool_(pool), max_bytes_(max_bytes) {}

  // Whether caches of this layout are kept.
  bool Takes(const CacheLayout& layout) const { return max_bytes_ > 0 && SharesPrefixes(layout); }

  struct Question {
    const PrefixKey* key = nullptr;
    std::span<const int32_t> tokens;  // that are known; the last is always left to compute
    int64_t n_prompt = 0;             // where the prompt ends in the cache
    int64_t n_generated = 0;          // SequenceCache::set_n_prompt
    // Asked whether the request may go on behind an entry as a session does, whose prompt ended
    // there: the prompt of the cache is the entry's then.
    std::function<bool(int64_t n_prompt)> may_end_prompt_at;
  };
  struct Found {
    std::unique_ptr<SequenceCache> cache;  // null: there is nothing to begin behind
    // The most tokens that an entry has in common with the request, whether or not it can give the
    // cache behind them.
    int n_common = 0;
  };
  Found Find(const Question& question);
  // How many tokens Find would begin behind.
  int CountFound(const Question& question);

  // Keeps the cache, which holds these tokens and is of the key's layout. It may go at once: when
  // an entry gives all that it could, or it is larger than the bound.
  void Add(const PrefixKey& key, std::span<const int32_t> tokens,
           std::unique_ptr<SequenceCache> cache);

  // Gives up entries until the rest is within the bound: for when others let go of what they
  // shared.
  void Trim();
  // Gives up the least recently used entry. False when there is none. What others hold of it stays
  // in use.
  bool EvictOldest();
  void Clear() { entries_.clear(); }
  int n_entries() const { return static_cast<int>(entries_.size()); }

 private:
  struct Entry {
    PrefixKey key;
    std::vector<int32_t> tokens;  // as many as the cache holds
    std::unique_ptr<SequenceCache> cache;
  };
  // What an entry can give to a request.
  struct Offer {
    std::list<Entry>::iterator entry;
    int n_tokens = 0;
    int64_t n_prompt = 0;
  };

  Offer BestOffer(const Question& question, int* n_common);

  BlockPool* pool_;
  int64_t max_bytes_;
  std::list<Entry> entries_;  // the most recently used first
};

}  // namespace kvlathe
