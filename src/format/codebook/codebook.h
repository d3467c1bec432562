// Sealed blocks of a format with codebooks (packed_layout.h) refer to what is here: the numbers
// that codes stand for, ranges of the channels of K, and rotations of keys that are sealed before
// RoPE. All of it belongs to the model and does not count as bytes of a cache.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "format/rows/block_layout.h"

namespace kvlathe {

// The codes of K or of V of one layer. An element is centroid * range + offset; elements of a
// channel of K, and those of a token of V over all heads, have one range and one offset.
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

// The shape and the scales of an array x [n_pairs][n_lines][32 words], which has the order of K or
// of V in a plain block. Scales and offsets are [2 * n_pairs]: of the channels of K, or of the
// tokens of V.
struct CodebookBlock {
  int n_pairs;
  int n_lines;
  const float* scales;
  const float* offsets;
};

// Replaces codes, which are given as floats, by the elements that they stand for.
void DecodeByCodebook(const CodebookBlock& block, const float* centroids, float* x);
// Replaces elements by their codes. What the codes lose is written to `residual` unless that is
// null.
void EncodeByCodebook(const CodebookBlock& block, const Codebook& codebook, float* x,
                      float* residual);

}  // namespace kvlathe
