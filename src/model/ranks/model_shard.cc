#include "model/ranks/model_shard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/model_facts.h"
#include "plan/plan_checks.h"
#include "plan/plan_shard.h"

namespace kvlathe {
namespace {

// Cuts n columns so that with what ranks have already, in units of a column, all have about the
// same. Cuts are multiples of the largest step that leaves each rank several of them, so that
// blocks of quantised weights stay whole.
std::vector<Range> BalancedColumns(int64_t n, const std::vector<double>& already) {
  const auto n_ranks = static_cast<int64_t>(already.size());
  int64_t step = 1;
  for (const int64_t larger : {256, 128, 64, 32, 16}) {
    if (n % larger != 0 || n / larger < 4 * n_ranks) continue;
    step = larger;
    break;
  }
  double total = static_cast<double>(n);
  for (const double had : already) total += had;
  const double share = total / static_cast<double>(n_ranks);
  std::vector<Range> parts;
  int64_t begin = 0;
  double wanted = 0;
  for (int64_t r = 0; r < n_ranks; ++r) {
    wanted += share - already[r];
    const int64_t least = begin + step, most = n - (n_ranks - 1 - r) * step;
    int64_t end = std::lround(wanted / static_cast<double>(step)) * step;
    end = r + 1 == n_ranks ? n : std::clamp(end, std::min(least, most), most);
    parts.push_back({begin, end});
    begin = end;
  }
  return parts;
}

// Columns of every expert, and of the MLP beside them. A token meets n_used experts, which together
// are as wide as that many columns.
Status ShareExperts(const ModelConfig& model, const std::vector<double>& of_ranks,
                    ModelShard* shard) {
  const ExpertsConfig& experts = *model.experts;
  const auto n_ranks = static_cast<int64_t>(of_ranks.size());
  const int narrowest = std::min(
      experts.ffn_dim, experts.shared_ffn_dim > 0 ? experts.shared_ffn_dim : experts.ffn_dim);
  if (narrowest < 2 * n_ranks) {
    return Error(StatusCode::kInvalidArgument,
                 "experts of {} columns cannot be shared among {} ranks; use --pp in place of --tp",
                 narrowest, n_ranks);
  }
  std::vector<double> of_each = of_ranks;
  for (double& n : of_each) n /= experts.n_used;
  shard->expert_columns = BalancedColumns(experts.ffn_dim, of_each)[shard->tensor_rank];
  if (experts.shared_ffn_dim == 0) return OkStatus();
  shard->shared_columns = BalancedColumns(experts.shared_ffn_dim,
                                          std::vector<double>(of_ranks.size()))[shard->tensor_rank];
  return OkStatus();
}

}  // namespace

ModelShard WholeModel(const ModelConfig& model) {
  ModelShard shard = {.layers = {0, model.n_layers},
                      .kv_heads = {0, model.n_kv_heads},
                      .ffn_columns = {0, model.ffn_dim},
                      .words = {0, model.vocab_size}};
  if (model.experts.has_value()) {
    shard.expert_columns = {0, model.experts->ffn_dim};
    shard.shared_columns = {0, model.experts->shared_ffn_dim};
  }
  return shard;
}

StatusOr<ModelShard> ShardOf(const ModelConfig& model, const RankGrid& grid, int rank) {
  const int n_tensor = grid.n_tensor_ranks;
  if (n_tensor < 1 || grid.n_stages < 1 || rank < 0 || rank >= grid.n_ranks()) {
    return Error(StatusCode::kInvalidArgument, "rank {} is none of {} stages of {} ranks", rank,
                 grid.n_stages, n_tensor);
  }
  KVL_RETURN_IF_ERROR(CheckDivision(FactsOf(model, DType::kBf16, grid)));
  ModelShard shard = WholeModel(model);
  shard.grid = grid;
  shard.tensor_rank = rank % n_tensor;
  shard.stage = rank / n_tensor;
  shard.layers = DivideLayers(model.n_layers, grid.n_stages)[shard.stage];
  if (n_tensor == 1) return shard;
  if (model.norms.of_qk.has_value() && model.norms.of_qk->over == QkNormConfig::Over::kAllHeads) {
    return Error(
        StatusCode::kInvalidArgument,
        "{} normalises queries and keys over all heads of a layer, which ranks cannot share; "
        "use --pp in place of --tp",
        model.model_type);
  }
  const std::vector<Range> heads_of = DivideHeads(model.n_kv_heads, n_tensor);
  shard.kv_heads = heads_of[shard.tensor_rank];
  // Weights of the attention of a KV head, in columns of the feed-forward part.
  const double of_head =
      2.0 * (model.gqa_group() + 1) * model.head_dim / (model.has_gate() ? 3 : 2);
  std::vector<double> of_ranks;
  for (const Range& heads : heads_of) {
    of_ranks.push_back(of_head * static_cast<double>(heads.end - heads.begin));
  }
  shard.ffn_columns = BalancedColumns(model.ffn_dim, of_ranks)[shard.tensor_rank];
  if (model.experts.has_value()) {
    KVL_RETURN_IF_ERROR(ShareExperts(model, of_ranks, &shard));
  }
  shard.words = BalancedColumns(model.vocab_size, std::vector<double>(n_tensor))[shard.tensor_rank];
  return shard;
}

ModelConfig ConfigOf(const ModelConfig& model, const ModelShard& shard) {
  const auto size = [](Range r) { return static_cast<int>(r.end - r.begin); };
  ModelConfig config = model;
  config.n_layers = size(shard.layers);
  config.n_kv_heads = size(shard.kv_heads);
  config.n_heads = config.n_kv_heads * model.gqa_group();
  config.ffn_dim = size(shard.ffn_columns);
  std::vector<int>& kinds = config.attention.kind_of_layer;
  if (!kinds.empty()) {
    kinds = std::vector<int>(kinds.begin() + shard.layers.begin, kinds.begin() + shard.layers.end);
  }
  if (!config.xielu.empty()) {
    config.xielu = std::vector<XieluNumbers>(model.xielu.begin() + shard.layers.begin,
                                             model.xielu.begin() + shard.layers.end);
  }
  if (config.experts.has_value()) {
    config.experts->ffn_dim = size(shard.expert_columns);
    config.experts->shared_ffn_dim = size(shard.shared_columns);
    std::vector<bool>& of_layer = config.experts->of_layer;
    of_layer = std::vector<bool>(of_layer.begin() + shard.layers.begin,
                                 of_layer.begin() + shard.layers.end);
  }
  return config;
}

Projection ShardNames::output_head() const {
  return TakeRows({names_.output_head()}, {{shard_.words}}).front();
}

std::vector<Projection> ShardNames::qk(int layer_idx) const {
  const int64_t n_query_rows = int64_t{whole_.n_heads} * whole_.head_dim;
  return TakeRows(names_.qk(LayerOf(layer_idx)),
                  {{RowsOf(0, QueryHeads()), RowsOf(n_query_rows, shard_.kv_heads)}});
}

Projection ShardNames::v(int layer_idx) const {
  return TakeRows({names_.v(LayerOf(layer_idx))}, {{RowsOf(0, shard_.kv_heads)}}).front();
}

Projection ShardNames::o(int layer_idx) const {
  Projection o = names_.o(LayerOf(layer_idx));
  if (!shard_.has_whole_layers()) o.inputs = RowsOf(0, QueryHeads());
  return o;
}

std::vector<Projection> ShardNames::RowsOfColumns(const std::vector<Projection>& parts,
                                                  int64_t ffn_dim, Range columns) const {
  std::vector<Range> wanted = {columns};
  if (whole_.has_gate()) wanted.push_back({ffn_dim + columns.begin, ffn_dim + columns.end});
  return TakeRows(parts, wanted);
}

Projection ShardNames::InputsOf(Projection down, Range columns) const {
  if (!shard_.has_whole_layers()) down.inputs = columns;
  return down;
}

std::vector<Projection> ShardNames::mlp_in(int layer_idx) const {
  return RowsOfColumns(names_.mlp_in(LayerOf(layer_idx)), whole_.ffn_dim, shard_.ffn_columns);
}

Projection ShardNames::mlp_out(int layer_idx) const {
  return InputsOf(names_.mlp_out(LayerOf(layer_idx)), shard_.ffn_columns);
}

std::vector<Projection> ShardNames::expert_in(int layer_idx, int expert_idx) const {
  return RowsOfColumns(names_.expert_in(LayerOf(layer_idx), expert_idx), whole_.experts->ffn_dim,
                       shard_.expert_columns);
}

Projection ShardNames::expert_out(int layer_idx, int expert_idx) const {
  return InputsOf(names_.expert_out(LayerOf(layer_idx), expert_idx), shard_.expert_columns);
}

std::vector<Projection> ShardNames::shared_in(int layer_idx) const {
  return RowsOfColumns(names_.shared_in(LayerOf(layer_idx)), whole_.experts->shared_ffn_dim,
                       shard_.shared_columns);
}

Projection ShardNames::shared_out(int layer_idx) const {
  return InputsOf(names_.shared_out(LayerOf(layer_idx)), shard_.shared_columns);
}

std::vector<VectorPart> ShardNames::NormOf(std::vector<VectorPart> parts, Range heads) const {
  if (whole_.norms.of_qk->over == QkNormConfig::Over::kHead) return parts;
  const Range wanted = RowsOf(0, heads);
  int64_t first = 0;  // of the run, among the numbers of all parts
  for (VectorPart& part : parts) {
    std::vector<Projection::Run> taken;
    for (const Projection::Run& run : part.runs) {
      const int64_t begin = std::max(wanted.begin, first);
      const int64_t end = std::min(wanted.end, first + run.n);
      if (begin < end) taken.push_back({run.begin + begin - first, end - begin});
      first += run.n;
    }
    part.runs = std::move(taken);
  }
  return parts;
}

std::vector<VectorPart> ShardNames::q_norm(int layer_idx) const {
  return NormOf(names_.q_norm(LayerOf(layer_idx)), QueryHeads());
}

std::vector<VectorPart> ShardNames::k_norm(int layer_idx) const {
  return NormOf(names_.k_norm(LayerOf(layer_idx)), shard_.kv_heads);
}

}  // namespace kvlathe
