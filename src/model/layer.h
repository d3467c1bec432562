// A Layer is one layer as its steps see it: its shapes, its weights, and where the rows of its
// heads are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "analysis/bases/basis.h"
#include "format/keys.h"
#include "kv/cache_layout.h"
#include "machine/machine_buffer.h"
#include "machine/residents.h"
#include "model/activations.h"
#include "model/config.h"
#include "model/layer_basis.h"
#include "model/rotation_tables.h"
#include "model/weights.h"

namespace kvlathe {

// Heads of a layer, their ranks, and where their rows lie among the activations of a step.
struct LayerRows {
  int n_heads = 0;
  int n_kv_heads = 0;  // heads of the cache, each heads_per_map() of the model's
  int head_dim = 0;    // of the model
  // What a basis makes of keys on their way to the cache; turned keys where it is folded into the
  // product.
  kvlathe::Keys keys;
  // Where the KV heads begin in buffers whose heads have ranks of their own: prefix sums,
  // [n_kv_heads + 1].
  std::vector<int64_t> k_offsets = {0}, v_offsets = {0};
  // Whether rows change on their way from the product to attention and to the cache, because they
  // turn, are normalised or mapped. If not, attention and the cache take the rows of the product.
  bool turn = true;
  bool is_cut = false;  // the product has rank_k columns a head, not head_dim
  // Whether the maps of values are folded into no weights: rows of values are mapped as they come,
  // and attention's outputs are mapped back.
  bool maps_values = false;

  bool maps_keys() const { return FactsOf(keys).are_mapped; }
  // Before they meet keys; those of frames are mapped where they meet them.
  bool maps_queries() const { return FactsOf(keys).maps_queries && !HasFrames(keys); }
  int heads_per_map() const { return HeadsPerMap(keys); }
  int heads_per_latent() const { return HeadsPerLatent(keys); }
  // Whether values, as they are made, are added to mapped keys, and rows of the cache are both.
  bool joins_values() const { return JoinsValues(keys); }
  // Query heads that meet the same KV head of the cache, and of the model.
  int gqa_group() const { return n_heads / n_kv_heads; }
  int queries_per_key() const { return gqa_group() / heads_per_map(); }
  int n_model_kv_heads() const { return n_kv_heads * heads_per_map(); }
  // Numbers of a whole key of the cache: the keys of the joined heads side by side. A whole query
  // is as wide, and zero but for the place of its own KV head.
  int key_dim() const { return heads_per_map() * head_dim; }
  // Whether W_O, or whoever takes attention's outputs, reads rows of head_dim, which they are
  // mapped to first.
  bool maps_outputs() const { return maps_values || KeysPerMap(keys) > 1 || joins_values(); }
  // Numbers of a key row of the head as it is made; caches hold the first rank_k of them.
  int64_t KeyWidth(int kv_head_idx) const {
    return k_offsets[kv_head_idx + 1] - k_offsets[kv_head_idx];
  }
  int64_t ValueWidth(int kv_head_idx) const {
    return v_offsets[kv_head_idx + 1] - v_offsets[kv_head_idx];
  }
  // Numbers of a row that attention puts out if caches hold rows of all ranks of the layer.
  int64_t OutputWidth(int kv_head_idx) const {
    return heads_per_latent() * ValueWidth(kv_head_idx);
  }
  // Between the outputs of two tokens, and before those of the KV head.
  int64_t OutputStride() const { return v_offsets.back() * gqa_group() * heads_per_latent(); }
  int64_t OutputOffset(int kv_head_idx) const {
    return v_offsets[kv_head_idx] * gqa_group() * heads_per_latent();
  }
  // Between the rows of two tokens in a product that is not cut.
  int64_t QkStride() const { return int64_t{n_heads + n_model_kv_heads()} * head_dim; }

  // gqa_group rows a token: in the basis of keys, where they are mapped to it, and as sinks and
  // frames meet them.
  HeadRows Queries(Activations* a, int kv_head_idx) const;
  HeadRows WholeQueries(Activations* a, int kv_head_idx) const;
  // One row a token.
  HeadRows Keys(Activations* a, int kv_head_idx) const;
  HeadRows WholeKeys(Activations* a, int kv_head_idx) const;
  HeadRows Values(Activations* a, int kv_head_idx) const;

 private:
  // The rows of one head in the product of W_Q and W_K; KV heads are counted behind the query
  // heads.
  HeadRows ProductRows(Activations* a, int head_idx) const;
};

// The rows of a layer of the model whose heads of the cache make rows of these shapes,
// [n_kv_heads]; they turn.
LayerRows RowsOf(const ModelConfig& config, std::span<const BlockShape> row_shapes);

// The steps of the layer read it; it lives as long as its program.
struct Layer {
  int idx = 0;
  // Its number in the whole model, and that of its first head of the cache among those of the whole
  // layer: what is drawn at random goes by them, so that ranks which share a model draw the same.
  int whole_idx = 0;
  int first_kv_head = 0;
  const ModelConfig* config = nullptr;
  const LayerWeights* weights = nullptr;  // null: its rows come from outside (LayerParts)
  ObjectPlace sink_logits;                // [n_heads] F32, with ModelConfig::has_sink_logits
  const CacheLayout* layout = nullptr;    // of all caches that have no rate of their own
  LayerRows rows;
  // Whether other ranks hold the rest of its heads and columns, so that what it adds to the
  // residual stream is a sum over ranks.
  bool is_parted = false;
  int window = 0;  // newest positions that a token sees; 0: all
  DType row_type = DType::kF32;
  std::shared_ptr<const ValueProjection> values;
  std::optional<QkProjection> folded_qk;  // if the basis of keys is folded
  LayerBasis basis;
  CodebooksId codebooks;  // if the format has them
  RotationTables* rotations = nullptr;
  const OnlineInputs* online = nullptr;     // if sequences find their bases by them
  std::vector<MachineBuffer> output_grams;  // then: [n_kv_heads] of OnlineInputs::output_grams
};

// Uploads the Gram matrices on which the heads of a layer stack their values; none where the method
// needs none. kResourceExhausted.
StatusOr<std::vector<MachineBuffer>> UploadGrams(const OnlineInputs& online, int layer_idx,
                                                 int n_kv_heads, Device* memory);

// Has the tables keep the angles that caches of this layout read.
void KeepAnglesFor(const CacheLayout& layout, bool has_codebooks, RotationTables* rotations);

}  // namespace kvlathe
