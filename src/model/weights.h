// The weights of a decoder, or of a shard of one, on a machine, laid out once for its products. The
// basis axis changes W_V and W_O, which are folded anew for each spec; everything else is shared by
// all specs of a process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/bases/basis.h"
#include "base/threads.h"
#include "machine/machine.h"
#include "machine/machine_buffer.h"
#include "machine/plans.h"
#include "model/config.h"
#include "model/number_types.h"
#include "model/ranks/model_shard.h"
#include "model/ranks/rank_links.h"
#include "model/stored/weight_names.h"
#include "model/stored/weight_reader.h"
#include "model/tensor_source.h"

namespace kvlathe {

struct NormWeights {
  FloatTable weight;  // [hidden_dim]; of norms of queries and keys [head_dim]
  FloatTable bias;    // of the same size with NormKind::kLayer, else empty
};

// What a layer with experts has in place of an MLP.
struct ExpertWeights {
  Weight router;  // [n_experts, hidden_dim] F32, and a row more with has_shared_gate
  FloatTable router_bias, choice_bias;  // [n_experts], or empty
  // Of each expert as LayerWeights::mlp_in and down; the biases of all below each other.
  std::vector<Weight> in, down;
  FloatTable in_bias, down_bias;
  Weight shared_in, shared_down;  // with shared_ffn_dim
};

struct LayerWeights {
  NormWeights attn_norm;
  NormWeights ffn_norm;  // empty with shared_norm
  // With norms.of_qk. [head_dim], [n_heads, head_dim] or [n_heads * head_dim] (QkNormConfig::over);
  // biases with NormKind::kLayer.
  NormWeights q_norm, k_norm;
  FloatTable turned_query_weights;          // [head_dim], with weighs_turned_queries
  NormWeights attn_out_norm, ffn_out_norm;  // with output_norms
  Weight qk;           // [(n_heads + n_kv_heads) * head_dim, hidden_dim], Q rows first
  FloatTable qk_bias;  // empty: none
  Weight mlp_in;       // [mlp_rows(), hidden_dim], gate rows before up rows
  FloatTable mlp_in_bias;
  XieluNumbers xielu;  // with MlpKind::kXielu
  Weight down;         // [hidden_dim, ffn_dim]
  FloatTable down_bias;
  ExpertWeights experts;   // of a layer with experts, which has no mlp_in and down then
  FloatTable sink_logits;  // [n_heads], with has_sink_logits
  // With ModelConfig::dms, where no channel of queries decides which keys may leave: what does, in
  // F32.
  NormWeights dms_norm;
  Weight dms;           // [n_kv_heads, hidden_dim]
  FloatTable dms_bias;  // empty: none
};

// W_V and W_O of a layer in the value basis of a spec (docs/basis.md, Folding).
struct ValueProjection {
  Weight v;           // [sum over KV heads of rank_v, hidden_dim]
  FloatTable v_bias;  // b_V A; empty: none
  // [hidden_dim, sum over query heads of rank_v of their KV head]. Where heads share latents, this
  // is W_O itself: the way back of shared latents would make it as many times wider.
  Weight o;
  FloatTable o_bias;
};

// W_Q and W_K of a layer in the basis of keys, for models in which nothing turns their rows
// (docs/basis.md, Folding). Attention and the cache take the rows of the product as they are.
struct QkProjection {
  Weight qk;  // Q rows of all heads, then K rows
  FloatTable bias;
};

// Called with the share of the layers that are loaded.
using LoadProgress = std::function<void(double fraction)>;

class ModelWeights {
 public:
  // Reads everything but W_V and W_O into the memory of `machine`; source pages are released as
  // they are read. Of a shard (null: the whole model) only what it holds is read. kDataLoss names
  // the tensor that is missing, has another shape or is not finite, kInvalidArgument where the
  // machine has no products of such activations with such weights.
  static StatusOr<std::unique_ptr<ModelWeights>> Load(const ModelConfig& config,
                                                      const NumberTypes& types,
                                                      std::unique_ptr<TensorSource> source,
                                                      std::shared_ptr<Machine> machine,
                                                      const LoadProgress& progress = nullptr,
                                                      const ModelShard* shard = nullptr);

  // Changes how models that are made of these weights from now on decide what merges; none: not at
  // all.
  void set_dmc(const std::optional<DmcConfig>& dmc) { config_.dmc = whole_.dmc = dmc; }

  // Gives the memory back that the system keeps for reading the source further.
  void DoneReading() { reader_.DoneWithAll(); }

  // Layers and heads of what follows are counted in the shard, and bases are of its heads.
  // Returns W_V and W_O of one layer, folded with `basis`. Where it is null or leaves the values of
  // the layer as they are, all callers share one copy.
  StatusOr<std::shared_ptr<const ValueProjection>> FoldValues(int layer_idx,
                                                              const ModelBasis* basis,
                                                              ThreadPool* pool);

  // Returns W_Q D and (W_K less the offset) E of one layer, and the biases likewise. Each head has
  // rank_k rows; with `keeps_width` it has head_dim rows, and those of HeadBasis::cut come last.
  StatusOr<QkProjection> FoldQueriesAndKeys(int layer_idx, const ModelBasis& basis,
                                            bool keeps_width, ThreadPool* pool);

  // W_Q and W_K of the whole model's layer as they are stored, [(n_heads + n_kv_heads) * head_dim,
  // hidden_dim], Q rows first.
  StatusOr<std::vector<float>> QkMatrix(int layer_idx);

