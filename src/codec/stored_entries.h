// The rows that a sequence holds, in the form in which they came.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "codec/block_rows.h"
#include "codec/codec_layer.h"
#include "kv/blocks/sequence_cache.h"
#include "machine/machine.h"

namespace kvlathe {

// Entries of one layer in the order in which they are held: the sinks, then the others.
struct StoredEntries {
  int64_t n_entries = 0;    // of each head
  int n_heads = 0;          // KV heads of the model
  std::vector<float> k, v;  // [n_entries, n_heads, head_dim], keys after RoPE
  // [n_heads, n_entries]; empty where the cache does not keep them.
  std::vector<int> positions;
};

// What is read of a layer.
struct EntryReading {
  const CodecLayer* layer = nullptr;
  const SequenceCache* cache = nullptr;
  Machine* machine = nullptr;
  ScratchBlocks* scratch = nullptr;
  ForwardProfile* profile = nullptr;
};

// Where rows are wanted: [n_entries, n_heads, head_dim] each.
struct EntryTarget {
  float *k = nullptr, *v = nullptr;
  int64_t n_entries = 0;
};

// Reads sealed blocks as attention reads them, and undoes the maps of the basis. kUnimplemented
// where several positions are one entry, where the sequence has found its maps itself, and where
// keys would be turned by positions that are not kept; kResourceExhausted when the system has no
// memory. Where as many entries are held as `target` has room for, their rows go there and
// not into what is returned; null: never.
StatusOr<StoredEntries> ReadEntries(const EntryReading& reading,
                                    const EntryTarget* target = nullptr);

}  // namespace kvlathe
