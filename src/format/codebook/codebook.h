// Model data that sealed blocks refer to where a format has codebooks (packed_layout.h): what codes
// stand for, the ranges of the channels of K, and how keys turn that are sealed before RoPE. Bytes
// of the model, not of a cache.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "format/rows/block_layout.h"

namespace kvlathe {

// The codes of one tensor of a layer. An element is centroid * range + offset of what it shares
// them with: its channel (K) or its token over all heads (V).
struct Codebook {
  static constexpr int kMaxCodes = 16;

  int n_codes = 0;
  // The code of x = (element - offset) / range is the number of boundaries below x; n_codes - 1 of
  // them, ascending.
  std::array<float, kMaxCodes> boundaries{};
  std::array<float, kMaxCodes> centroids{};
};

struct LayerCodebooks {
  Codebook k, v;
  std::vector<std::vector<float>> key_scales;  // of each KV head [2][rank_k]: ranges, offsets
};

// RoPE for the keys of whole blocks: channels i and i + half of a key turn together.
struct KeyRotation {
  const float* cos = nullptr;  // [blocks][half / 2][kBlockSize][2], as K lies in a block
  const float* sin = nullptr;
  int half = 0;           // multiple of 2; 0: nothing turns
  float way_back = 1.0f;  // 1 / (cos^2 + sin^2): rotations may carry an amplitude

  KeyRotation From(int64_t block) const {
    const int64_t step = block * kBlockSize * half;
    return {cos + step, sin + step, half, way_back};
  }
};

// Turns the keys of a plain F32 block in place, to their positions or back.
void TurnKeys(const KeyRotation& rotation, float* keys);
void TurnKeysBack(const KeyRotation& rotation, float* keys);

// x [n_pairs][n_lines][32 words], the order of K and of V in a plain block; scales and offsets are
// [2 * n_pairs], of channels or of tokens.
struct CodebookBlock {
  int n_pairs;
  int n_lines;
  const float* scales;
  const float* offsets;
};

// Codes (as numbers) to the elements that they stand for, in place.
void DecodeByCodebook(const CodebookBlock& block, const float* centroids, float* x);
// Elements to codes, in place. What the codes lose goes to `residual` if that is not null.
void EncodeByCodebook(const CodebookBlock& block, const Codebook& codebook, float* x,
                      float* residual);

}  // namespace kvlathe
