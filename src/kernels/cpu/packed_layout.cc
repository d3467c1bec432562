#include "kernels/cpu/packed_layout.h"

#include <cstring>

namespace kvlathe {
namespace {

// Of a code of 8 bits: eight codes of either line in turn.
int64_t ByteOffset(const CodePlace& place) {
  return place.group_offset + place.word / 8 * 16 + place.line * 8 + place.word % 8;
}

int64_t WordOffset(const CodePlace& place) { return place.group_offset + 2 * place.word; }

// Of a code of 3 or 5 bits: the word with the high bits of its line.
int64_t HighBitsOffset(const CodePlace& place) { return place.group_offset + 64 + 4 * place.line; }

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// rank_of(i) is the number of channels that list i may name.
template <typename RankOf>
bool AreSoundLists(const std::byte* ends, const std::byte* entries, int64_t n_lists,
                   int64_t n_entries, const RankOf& rank_of) {
  int64_t begin = 0;
  for (int64_t i = 0; i < n_lists; ++i) {
    const int64_t end = Load<uint32_t>(ends + 4 * i);
    if (end < begin || end > n_entries) return false;
    for (int64_t e = begin; e < end; ++e) {
      const auto entry = Load<SparseEntry>(entries + e * static_cast<int64_t>(sizeof(SparseEntry)));
      if (entry.place >> 6 >= rank_of(i)) return false;
    }
    begin = end;
  }
  return begin == n_entries;
}

}  // namespace

bool IsSoundRunRecord(const PackedShape& s, const std::byte* record) {
  if (s.n_key_entries() == 0) return true;
  return AreSoundLists(record + KeySparseEndsOffset(s), record + KeySparseOffset(s), s.n_blocks,
                       s.n_key_entries(), [&](int64_t) { return s.rank_k; });
}

bool IsSoundLayerRecord(const PackedShape& s, std::span<const int> ranks_v,
                        const std::byte* layer_record) {
  if (s.value_outliers() == 0) return true;
  return AreSoundLists(layer_record + ValueSparseEndsOffset(s), layer_record + ValueSparseOffset(s),
                       int64_t{s.n_blocks} * s.n_kv_heads,
                       int64_t{2} * s.value_outliers() * s.n_tokens(),
                       [&](int64_t i) { return ranks_v[i % s.n_kv_heads]; });
}

uint8_t ReadCode(const std::byte* codes, int bits, const CodePlace& place) {
  if (bits == 8) return static_cast<uint8_t>(codes[ByteOffset(place)]);
  const int low_bits = LowBits(bits);
  const unsigned word = Load<uint16_t>(codes + WordOffset(place));
  unsigned code = word >> (low_bits * place.line) & ((1u << low_bits) - 1);
  if (HasHighBit(bits)) {
    code |= (Load<uint32_t>(codes + HighBitsOffset(place)) >> place.word & 1) << low_bits;
  }
  return static_cast<uint8_t>(code);
}

void WriteCode(std::byte* codes, int bits, const CodePlace& place, uint8_t code) {
  if (bits == 8) {
    codes[ByteOffset(place)] = std::byte{code};
    return;
  }
  const int low_bits = LowBits(bits), shift = low_bits * place.line;
  const unsigned low_mask = (1u << low_bits) - 1;
  const auto word =
      static_cast<uint16_t>((Load<uint16_t>(codes + WordOffset(place)) & ~(low_mask << shift)) |
                            (code & low_mask) << shift);
  std::memcpy(codes + WordOffset(place), &word, sizeof(word));
  if (!HasHighBit(bits)) return;
  const uint32_t high =
      (Load<uint32_t>(codes + HighBitsOffset(place)) & ~(uint32_t{1} << place.word)) |
      static_cast<uint32_t>(code >> low_bits) << place.word;
  std::memcpy(codes + HighBitsOffset(place), &high, sizeof(high));
}

}  // namespace kvlathe
