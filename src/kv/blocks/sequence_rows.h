// A file holds the rows of a sequence in this order: for every KV head its sink rows, its blocks
// and its records (sequence_file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"
#include "kv/cache_objects.h"

namespace kvlathe {

// What decides how many rows there are.
struct SavedLengths {
  int n_tokens = 0;
  int64_t n_prompt = 0;
  std::span<const MergedLength> merged;  // [n_layers * n_kv_heads] where entries are, else empty
  std::span<const int> pressed_runs;     // SequenceLength::pressed_runs
};

// The lengths of every head where entries are merged. Empty elsewhere.
std::vector<MergedLength> MergedLengths(const SequenceCache& cache, const CacheLayout& layout);

// How many bytes all rows have; -1 when that is more than n_max. Any layout is allowed, and any
// lengths that are not negative: time and memory are bounded by n_max and the number of heads.
int64_t RowBytes(const CacheLayout& layout, const SavedLengths& lengths, int64_t n_max);

// Appends the rows of a layer of a cache that holds at least one position. Rows that no position
// has filled are zeros.
void AppendRows(const SequenceCache& cache, int layer_idx, std::string* out);

// Objects that follow each other in the rows of a file.
struct PlacedObjects {
  int layer_idx = 0;
  int kv_head_idx = 0;
  CacheObjects objects;  // without PackedShape
  int64_t offset = 0;    // of the first in the rows, a multiple of kObjectAlignment
};
// All that the rows of n_tokens positions consist of, in their order. The layout neither drops nor
// merges entries, and no run is pressed. Time and memory grow with the number of heads and runs.
std::vector<PlacedObjects> PlacesOfRows(const CacheLayout& layout, int n_tokens, int64_t n_prompt);
// Appends these objects of a cache, which holds them. Rows that no position has filled are zeros.
void AppendPlaced(const SequenceCache& cache, const PlacedObjects& placed, std::string* out);

// Copies RowBytes of rows into a cache that has been extended for them. False when a record would
// send its reader out of its block, when an entry has a position that does not exist, or when more
// positions joined an entry than there are.
bool CopyRows(std::span<const std::byte> rows, const CacheLayout& layout, SequenceCache* cache);

}  // namespace kvlathe
