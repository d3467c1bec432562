#include <cmath>
#include <cstring>

#include "base/check.h"
#include "cpu/kernels/testing/seal_ref.h"

namespace kvlathe {
namespace {

uint16_t LoadBits(const std::byte* from, int64_t idx) {
  uint16_t bits;
  std::memcpy(&bits, from + 2 * idx, sizeof(bits));
  return bits;
}
float LoadF16(const std::byte* from, int64_t idx) { return F16ValueRef(LoadBits(from, idx)); }

// A value of a code: where the scale lies, and the minimum `stride` numbers behind it.
float Dequantise(const PackedSide& side, uint8_t code, const std::byte* scales, int64_t idx,
                 int64_t stride) {
  if (side.has_norms) {
    return static_cast<float>(side.table->numbers[code]) *
           (LoadF16(scales, idx) * side.table->unit);
  }
  if (side.table != nullptr) {
    const double number = side.table->numbers[code];
    return static_cast<float>(
        std::ldexp(number * side.table->unit, static_cast<int>(scales[idx]) - 127));
  }
  const float scale = LoadF16(scales, idx);
  if (side.is_symmetric && side.bits == 4) return static_cast<float>(code) * scale + -8 * scale;
  if (side.is_symmetric) return static_cast<float>(static_cast<int8_t>(code)) * scale;
  return static_cast<float>(code) * scale + LoadF16(scales, idx + stride);
}

// Adds A B^T to the values of a block. Exact entries get it as well: their differences are from the
// sum of both.
void AddLowRank(const PackedShape& s, const std::byte* a, const std::byte* b, int rank,
                float* values) {
  for (int j = 0; j < s.lowrank(); ++j) {
    for (int i = 0; i < kBlockSize * rank; ++i) {
      values[i] += LoadF16(a, j * kBlockSize + i / rank) * LoadF16(b, j * rank + i % rank);
    }
  }
}

// The lists of exact entries of a side.
struct Lists {
  const std::byte* ends;
  const std::byte* differences;
  const std::byte* places;
};

// Adds to the values of a block what its exact entries differ from them. `counts` is of the lanes,
// in the order of which the entries come: 16 lanes after the other, and of those two of each in
// turn.
void AddExact(const Lists& lists, int64_t list, const std::vector<int>& counts, bool is_key,
              int rank, float* values) {
  uint32_t at = 0;
  if (list > 0) std::memcpy(&at, lists.ends + 4 * (list - 1), sizeof(at));
  for (size_t first = 0; first < counts.size(); first += 16) {
    for (int round = 0; round < 128; ++round) {
      for (size_t lane = first; lane < first + 16; ++lane) {
        for (int i = 2 * round; i < 2 * round + 2 && i < counts[lane]; ++i, ++at) {
          const uint32_t bits = static_cast<uint32_t>(LoadBits(lists.differences, at)) << 16;
          float difference;
          std::memcpy(&difference, &bits, sizeof(difference));
          const int place = static_cast<uint8_t>(lists.places[at]), own = static_cast<int>(lane);
          values[is_key ? own * rank + place : place * rank + own] += difference;
        }
      }
    }
  }
  uint32_t end;
  std::memcpy(&end, lists.ends + 4 * list, sizeof(end));
  KVL_CHECK_EQ(at, end);
}

std::vector<int> ReadCounts(const std::byte* from, int n, bool is_wide) {
  std::vector<int> counts(n);
  for (int i = 0; i < n; ++i) {
    counts[i] = is_wide ? LoadBits(from, i) : static_cast<uint8_t>(from[i]);
  }
  return counts;
}

}  // namespace

std::vector<float> ReadKeysRef(const RefObjects& objects) {
  const PackedShape& s = objects.shape;
  const PackedSide& side = s.k;
  const int rank = s.rank_k;
  std::vector<float> x(static_cast<size_t>(s.n_tokens()) * rank);
  for (int i = 0; i < s.n_tokens() * rank; ++i) {
    const int token = i / rank, t = token % kBlockSize, c = i % rank;
    const std::byte* block = objects.blocks[token / kBlockSize];
    const uint8_t code = ReadCode(block, side.bits, KeyCodePlace(side.bits, t, c));
    if (s.k.has_codebook) {
      const std::vector<float>& scales = objects.codebooks->key_scales[objects.head_idx];
      x[i] = objects.codebooks->k.centroids[code] * scales[c] + scales[rank + c];
    } else if (side.sharing == ScaleSharing::kChannel) {
      const int group = side.group == 0 ? s.n_tokens() : side.group;
      x[i] = Dequantise(side, code, objects.record, token / group * 2 * rank + c, rank);
    } else {
      const int group = side.group == 0 ? rank : side.group;
      x[i] = Dequantise(side, code, block + KeyTokenScaleOffset(s),
                        c / group * ScaleParts(side) * kBlockSize + t, kBlockSize);
    }
    if (side.balanced_tokens > 0) x[i] *= LoadF16(block + KeyBalanceOffset(s), t);
  }
  for (int b = 0; b < s.n_blocks; ++b) {
    float* const values = &x[static_cast<size_t>(b) * kBlockSize * rank];
    if (s.n_key_entries() > 0) {
      const std::byte* const entries = objects.record + KeySparseOffset(s);
      AddExact({objects.record + KeySparseEndsOffset(s), entries, entries + 2 * s.n_key_entries()},
               b,
               ReadCounts(objects.blocks[b] + KeyFactorOffset(s) + 2 * FactorBytes(s), kBlockSize,
                          rank > 255),
               /*is_key=*/true, rank, values);
    }
    AddLowRank(s, objects.blocks[b] + KeyFactorOffset(s), objects.record + KeyBasisOffset(s), rank,
               values);
  }
  return x;
}

std::vector<float> ReadValuesRef(const RefObjects& objects) {
  const PackedShape& s = objects.shape;
  const PackedSide& side = s.v;
  const int rank = s.rank_v;
  std::vector<float> x(static_cast<size_t>(s.n_tokens()) * rank);
  for (int i = 0; i < s.n_tokens() * rank; ++i) {
    const int token = i / rank, t = token % kBlockSize, c = i % rank;
    const std::byte* block = objects.blocks[token / kBlockSize];
    const uint8_t code =
        ReadCode(block + PackedValueOffset(s), side.bits, ValueCodePlace(side.bits, rank, t, c));
    if (s.k.has_codebook) {
      const int64_t idx = token / kBlockSize * 2 * kBlockSize + t;
      x[i] = objects.codebooks->v.centroids[code] * LoadF16(objects.layer_record, idx) +
             LoadF16(objects.layer_record, idx + kBlockSize);
    } else if (side.sharing == ScaleSharing::kTokenLayer) {
      x[i] = Dequantise(side, code, objects.layer_record, token / kBlockSize * 2 * kBlockSize + t,
                        kBlockSize);
    } else {
      const int group = side.group == 0 ? rank : side.group;
      x[i] = Dequantise(side, code, block + ValueTokenScaleOffset(s),
                        c / group * ScaleParts(side) * kBlockSize + t, kBlockSize);
    }
    if (side.balanced_tokens > 0) {
      x[i] *=
          LoadF16(objects.record + ValueBalanceOffset(s), token / side.balanced_tokens * rank + c);
    }
  }
  for (int b = 0; b < s.n_blocks; ++b) {
    float* const values = &x[static_cast<size_t>(b) * kBlockSize * rank];
    if (s.value_outliers() > 0) {
      const std::byte* const entries = objects.layer_record + ValueSparseOffset(s);
      const int64_t n = int64_t{2} * s.value_outliers() * s.n_tokens();
      AddExact({objects.layer_record + ValueSparseEndsOffset(s), entries, entries + 2 * n},
               int64_t{b} * s.n_kv_heads + objects.head_idx,
               ReadCounts(objects.blocks[b] + PackedBlockBytes(s) - rank, rank, false),
               /*is_key=*/false, rank, values);
    }
    AddLowRank(s, objects.blocks[b] + ValueFactorOffset(s), objects.record + ValueBasisOffset(s),
               rank, values);
  }
  return x;
}

}  // namespace kvlathe
