// Routers and experts from a source to a machine, one matrix after the other: what was read of a
// file is given back before the next is.
#include <utility>

#include "model/stored/block_types.h"
#include "model/weights.h"

namespace kvlathe {

Status ModelWeights::LoadRouter(int layer_idx, ThreadPool* pool) {
  ExpertWeights& experts = layers_[layer_idx].experts;
  const ExpertsConfig& c = *config_.experts;
  const int whole_idx = held_names_.LayerOf(layer_idx);
  const Projection router = names_.router(whole_idx);
  // In F32, as choices are made of small differences.
  if (!c.has_shared_gate) {
    KVL_ASSIGN_OR_RETURN(experts.router, reader_.Pack({router}, DType::kF32, residents(), pool));
  } else {
    KVL_ASSIGN_OR_RETURN(std::vector<float> rows, reader_.Matrix(router));
    KVL_ASSIGN_OR_RETURN(const std::vector<float> last,
                         reader_.VectorOrRow(names_.shared_router(whole_idx), config_.hidden_dim));
    rows.insert(rows.end(), last.begin(), last.end());
    KVL_ASSIGN_OR_RETURN(experts.router, Weight::Create(residents(), c.n_experts + 1,
                                                        config_.hidden_dim, WeightType::kF32));
    WriteFloats(0, c.n_experts + 1, rows.data(), &experts.router);
  }
  if (c.has_router_bias) {
    KVL_ASSIGN_OR_RETURN(std::vector<float> bias, reader_.Bias(router));
    KVL_ASSIGN_OR_RETURN(experts.router_bias, Upload(std::move(bias)));
  }
  if (!c.has_choice_bias) return OkStatus();
  KVL_ASSIGN_OR_RETURN(std::vector<float> bias,
                       reader_.VectorOrRow(names_.choice_bias(whole_idx), c.n_experts));
  KVL_ASSIGN_OR_RETURN(experts.choice_bias, Upload(std::move(bias)));
  return OkStatus();
}

Status ModelWeights::LoadExperts(int layer_idx, ThreadPool* pool) {
  KVL_RETURN_IF_ERROR(LoadRouter(layer_idx, pool));
  ExpertWeights& experts = layers_[layer_idx].experts;
  const ExpertsConfig& c = *config_.experts;
  std::vector<float> in_biases, down_biases;
  for (int e = 0; e < c.n_experts; ++e) {
    const std::vector<Projection> in = held_names_.expert_in(layer_idx, e);
    const Projection down = held_names_.expert_out(layer_idx, e);
    KVL_ASSIGN_OR_RETURN(Weight first, reader_.Pack(in, types_, residents(), pool));
    KVL_ASSIGN_OR_RETURN(Weight last, reader_.Pack({down}, types_, residents(), pool));
    experts.in.push_back(std::move(first));
    experts.down.push_back(std::move(last));
    if (!c.has_biases) continue;
    KVL_ASSIGN_OR_RETURN(const std::vector<float> of_in, ReadBiases(in));
    in_biases.insert(in_biases.end(), of_in.begin(), of_in.end());
    if (!shard_.adds_biases()) continue;
    KVL_ASSIGN_OR_RETURN(const std::vector<float> of_down, reader_.Bias(down));
    down_biases.insert(down_biases.end(), of_down.begin(), of_down.end());
  }
  KVL_ASSIGN_OR_RETURN(experts.in_bias, Upload(std::move(in_biases)));
  KVL_ASSIGN_OR_RETURN(experts.down_bias, Upload(std::move(down_biases)));
  if (c.shared_ffn_dim == 0) return OkStatus();
  KVL_ASSIGN_OR_RETURN(experts.shared_in,
                       reader_.Pack(held_names_.shared_in(layer_idx), types_, residents(), pool));
  KVL_ASSIGN_OR_RETURN(experts.shared_down, reader_.Pack({held_names_.shared_out(layer_idx)},
                                                         types_, residents(), pool));
  return OkStatus();
}

}  // namespace kvlathe