  // Plans the rows [n_tokens, hidden_dim] F32 at `out` with which the residual stream begins. Where
  // positions are learned, those of the tokens are below max_seq_len.
  EmbedPlan PlanEmbedding(std::span<const TokenPlace> tokens, const ObjectPlace& out) const;

  // Of what is held here (ConfigOf), and of the whole model.
  const ModelConfig& config() const { return config_; }
  const ModelConfig& whole_config() const { return whole_; }
  const ModelShard& shard() const { return shard_; }
  // What ties the shard to the others; set before models are made.
  void set_links(const RankLinks& links) { links_ = links; }
  const RankLinks& links() const { return links_; }
  // Asked before each step of every model that is made of these weights, and before each layer of
  // their gradients, on the thread that runs them; its error ends both. None: nothing interrupts.
  void set_interrupt(std::function<Status()> interrupt) { interrupt_ = std::move(interrupt); }
  Status CheckInterrupt() const { return interrupt_ ? interrupt_() : OkStatus(); }
  const NumberTypes& types() const { return types_; }
  const LayerWeights& layer(int layer_idx) const { return layers_[layer_idx]; }
  const NormWeights& final_norm() const { return final_norm_; }
  Machine& machine() const { return *machine_; }
  const Weight& lm_head() const { return lm_head_; }
  const FloatTable& lm_head_bias() const { return lm_head_bias_; }  // empty: none
  // Stored blocks that were not kept as they are.
  const std::vector<WeightReader::Remade>& remade() const { return reader_.remade(); }
  // What is read again: W_V and W_O for each basis, and all for analyses (model/weight_grams.h),
  // which are of the whole model whatever is held of it.
  WeightReader& reader() { return reader_; }
  const WeightNames& names() const { return names_; }

 private:
  // Biases of values and of outputs while they are folded; empty: none.
  struct ValueBiases {
    std::vector<float> v, o;
  };

  ModelWeights(const ModelConfig& config, const ModelShard& shard, const NumberTypes& types,
               std::unique_ptr<TensorSource> source, std::shared_ptr<Machine> machine);
  Residents* residents() const { return &machine_->residents(); }
  StatusOr<FloatTable> Upload(std::vector<float> values) const {
    return FloatTable::Make(&machine_->memory(), std::move(values), "a vector of weights");
  }
  Status LoadEmbeddings(ThreadPool* pool);
  StatusOr<FloatTable> LoadVector(const std::string& name, int64_t n);
  // Of these rows of the table, which are counted from 0 then.
  StatusOr<Resident<TableId>> AddTable(const std::string& name, int64_t n_rows, Range wanted);
  Status LoadLayer(int layer_idx, ThreadPool* pool);
  Status LoadNorms(int layer_idx);
  Status LoadMlp(int layer_idx, ThreadPool* pool);
  Status LoadExperts(int layer_idx, ThreadPool* pool);
  Status LoadRouter(int layer_idx, ThreadPool* pool);
  Status LoadDms(int layer_idx, ThreadPool* pool);
  // Of what a basis is folded into: dense where the matrix has blocks.
  WeightType FoldedType(const Projection& whole) const;
  StatusOr<ValueProjection> WholeValues(int layer_idx, ThreadPool* pool);
  StatusOr<ValueProjection> FoldedValues(int layer_idx, const ModelBasis& basis, ThreadPool* pool);
  StatusOr<ValueBiases> ReadValueBiases(int layer_idx);
  // W_V A and b_V A, and B W_O, into the projection; KV head g has rows [v_offset[g], v_offset[g +
  // 1]).
  Status FoldValueRows(int layer_idx, const ModelBasis& basis, const std::vector<int64_t>& v_offset,
                       ThreadPool* pool, ValueProjection* p, ValueBiases* biases);
  Status FoldOutputColumns(int layer_idx, const ModelBasis& basis,
                           const std::vector<int64_t>& v_offset, ThreadPool* pool,
                           ValueProjection* p, ValueBiases* biases);
  // The norm's own weights are multiplied by `scale`.
  // Weights and biases are multiplied by `scale`.
  StatusOr<NormWeights> ReadNorm(const std::string& tensor, int64_t n_dims, NormKind kind,
                                 float scale = 1);
  Status LoadQkNorms(int layer_idx);
  Status LoadXielu(int layer_idx);
  // Reads matrices, and biases of matrices, that stand below each other.
  StatusOr<std::vector<float>> Stacked(const std::vector<Projection>& parts);
  StatusOr<std::vector<float>> ReadBiases(const std::vector<Projection>& parts);

  std::shared_ptr<Machine> machine_;
  ModelConfig whole_;
  ModelShard shard_;
  RankLinks links_;
  std::function<Status()> interrupt_;
  ModelConfig config_;
  NumberTypes types_;
  WeightReader reader_;
  WeightNames names_;      // of the whole model
  ShardNames held_names_;  // of what is held
  std::vector<LayerWeights> layers_;
  NormWeights final_norm_;  // of the last stage
  Weight lm_head_;
  FloatTable
      lm_head_bias_;  // of the last stage, and of the first where the embedding is tied to it
  Resident<TableId> embedding_;           // none where it is tied to lm_head_
  Resident<TableId> position_embedding_;  // with learned positions
  // By a hash of the maps that were folded in. It has 64 bits, so two of a thousand maps agree in
  // one of 2^45 runs.
  std::vector<std::map<uint64_t, std::weak_ptr<const ValueProjection>>> projections_;  // [n_layers]
};

}  // namespace kvlathe
