// Saves the cache of a sequence in a file and restores it, after which the sequence goes on as if
// it had never stopped.
//
//   offset  bytes
//   0       8       "KVLSEQ\r\n"
//   8       4       format version, 14
//   12      8       n_bytes of the whole file
//   20              spec, model: a length of 4 bytes and the text, each
//                   n_layers, n_kv_heads, head_dim, n_sink, window, kBlockSize, n_tokens: 4 bytes
//                   each; where the prompt ends and how many positions come after it: 8 bytes each
//                   if the window is 0xFFFFFFFF: the window of every layer, 4 bytes each
//                   if the model decides what leaves: how many positions always stay, 4 bytes
//                   of every KV head, 4 bytes each: rank_k, rank_v, row type (0 F32, 1 F16,
//                   2 BF16), whether its open blocks are coded, the channels of K and of V that
//                   have 8, 5, 4, 3, 2 and 1 bits (of each class of entries, and of pressed runs if
//                   the spec has such), the numbers of a sealed row of K and of V (0 where the
//                   format does not rotate them)
//                   if the spec has pressed runs, 4 bytes each: how many there are, and their
//                   places among the runs, rising
//                   if entries are merged, or heads drop numbers of their own, of every KV head, 4
//                   bytes each: its entries and, if heads are sealed one by one, its blocks that
//                   were sealed with the prompt and all its sealed blocks
//                   the caller's state: a length of 8 bytes and the bytes. Where machines share the
//                   model it begins with what the others hold of the cache: how many parts, 4
//                   bytes, and of each a length of 8 bytes and a file of this kind
//                   the objects of every KV head, as they lie in memory: its sink rows and its
//                   blocks, with a window only those that the last position sees; if the spec
//                   seals, the run records of these blocks, with the first head the layer records,
//                   or before the first run the sums from which the head finds its bases; if the
//                   spec drops entries, the positions and votes of those that are left; if the
//                   model decides what leaves, what it decided of positions that are not settled
//   last    4       CRC-32C of everything before
//
// Numbers are little-endian. Rows that no position has filled are zero in the file, so that it says
// nothing of other sequences.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// What a file and the model that restores it must agree on, beside the layout.
struct SequenceIdentity {
  std::string spec;   // canonical (Spec::ToString)
  std::string model;  // of the weights and what else decides what the rows mean
};

struct SequenceFile {
  SequenceIdentity identity;
  CacheLayout layout;  // with the SealPlan of the spec
  int n_tokens = 0;
  int64_t n_prompt = 0;
  int64_t n_generated = 0;
  std::vector<MergedLength> merged;  // [n_layers * n_kv_heads] where heads differ, else empty
  std::vector<int> pressed_runs;     // SequenceCache::pressed_runs
  std::string_view state;            // the caller's
  std::span<const std::byte> rows;   // sinks and blocks
};

// Returns the parts of a whole file as views into `bytes`, after checking every number against the
// others and the checksum. The error is kDataLoss, or kUnimplemented for a later version, with one
// printable line that begins with `name`.
StatusOr<SequenceFile> ParseSequenceFile(std::span<const std::byte> bytes, std::string_view name);

// Everything before the rows of the file of a cache that will hold `place`, of a layout that shares
// prefixes (WhyNothingIsShared) and without pressed runs; without state. `n_bytes`: of the file.
std::string HeadOfPrefix(const SequenceIdentity& identity, const CacheLayout& layout,
                         const PrefixPlace& place, int64_t* n_bytes);

// The bytes of a file, piece by piece: what comes before the rows, the rows of each layer, the
// checksum. `state` is what the caller keeps with the cache (token ids, the sampler).
class SequencePieces {
 public:
  // The cache outlives this and stays as it is.
  SequencePieces(const SequenceCache* cache, const SequenceIdentity& identity,
                 std::string_view state);

  int64_t n_bytes() const { return n_bytes_; }  // of all pieces
  bool is_at_end() const { return next_ > n_layers_ + 1; }
  // The next piece, of which there is one.
  std::string Next();

 private:
  const SequenceCache* cache_;
  int64_t n_bytes_ = 0;
  std::string head_;
  int n_layers_ = 0;  // that have rows
  int next_ = 0;
  uint32_t crc_ = 0;
};

// Writes the file atomically.
Status SaveSequence(const SequenceCache& cache, const SequenceIdentity& identity,
                    std::string_view state, const std::string& path);

// What tells apart the caches that a sequence of this layout may be restored into: a file of
// another one is refused.
std::string PlaceText(const SequenceIdentity& identity, const CacheLayout& layout);

// What a restored sequence must fit.
struct SequencePlace {
  SequenceIdentity identity;
  const CacheLayout* layout = nullptr;  // of the cache
  int max_tokens = 0;                   // the context
};

// Fills `cache`, which is empty, and returns the state. The error is kDataLoss for a damaged file
// and for one of another model, spec or layout, kInvalidArgument for more positions than
// max_tokens, and kResourceExhausted when the pool has no room. After an error the cache is empty.
StatusOr<std::string> RestoreSequence(const std::string& path, const SequencePlace& place,
                                      SequenceCache* cache);
// The same of a whole file that is in memory. Errors begin with `name`.
StatusOr<std::string> RestoreSequence(std::span<const std::byte> bytes, std::string_view name,
                                      const SequencePlace& place, SequenceCache* cache);

}  // namespace kvlathe
