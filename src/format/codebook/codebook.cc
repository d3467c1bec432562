#include "format/codebook/codebook.h"

#include <algorithm>

namespace kvlathe {
namespace {

constexpr int kWords = 32;  // of a line, members of the pair in turn

// Both members' numbers of a pair, as the words of a line have them.
struct PairNumbers {
  PairNumbers(const float* from, int pair) {
    for (int w = 0; w < kWords; ++w) words[w] = from[2 * pair + w % 2];
  }
  float words[kWords];
};

// a + b i -> (a + b i)(c + s i) in place, over the lines of `half` channels.
void Turn(const KeyRotation& r, float sign, float factor, float* keys) {
  const int64_t n = int64_t{r.half} * kBlockSize;
  float* const a = keys;
  float* const b = keys + n;
  for (int64_t i = 0; i < n; ++i) {
    const float c = factor * r.cos[i], s = factor * sign * r.sin[i];
    const float x = a[i], y = b[i];
    a[i] = x * c - y * s;
    b[i] = y * c + x * s;
  }
}

}  // namespace

void TurnKeys(const KeyRotation& rotation, float* keys) { Turn(rotation, 1, 1, keys); }

void TurnKeysBack(const KeyRotation& rotation, float* keys) {
  Turn(rotation, -1, rotation.way_back, keys);
}

void DecodeByCodebook(const CodebookBlock& block, const float* centroids, float* x) {
  for (int pair = 0; pair < block.n_pairs; ++pair) {
    const PairNumbers scales(block.scales, pair), offsets(block.offsets, pair);
    for (int line = 0; line < block.n_lines; ++line, x += kWords) {
      for (int w = 0; w < kWords; ++w) {
        const float centroid = centroids[static_cast<int>(x[w])];
        x[w] = centroid * scales.words[w] + offsets.words[w];
      }
    }
  }
}

void EncodeByCodebook(const CodebookBlock& block, const Codebook& codebook, float* x,
                      float* residual) {
  for (int pair = 0; pair < block.n_pairs; ++pair) {
    const PairNumbers scales(block.scales, pair), offsets(block.offsets, pair);
    for (int line = 0; line < block.n_lines; ++line, x += kWords) {
      float normalised[kWords], codes[kWords] = {};
      for (int w = 0; w < kWords; ++w) {
        normalised[w] = (x[w] - offsets.words[w]) / scales.words[w];
      }
      for (int i = 0; i < codebook.n_codes - 1; ++i) {
        const float boundary = codebook.boundaries[i];
        for (int w = 0; w < kWords; ++w) codes[w] += normalised[w] > boundary ? 1.0f : 0.0f;
      }
      if (residual != nullptr) {
        for (int w = 0; w < kWords; ++w) {
          const float centroid = codebook.centroids[static_cast<int>(codes[w])];
          *residual++ = x[w] - (centroid * scales.words[w] + offsets.words[w]);
        }
      }
      std::copy_n(codes, kWords, x);
    }
  }
}

}  // namespace kvlathe
