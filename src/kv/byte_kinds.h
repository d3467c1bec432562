// The kinds here say what the bytes of a sequence are spent on, layer by layer.
#pragma once

#include <utility>
#include <vector>

#include "kv/cache_layout.h"

namespace kvlathe {

struct ByteKinds {
  int64_t codes = 0;
  int64_t scales = 0;   // and minima
  int64_t lowrank = 0;  // both factors
  int64_t exact = 0;    // entries, places and where they end
  int64_t plain = 0;    // blocks that are not sealed, at full size
  int64_t sinks = 0;
  int64_t tables = 0;
  int64_t entries = 0;  // positions and votes, or the open entries, under retention
  int64_t padding = 0;  // of objects to their alignment
  int64_t total() const {
    return codes + scales + lowrank + exact + plain + sinks + tables + entries + padding;
  }
  void Add(const ByteKinds& more);
};

// Their names in JSON and metrics.
inline constexpr std::pair<const char*, int64_t ByteKinds::*> kByteKinds[] = {
    {"codes", &ByteKinds::codes},     {"scales", &ByteKinds::scales},
    {"lowrank", &ByteKinds::lowrank}, {"exact", &ByteKinds::exact},
    {"plain", &ByteKinds::plain},     {"sinks", &ByteKinds::sinks},
    {"tables", &ByteKinds::tables},   {"entries", &ByteKinds::entries},
    {"padding", &ByteKinds::padding}};

// One entry per layer; the totals add up to SequenceParts(layout, length).total().
std::vector<ByteKinds> ByteKindsByLayer(const CacheLayout& layout, const SequenceLength& length);

}  // namespace kvlathe
