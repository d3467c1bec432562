// The reference quantizer is literal, in double and plain loops, for tests: it says what a cache of
// a spec gives back for the rows that it stored (docs/quantization.md), and shares no code with the
// engine.
#pragma once

#include <string>
#include <vector>

#include "reference_decoder.h"
#include "references/reference_sphere.h"

namespace kvlathe::testing {

// Of kvquant, of one layer. A code is the index of the nearest centroid, of which `decoded` is what
// it stands for.
struct ReferenceCodebooks {
  std::vector<double> nearest, decoded;
  std::vector<std::vector<double>> ranges, offsets;  // [kv head][rank_k]
};

struct ReferenceQuantizer {
  std::string name;  // token, kcvt, kivi, int8, kvarn, kvquant, split, q8_0, q4_0, table, sphere
  int bits = 4;
  int bits_of_v = 2;  // kvarn; `bits` are those of K
  int group = 64;
  int run = 512;  // of a prompt; 0: all of it
  int buffer = 64;
  int newest = 0;
  int n_prompt = 0;
  int n_sink = 0;
  double sparse_share = 0;
  double key_clip = 1, value_clip = 1;  // token: rows of a head are clipped to this quantile of |x|
  std::vector<double> table;            // table: what each code stands for under a scale of 1
  ReferenceSphere sphere;
  // Runs of the prompt with more than half of their rows in this share of its n_prompt_tokens, the
  // newest, come back whole; negative: none.
  double whole_share = -1;
  int n_prompt_tokens = 0;  // n_prompt is what is known of it so far
  // kvquant
  std::vector<ReferenceCodebooks> codebooks;  // [layer]
  bool keys_before_rope = true;
  ReferenceRope rope;
  int rotary_dim = 0;
  // split: bits of the channels of K and of V, [layer * n_kv_heads + head][channel]
  std::vector<std::vector<int>> key_bits, value_bits;
  bool has_token_scales = false;
  // With classes of entries: the same of those with the most and the least votes. Channels behind
  // the last that has bits are lost. Empty: all entries are alike.
  struct Class {
    std::vector<std::vector<int>> key_bits, value_bits;
  };
  std::vector<Class> outer_classes;  // {most, least}
};

// What the last queries of a prompt attend to, [layer][kv head][row], over the query heads of each
// KV head. Add is called after every token of the prompt.
struct ReferenceVotes {
  int n_prompt = 0, n_voting = 32;
  std::vector<std::vector<std::vector<double>>> of_rows;

  void Add(const ReferenceRows& rows, int n_tokens);
};

// Seals the rows of a layer where a run ends with the newest position.
// `votes` are there with classes.
void SealLiterally(const ReferenceQuantizer& quantizer, int layer_idx, ReferenceRows* rows,
                   const ReferenceVotes* votes = nullptr);

// Seals entries [begin, end) of one head of [n_layers * n_kv_heads], past its sinks, as if it were
// the only one of its layer. Not kvquant, whose values have a scale over all heads.
void SealHeadLiterally(const ReferenceQuantizer& quantizer, size_t head_idx, int begin, int end,
                       Matrix* keys, Matrix* values);

}  // namespace kvlathe::testing
