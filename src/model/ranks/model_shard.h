// A ModelShard is what one machine of several holds of a model: layers of a stage (pipeline
// parallelism), and in each of them heads, columns of the feed-forward part and words (tensor
// parallelism, as in Megatron-LM, arXiv 1909.08053, section 3).
#pragma once

#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "model/config.h"
#include "model/stored/weight_names.h"

namespace kvlathe {

// How many machines share a model: n_stages of n_tensor_ranks each. Rank r is in stage
// r / n_tensor_ranks.
struct RankGrid {
  int n_tensor_ranks = 1;
  int n_stages = 1;

  int n_ranks() const { return n_tensor_ranks * n_stages; }
};

// Ranges count what the whole model has.
struct ModelShard {
  RankGrid grid;
  int tensor_rank = 0;
  int stage = 0;
  Range layers = {0, 0};
  Range kv_heads = {0, 0};     // the same of every layer, with the query heads that meet them
  Range ffn_columns = {0, 0};  // outputs of the gate and of up, inputs of down
  Range words = {0, 0};        // rows of the embedding and of the head
  // The same of every expert, and of the MLP beside them.
  Range expert_columns = {0, 0};
  Range shared_columns = {0, 0};

  bool is_first_stage() const { return stage == 0; }
  bool is_last_stage() const { return stage + 1 == grid.n_stages; }
  bool has_whole_layers() const { return grid.n_tensor_ranks == 1; }
  // Whether biases of sums over ranks are added here.
  bool adds_biases() const { return tensor_rank == 0; }
};

// All of a model.
ModelShard WholeModel(const ModelConfig& model);

// The shard of a rank. KV heads and layers are shared out as DivideHeads and DivideLayers say;
// columns of the feed-forward part and words so that the weights of the ranks have
// about the same number of bytes. kInvalidArgument, with what to choose instead, where a rank would
// have no head or no layer, or where the rank is not one of the grid.
StatusOr<ModelShard> ShardOf(const ModelConfig& model, const RankGrid& grid, int rank);

// The model that the shard is by itself: its layers, heads and columns. The vocabulary stays whole.
ModelConfig ConfigOf(const ModelConfig& model, const ModelShard& shard);

// The names of a model's weights, cut to what a shard holds of them. Layers are counted from the
// first of the shard.
class ShardNames {
 public:
  // Both outlive it.
  ShardNames(const WeightNames* names, const ModelConfig* whole, const ModelShard& shard)
      : names_(*names), whole_(*whole), shard_(shard) {}

  Projection output_head() const;
  std::vector<Projection> qk(int layer_idx) const;
  Projection v(int layer_idx) const;
  Projection o(int layer_idx) const;
  std::vector<Projection> mlp_in(int layer_idx) const;
  Projection mlp_out(int layer_idx) const;
  std::vector<Projection> expert_in(int layer_idx, int expert_idx) const;
  Projection expert_out(int layer_idx, int expert_idx) const;
  std::vector<Projection> shared_in(int layer_idx) const;
  Projection shared_out(int layer_idx) const;
  std::vector<VectorPart> q_norm(int layer_idx) const;
  std::vector<VectorPart> k_norm(int layer_idx) const;
  // The layer of the whole model.
  int LayerOf(int layer_idx) const { return static_cast<int>(shard_.layers.begin) + layer_idx; }

 private:
  // The rows, or columns, of those heads.
  Range RowsOf(int64_t first_row, Range heads) const {
    return {first_row + heads.begin * whole_.head_dim, first_row + heads.end * whole_.head_dim};
  }
  Range QueryHeads() const {
    return {shard_.kv_heads.begin * whole_.gqa_group(), shard_.kv_heads.end * whole_.gqa_group()};
  }

  // Of a first matrix of ffn_dim rows, or twice as many with a gate, those of the columns; of a
  // last one the inputs.
  std::vector<Projection> RowsOfColumns(const std::vector<Projection>& parts, int64_t ffn_dim,
                                        Range columns) const;
  Projection InputsOf(Projection down, Range columns) const;
  // Of the weights of all heads those of `heads`; all where heads share them.
  std::vector<VectorPart> NormOf(std::vector<VectorPart> parts, Range heads) const;

  const WeightNames& names_;
  const ModelConfig& whole_;
  const ModelShard& shard_;
};

}  // namespace kvlathe
