// A journal is told what is done to the caches of a memory, so that machines which hold other parts
// of the same caches (heads, layers) can do the same to theirs, in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

class BlockPool;
struct CacheLayout;
struct PrefixPlace;
struct SequenceIdentity;

// Told on the thread that does it. Caches and pools are known by the numbers that the journal gives
// them.
class CacheJournal {
 public:
  enum class Sharing { kKeep, kFork };  // SequenceCache::Keep and Fork

  virtual ~CacheJournal() = default;

  // The pool lives until PoolGone.
  virtual int64_t PoolMade(BlockPool* pool) = 0;
  virtual void PoolGone(int64_t pool) = 0;
  // An empty cache of that layout.
  virtual int64_t CacheMade(const CacheLayout& layout, int64_t pool) = 0;
  virtual void CacheGone(int64_t cache) = 0;
  virtual void PromptSet(int64_t cache, int64_t n_prompt, int64_t n_generated) = 0;
  virtual void Extended(int64_t cache, int n_new) = 0;
  virtual void ExtendedOnTrial(int64_t cache, int n_new) = 0;
  virtual void TakenBack(int64_t cache, int n_tokens) = 0;  // to so many positions
  virtual void ReadAgain(int64_t cache) = 0;                // SequenceCache::EndReadingAgain
  virtual void Cleared(int64_t cache) = 0;
  // `to`, which was empty, is a copy now, or shares positions of `cache`.
  virtual void Copied(int64_t cache, int64_t to) = 0;
  virtual void Shared(int64_t cache, int64_t to, const PrefixPlace& place, Sharing sharing) = 0;
  virtual void KeptSet(int64_t cache) = 0;
  virtual void Failed(int64_t cache) = 0;

  // What the other machines hold of the cache, as files of their own
  // (kv/blocks/sequence_file.h), by machine.
  virtual StatusOr<std::vector<std::string>> SaveParts(int64_t cache,
                                                       const SequenceIdentity& identity) = 0;
  // Has them take these for the cache, which is empty there.
  virtual Status RestoreParts(int64_t cache, const SequenceIdentity& identity,
                              std::span<const std::string> parts) = 0;
};

}  // namespace kvlathe
