// A basis is what a method of the basis axis hands to the model: for each layer and KV head the
// maps between rows of head_dim numbers and rows of the stored ranks.
#pragma once

#include <optional>
#include <vector>

#include "format/keys.h"
#include "format/split_bits/bit_split.h"

namespace kvlathe {

// The columns of D and E that were cut off behind rank_k, [head_dim, head_dim - rank_k] each. With
// them [D query][E key]^T = I, so rows in all columns have the scores that they had before.
struct CutColumns {
  std::vector<float> query, key;
};

// The maps of one KV head as row-major float matrices, which multiply rows from the right.
//
// Where heads share latents (LatentKeys::heads_per_latent = n > 1) these are slices of the latents
// of n heads: E and A take the rows of all of them side by side, [n head_dim, rank], and the ways
// back F and B the slices of all of them, [n rank, head_dim]. Ranks are equal among these heads.
struct HeadBasis {
  int rank_k = 0;
  int rank_v = 0;
  std::vector<float> query_basis;   // D [head_dim, rank_k]: q~ = q D, after RoPE
  std::vector<float> key_basis;     // E [head_dim, rank_k]: k~ = k E, after RoPE
  std::vector<float> value_basis;   // A [head_dim, rank_v]: W_V <- W_V A (and b_V <- b_V A)
  std::vector<float> output_basis;  // B [rank_v, head_dim]: W_O rows of the group <- B W_O
  // Offsets that are subtracted from rows before they are compressed, [head_dim] or empty. Keys
  // lose theirs after RoPE and at every position, sinks too, so that all scores of a query shift
  // alike, which softmax ignores and sink logits and caps are told (HeadJob::lost_keys); those of
  // frames lose it behind the sinks, and attention adds what it is worth in a frame. For values b_V
  // A becomes (b_V - offset) A, and offset W_O joins the output bias, because attention weights sum
  // to 1; there is none where they do not (BasisOptions::has_value_offsets). Neither costs stored
  // bytes.
  std::vector<float> key_offset = {};
  std::vector<float> value_offset = {};
  // What keys behind the sinks lose before they turn (MappedKeys::turning_pairs), [head_dim] or
  // empty; 0 but in the fastest pairs of the channels of each KV head of the model.
  std::vector<float> turning_mean = {};
  // F [rank_k, head_dim], or empty. If not, keys are stored as latents from before RoPE, k~ = (k -
  // key_offset) E, and attention reads k~ F + key_offset, turned to its position; queries stay as
  // they are and there is no query_basis. All heads of a model have it or none.
  std::vector<float> key_way_back = {};
  // The bits of channels, if they have bits of their own. The maps then give channels of unit
  // variance that are mixed in groups (CutBasis).
  HeadBits bits = {};
  // How many numbers of a value the cache holds behind the sinks; 0: rank_v. Values of sinks are
  // whole then (BlockShape::sink_rank_v).
  int stored_rank_v = 0;
  // The columns that D and E have lost, if they are such a pair. Where nothing turns rows after
  // their projection, all columns fold into W_Q and W_K, and sinks are stored in all of them.
  std::optional<CutColumns> cut = std::nullopt;
};

// What a sequence needs, besides its own rows, to find its maps where its prompt ends.
struct OnlineInputs {
  std::vector<std::vector<double>> output_grams;  // BasisInputs::output_grams
  bool is_normalised = false;                     // BasisOptions::is_normalised
};

struct ModelBasis {
  int n_layers = 0;
  int n_kv_heads = 0;            // heads of the cache
  int head_dim = 0;              // of the rows that maps take
  std::vector<HeadBasis> heads;  // [n_layers * n_kv_heads]
  // Where a map joins several KV heads of the model (heads_per_map), head_dim is as many times that
  // of the model, and a query head meets only the rows of its own KV head in query_basis,
  // key_way_back and output_basis. Keys are TurnedKeys where `online` is set.
  Keys keys = MappedKeys{};
  // Set by zack(online=on): heads then have ranks and no maps, because every sequence finds its
  // own.
  std::optional<OnlineInputs> online = std::nullopt;

  const HeadBasis& head(int layer_idx, int kv_head_idx) const {
    return heads[layer_idx * n_kv_heads + kv_head_idx];
  }
};

}  // namespace kvlathe
