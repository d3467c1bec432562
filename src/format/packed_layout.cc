#include "format/packed_layout.h"

#include <algorithm>
#include <cstring>

namespace kvlathe {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

bool AreSoundLists(const std::byte* ends, int64_t n_lists, int64_t n_entries) {
  int64_t begin = 0;
  for (int64_t i = 0; i < n_lists; ++i) {
    const int64_t end = Load<uint32_t>(ends + 4 * i);
    if (end < begin || end > n_entries) return false;
    begin = end;
  }
  return begin == n_entries;
}

bool AreBelow(int bound, const std::byte* places, int64_t n) {
  return std::all_of(places, places + n,
                     [&](std::byte place) { return std::to_integer<int>(place) < bound; });
}

// Counts of lanes of at most n_places each, as many together as list `list` has entries.
template <typename Count>
bool CountsAddUp(const std::byte* counts, int n_lanes, int n_places, const std::byte* ends,
                 int64_t list) {
  int64_t n = Load<uint32_t>(ends + 4 * list);
  if (list > 0) n -= Load<uint32_t>(ends + 4 * (list - 1));
  for (int lane = 0; lane < n_lanes; ++lane) {
    const int count = Load<Count>(counts + lane * int64_t{sizeof(Count)});
    if (count > n_places) return false;
    n -= count;
  }
  return n == 0;
}

}  // namespace

bool IsSoundRunRecord(const PackedShape& s, const std::byte* record) {
  const int64_t n = s.n_key_entries();
  return n == 0 || (AreSoundLists(record + KeySparseEndsOffset(s), s.n_blocks, n) &&
                    AreBelow(s.rank_k, record + KeyPlacesOffset(s), n));
}

bool IsSoundLayerRecord(const PackedShape& s, const std::byte* layer_record) {
  const int64_t n = s.n_value_entries();
  return n == 0 || (AreSoundLists(layer_record + ValueSparseEndsOffset(s),
                                  int64_t{s.n_blocks} * s.n_kv_heads, n) &&
                    AreBelow(kBlockSize, layer_record + ValuePlacesOffset(s), n));
}

bool HasSoundCounts(const PackedShape& s, int head_idx, const PackedRecords& records, int block_idx,
                    const std::byte* block) {
  if (s.n_key_entries() > 0) {
    const auto add_up = HasWideKeyCounts(s) ? CountsAddUp<uint16_t> : CountsAddUp<uint8_t>;
    if (!add_up(block + KeyCountOffset(s), kBlockSize, s.rank_k,
                records.record + KeySparseEndsOffset(s), block_idx)) {
      return false;
    }
  }
  return s.n_value_entries() == 0 ||
         CountsAddUp<uint8_t>(block + ValueCountOffset(s), s.rank_v, kBlockSize,
                              records.layer_record + ValueSparseEndsOffset(s),
                              int64_t{block_idx} * s.n_kv_heads + head_idx);
}

}  // namespace kvlathe
