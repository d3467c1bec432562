// What is asked of a prefix store, in memory (prefix_store.h) and on disk (prefix_archive.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kv/blocks/sequence_file.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// Fewer tokens are read faster than they are found.
inline constexpr int kLeastSharedTokens = 16;

// What has to be equal besides the tokens. A layout belongs to one model and one rate, so it stands
// for the weights, the basis and the spec.
struct PrefixKey {
  const CacheLayout* layout = nullptr;
  std::string salt;  // requests of different salts share nothing
  // What stands for them on disk; null where nothing is stored there.
  const SequenceIdentity* identity = nullptr;
};

// The digest of what stands for the key in files and between machines; it has its identity.
std::string PlaceOf(const PrefixKey& key);

struct PrefixQuestion {
  const PrefixKey* key = nullptr;
  std::span<const int32_t> tokens;  // that are known; the last is always left to compute
  int64_t n_prompt = 0;             // where the prompt ends in the cache
  int64_t n_generated = 0;          // SequenceCache::set_n_prompt
  // Asked whether the request may go on behind an entry as a session does, whose prompt ended
  // there: the prompt of the cache is the entry's then.
  std::function<bool(int64_t n_prompt)> may_end_prompt_at;

  // Those that an entry may give.
  std::span<const int32_t> sharable() const { return tokens.first(tokens.size() - 1); }
};

// What an entry can give to a request.
struct PrefixOffer {
  int n_tokens = 0;
  int64_t n_prompt = 0;  // of the cache that the request goes on with
};

// The best of an entry whose cache has its prompt's end at entry_n_prompt, shares n_equal tokens
// with the question and gives most_shareable(n_prompt) of them to a cache whose prompt ends there.
PrefixOffer OfferOf(const PrefixQuestion& question, int n_equal, int64_t entry_n_prompt,
                    const std::function<int(int64_t n_prompt)>& most_shareable);

int CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace kvlathe
