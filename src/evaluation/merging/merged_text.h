// A MergedText knows which positions of a text a cache merges, counted in the cache itself
// (format/open_entry.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "evaluation/quality.h"
#include "model/model.h"

namespace kvlathe {

// What a cache made of a text that it read token by token. A position begins an entry of a head, or
// joins the newest one; each position of the sinks is an entry of its own.
struct MergedText {
  int n_layers = 0, n_kv_heads = 0, n_tokens = 0;
  std::vector<uint8_t> begins;  // [n_tokens, n_layers, n_kv_heads]: 1 where an entry begins

  int n_heads() const { return n_layers * n_kv_heads; }
  bool Begins(int position, int head) const {
    return begins[static_cast<size_t>(position) * n_heads() + head] != 0;
  }
  // Entries of a head (layer_idx * n_kv_heads + kv_head_idx) behind the first n tokens.
  int64_t Entries(int head, int n) const;
};

// Reads the texts, all of the same length, beside one another, and takes from the cache after each
// token how many entries every head has. kInvalidArgument where the model's cache merges nothing,
// or when there is no text or an empty one; kResourceExhausted when the budget does not hold them.
StatusOr<std::vector<MergedText>> ReadMergedTexts(Model* model,
                                                  std::span<const std::vector<int32_t>> texts,
                                                  int64_t kv_budget_bytes,
                                                  const Progress& progress);

// Compression ratios are positions over entries, summed over the texts before they are divided.

// Of each head, [n_layers * n_kv_heads].
std::vector<double> CompressionByHead(std::span<const MergedText> texts);

// Of the first n_tokens of the texts.
struct LengthCompression {
  int n_tokens = 0;
  double all = 0;              // of all heads together
  double least = 0, most = 0;  // of the head that merges least and of the one that merges most
};
// At powers of two from 16 on, and at the whole length.
std::vector<LengthCompression> CompressionByLength(std::span<const MergedText> texts);

// The share of positions that join an entry, over texts, heads and the positions [begin, end).
struct AlphaRange {
  int begin = 0, end = 0;
  double alpha = 0;
};
// At most 32 ranges of equal length, but for the last.
std::vector<AlphaRange> AlphaByPosition(std::span<const MergedText> texts);

}  // namespace kvlathe
