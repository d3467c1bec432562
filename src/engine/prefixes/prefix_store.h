// The prefix store keeps the caches of what requests have read and generated, compressed as they
// are, so that a request which begins with the same tokens does not compute them again.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/prefixes/prefix_archive.h"
#include "engine/prefixes/prefix_question.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/blocks/sequence_file.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// An entry is a sequence's tokens and its cache, by reference (SequenceCache::Keep): entries share
// the blocks of what they have in common with each other and with sequences that run. A request is
// compared with the tokens of every entry of its key, one by one, and begins behind the longest
// common prefix that an entry can give (SequenceCache::CanShare).
//
// Entries stay while the bytes that nobody else holds are within the store's bound. The least
// recently used goes first. An entry whose place another one takes in every question goes at once:
// of a conversation stays its last turn.
//
// With an archive, entries are written to disk as well, once they have settled or when they are
// given up, unless files give most of them already; and what a file gives more than memory is
// fetched from there, and becomes an entry.
//
// For the thread that steps the engine alone.
class PrefixStore {
 public:
  static constexpr int kLeastTokens = kLeastSharedTokens;
  static constexpr int kMaxEntries = 4096;

  // Fewer are computed faster than a file is written and read.
  static constexpr int kLeastTokensOnDisk = 64;

  using Question = PrefixQuestion;

  // `pool` and `archive` outlive the store. `max_bytes`: bound of PoolUsage::kept_bytes. 0: nothing
  // is kept. `archive`: null where nothing is written.
  PrefixStore(BlockPool* pool, int64_t max_bytes, PrefixArchive* archive = nullptr)
      : pool_(pool), max_bytes_(max_bytes), archive_(archive) {}
  ~PrefixStore() { SaveAll(); }

  // Whether caches of this layout are kept.
  bool Takes(const CacheLayout& layout) const {
    return max_bytes_ > 0 && (SharesPrefixes(layout) || SharesEndedPrompts(layout));
  }

  struct Found {
    std::unique_ptr<SequenceCache> cache;  // null: there is nothing to begin behind
    // The most tokens that an entry, or a file, has in common with the request, whether or not it
    // can give the cache behind them.
    int n_common = 0;
  };
  Found Find(const Question& question);
  // How many tokens Find would begin behind.
  int CountFound(const Question& question);

  // Keeps the cache, which holds these tokens and is of the key's layout. It may go at once: when
  // an entry gives all that it could, or it is larger than the bound.
  void Add(const PrefixKey& key, std::span<const int32_t> tokens,
           std::unique_ptr<SequenceCache> cache);

  // Makes an entry of a saved sequence that came from elsewhere (kv/blocks/sequence_file.h) and is
  // to hold these tokens. The key has its identity. Errors are those of RestoreSequence, and
  // kDataLoss for another number of tokens; then nothing is entered.
  Status Enter(const PrefixKey& key, std::span<const int32_t> tokens, std::string_view sequence);

  // Gives up entries until the rest is within the bound: for when others let go of what they
  // shared.
  void Trim();
  // Gives up the least recently used entry. False when there is none. What others hold of it stays
  // in use.
  bool EvictOldest();
  // Gives up all entries, unwritten.
  void Clear();
  int n_entries() const { return static_cast<int>(entries_.size()); }

  // --- With an archive (prefix_saving.cc). ---

  // Whether a file that gives more than the entries do is being read. Then the question is asked
  // again; once this is false, what there is has become an entry.
  bool Fetches(const Question& question);
  // Copies a part of what is to be written. Called once a step.
  void Tend();
  // Whether Tend has more to do at once.
  bool is_saving() const { return saving_.has_value(); }
  // Copies what the cache holds, which is not an entry and is about to go. Not where it was sealed
  // in fewer bits under pressure.
  void SaveNow(const PrefixKey& key, std::span<const int32_t> tokens, const SequenceCache& cache);
  // Writes all that is not written yet, and waits for it.
  void SaveAll();

 private:
  struct Entry {
    PrefixKey key;
    std::vector<int32_t> tokens;  // as many as the cache holds
    std::unique_ptr<SequenceCache> cache;
    bool is_saved = false;  // or is not going to be
    bool is_held = false;   // files give most of it
    std::string file;       // of the archive, that it came from; else empty
    Stopwatch since_added;
  };
  using EntryPlace = std::list<Entry>::iterator;
  // An entry that is being copied.
  struct Saving {
    EntryPlace entry;
    SequencePieces pieces;
    std::shared_ptr<PrefixArchive::Writing> writing;
  };
  struct BestEntry {
    EntryPlace entry;
    PrefixOffer offer;
  };

  BestEntry FindBest(const Question& question, int* n_common);
  PrefixArchive::Draft DraftOf(const Entry& entry) const;
  // When an entry is written: after a while, or as all that is left before the end.
  enum class When { kSettled, kAtTheEnd };
  bool IsHeld(const PrefixArchive::Draft& draft, When when) const;
  bool BeginSaving(When when);
  int64_t CopyPiece();
  void SaveWhole(const PrefixArchive::Draft& draft, const SequenceCache& cache);
  void LeaveUnsaved(EntryPlace entry);
  void SaveBeforeItGoes(EntryPlace entry);
  StatusOr<std::unique_ptr<SequenceCache>> MakeCache(const PrefixKey& key, size_t n_tokens,
                                                     std::string_view sequence,
                                                     const std::string& name);
  void Restore(const Question& question, const std::string& file, std::string_view sequence,
               std::vector<int32_t> tokens);

  BlockPool* pool_;
  int64_t max_bytes_;
  PrefixArchive* archive_;
  std::list<Entry> entries_;  // the most recently used first
  std::optional<Saving> saving_;
};

}  // namespace kvlathe
