#include <cstring>

#include "kernels/cpu/seal_ref.h"

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
  const float scale = LoadF16(scales, idx);
  if (side.is_symmetric && side.bits == 4) return static_cast<float>(code) * scale + -8 * scale;
  if (side.is_symmetric) return static_cast<float>(static_cast<int8_t>(code)) * scale;
  return static_cast<float>(code) * scale + LoadF16(scales, idx + stride);
}

// Adds A B^T to the values of a block; exact entries get it as well, where R was 0.
void AddLowRank(const PackedShape& s, const std::byte* a, const std::byte* b, int rank,
                float* values) {
  for (int j = 0; j < s.lowrank(); ++j) {
    for (int i = 0; i < kBlockSize * rank; ++i) {
      values[i] += LoadF16(a, j * kBlockSize + i / rank) * LoadF16(b, j * rank + i % rank);
    }
  }
}

// Overwrites the values of a block that are kept exactly.
void SetExact(const std::byte* ends, int64_t list, const std::byte* entries, int rank,
              float* values) {
  uint32_t begin = 0, end;
  if (list > 0) std::memcpy(&begin, ends + 4 * (list - 1), sizeof(begin));
  std::memcpy(&end, ends + 4 * list, sizeof(end));
  for (uint32_t i = begin; i < end; ++i) {
    const int place = LoadBits(entries, 2 * i);
    const uint32_t bits = static_cast<uint32_t>(LoadBits(entries, 2 * i + 1)) << 16;
    std::memcpy(&values[place % kBlockSize * rank + place / kBlockSize], &bits, sizeof(bits));
  }
}

}  // namespace

std::vector<float> ReadKeysRef(const RefObjects& objects) {
  const PackedShape& s = objects.shape;
  const PackedSide& side = s.format.k;
  const int rank = s.rank_k;
  std::vector<float> x(static_cast<size_t>(s.n_tokens()) * rank);
  for (int i = 0; i < s.n_tokens() * rank; ++i) {
    const int token = i / rank, t = token % kBlockSize, c = i % rank;
    const std::byte* block = objects.blocks[token / kBlockSize];
    const uint8_t code = ReadCode(block, side.bits, KeyCodePlace(side.bits, t, c));
    if (side.has_codebook) {
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
  }
  for (int b = 0; b < s.n_blocks; ++b) {
    float* const values = &x[static_cast<size_t>(b) * kBlockSize * rank];
    if (s.n_key_entries() > 0) {
      SetExact(objects.record + KeySparseEndsOffset(s), b, objects.record + KeySparseOffset(s),
               rank, values);
    }
    AddLowRank(s, objects.blocks[b] + KeyFactorOffset(s), objects.record + KeyBasisOffset(s), rank,
               values);
  }
  return x;
}

std::vector<float> ReadValuesRef(const RefObjects& objects) {
  const PackedShape& s = objects.shape;
  const PackedSide& side = s.format.v;
  const int rank = s.rank_v;
  std::vector<float> x(static_cast<size_t>(s.n_tokens()) * rank);
  for (int i = 0; i < s.n_tokens() * rank; ++i) {
    const int token = i / rank, t = token % kBlockSize, c = i % rank;
    const std::byte* block = objects.blocks[token / kBlockSize];
    const uint8_t code =
        ReadCode(block + PackedValueOffset(s), side.bits, ValueCodePlace(side.bits, rank, t, c));
    if (side.has_codebook) {
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
  }
  for (int b = 0; b < s.n_blocks; ++b) {
    float* const values = &x[static_cast<size_t>(b) * kBlockSize * rank];
    if (s.value_outliers() > 0) {
      SetExact(objects.layer_record + ValueSparseEndsOffset(s),
               int64_t{b} * s.n_kv_heads + objects.head_idx,
               objects.layer_record + ValueSparseOffset(s), rank, values);
    }
    AddLowRank(s, objects.blocks[b] + ValueFactorOffset(s), objects.record + ValueBasisOffset(s),
               rank, values);
  }
  return x;
}

}  // namespace kvlathe
