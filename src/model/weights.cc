#include "model/weights.h"

#include <Eigen/Core>
#include <bit>
#include <iterator>
#include <string_view>

#include "base/random.h"
#include "model/families/xielu.h"
#include "model/layer_basis.h"
#include "model/retrofits/dms_file.h"
#include "model/stored/block_types.h"

namespace kvlathe {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;

bool HasValueOffset(const ModelBasis& basis, int layer_idx) {
  for (int g = 0; g < basis.n_kv_heads; ++g) {
    if (!basis.head(layer_idx, g).value_offset.empty()) return true;
  }
  return false;
}

// Whether W_O stays as it is and attention's outputs are mapped to its rows first: folded it would
// be as many times wider as heads share a map or latents, and twice where keys and values do.
bool KeepsOutputs(const ModelBasis& basis) {
  return KeysPerMap(basis.keys) > 1 || JoinsValues(basis.keys);
}

uint64_t HashOfValueMaps(const ModelBasis& basis, int layer_idx) {
  uint64_t hash = 1;
  const auto add = [&](const std::vector<float>& values) {
    hash = MixBits(hash + values.size());
    for (const float x : values) hash = MixBits(hash ^ std::bit_cast<uint32_t>(x));
  };
  for (int g = 0; g < basis.n_kv_heads; ++g) {
    const HeadBasis& head = basis.head(layer_idx, g);
    add(head.value_basis);
    add(head.output_basis);
    add(head.value_offset);
  }
  return hash;
}

}  // namespace

ModelWeights::ModelWeights(const ModelConfig& config, const ModelShard& shard,
                           const NumberTypes& types, std::unique_ptr<TensorSource> source,
                           std::shared_ptr<Machine> machine)
    : machine_(std::move(machine)),
      whole_(config),
      shard_(shard),
      config_(ConfigOf(whole_, shard_)),
      types_(types),
      reader_(std::move(source)),
      names_(whole_, reader_.source()),
      held_names_(&names_, &whole_, shard_) {}

StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(
    const ModelConfig& config, const NumberTypes& types, std::unique_ptr<TensorSource> source,
    std::shared_ptr<Machine> machine, const LoadProgress& progress, const ModelShard* shard) {
  if (!machine->residents().Multiplies(types.weights, types.activations)) {
    return Error(StatusCode::kInvalidArgument,
                 "the machine has no products of {} activations with weights of that type",
                 DTypeName(types.activations));
  }
  ThreadPool* const pool = &machine->host_threads();
  std::unique_ptr<ModelWeights> w(new ModelWeights(config,
                                                   shard != nullptr ? *shard : WholeModel(config),
                                                   types, std::move(source), std::move(machine)));
  KVL_RETURN_IF_ERROR(w->LoadEmbeddings(pool));
  const int n_layers = w->config_.n_layers;
  w->layers_.resize(n_layers);
  for (int l = 0; l < n_layers; ++l) {
    if (progress) progress(static_cast<double>(l) / n_layers);
    KVL_RETURN_IF_ERROR(w->LoadLayer(l, pool));
  }
  if (progress) progress(1);
  return w;
}

Status ModelWeights::LoadEmbeddings(ThreadPool* pool) {
  const bool is_tied = config_.tie_word_embeddings;
  if (shard_.is_last_stage() || (shard_.is_first_stage() && is_tied)) {
    KVL_ASSIGN_OR_RETURN(lm_head_,
                         reader_.Pack({held_names_.output_head()}, types_, residents(), pool));
  }
  if (config_.biases.head && shard_.is_last_stage()) {
    KVL_ASSIGN_OR_RETURN(std::vector<float> bias, reader_.Bias(held_names_.output_head()));
    KVL_ASSIGN_OR_RETURN(lm_head_bias_, Upload(std::move(bias)));
  }
  if (shard_.is_first_stage() && !is_tied) {
    KVL_ASSIGN_OR_RETURN(embedding_,
                         AddTable(names_.embedding(), config_.vocab_size, shard_.words));
  }
  // Added once, whoever holds the word.
  if (shard_.is_first_stage() && shard_.adds_biases() &&
      config_.positions == PositionKind::kLearned) {
    KVL_ASSIGN_OR_RETURN(
        position_embedding_,
        AddTable(names_.position_embedding(), config_.max_seq_len, {0, config_.max_seq_len}));
  }
  if (!shard_.is_last_stage()) return OkStatus();
  KVL_ASSIGN_OR_RETURN(final_norm_, ReadNorm(names_.final_norm(), config_.hidden_dim,
                                             config_.norms.kind, config_.logit_scale));
  return OkStatus();
}

StatusOr<Resident<TableId>> ModelWeights::AddTable(const std::string& name, int64_t n_rows,
                                                   Range wanted) {
  const int64_t n_dims = config_.hidden_dim, first = wanted.begin;
  KVL_ASSIGN_OR_RETURN(const StoredTensor table, reader_.Table(name, n_rows, n_dims, wanted));
  KVL_ASSIGN_OR_RETURN(const TableId id,
                       residents()->AddTable({wanted.end - wanted.begin, n_dims,
                                              [table, n_dims, first](int64_t row, float* to) {
                                                table.Read((first + row) * n_dims, n_dims, to);
                                              }}));
  return Resident<TableId>(residents(), id);
}

Status ModelWeights::LoadNorms(int layer_idx) {
  LayerWeights& layer = layers_[layer_idx];
  const int whole_idx = held_names_.LayerOf(layer_idx);
  const int64_t hidden = config_.hidden_dim;
  const NormKind kind = config_.norms.kind;
  if (config_.norms.of_inputs) {
    KVL_ASSIGN_OR_RETURN(layer.attn_norm, ReadNorm(names_.attn_norm(whole_idx), hidden, kind));
  }
  if (config_.norms.of_inputs && !config_.shared_norm) {
    KVL_ASSIGN_OR_RETURN(layer.ffn_norm, ReadNorm(names_.ffn_norm(whole_idx), hidden, kind));
  }
  if (config_.norms.of_qk.has_value()) {
    KVL_RETURN_IF_ERROR(LoadQkNorms(layer_idx));
  }
  if (config_.norms.of_outputs) {
    KVL_ASSIGN_OR_RETURN(layer.attn_out_norm,
                         ReadNorm(names_.attn_out_norm(whole_idx), hidden, NormKind::kRms));
    KVL_ASSIGN_OR_RETURN(layer.ffn_out_norm,
                         ReadNorm(names_.ffn_out_norm(whole_idx), hidden, NormKind::kRms));
  }
  return OkStatus();
}

Status ModelWeights::LoadDms(int layer_idx, ThreadPool* pool) {
  LayerWeights& layer = layers_[layer_idx];
  const int whole_idx = held_names_.LayerOf(layer_idx);
  KVL_ASSIGN_OR_RETURN(layer.dms_norm.weight,
                       LoadVector(DmsNormName(whole_idx) + ".weight", config_.hidden_dim));
  Projection heads = {.tensor = DmsProjectionName(whole_idx),
                      .n_stored = whole_.n_kv_heads,
                      .n_in = config_.hidden_dim};
  for (int64_t g = shard_.kv_heads.begin; g < shard_.kv_heads.end; ++g) {
    heads.runs.push_back({config_.dms->is_per_head ? g : 0, 1});
  }
  // In F32, as decisions are made of small differences.
  KVL_ASSIGN_OR_RETURN(layer.dms, reader_.Pack({heads}, DType::kF32, residents(), pool));
  if (!reader_.source().Has(heads.tensor + ".bias")) return OkStatus();
  KVL_ASSIGN_OR_RETURN(std::vector<float> bias, reader_.Bias(heads));
  KVL_ASSIGN_OR_RETURN(layer.dms_bias, Upload(std::move(bias)));
  return OkStatus();
}

StatusOr<FloatTable> ModelWeights::LoadVector(const std::string& name, int64_t n) {
  KVL_ASSIGN_OR_RETURN(std::vector<float> values, reader_.Vector(name, n));
  return Upload(std::move(values));
}

Status ModelWeights::LoadLayer(int layer_idx, ThreadPool* pool) {
  LayerWeights& layer = layers_[layer_idx];
  KVL_RETURN_IF_ERROR(LoadNorms(layer_idx));
  if (config_.dms.has_value() && !config_.decides_in_queries()) {
    KVL_RETURN_IF_ERROR(LoadDms(layer_idx, pool));
  }
  const std::vector<Projection> qk = held_names_.qk(layer_idx);
  KVL_ASSIGN_OR_RETURN(layer.qk, reader_.Pack(qk, types_, residents(), pool));
  if (config_.biases.qkv) {
    KVL_ASSIGN_OR_RETURN(std::vector<float> bias, ReadBiases(qk));
    KVL_ASSIGN_OR_RETURN(layer.qk_bias, Upload(std::move(bias)));
  }
  if (config_.has_sink_logits) {
    const int64_t first = shard_.kv_heads.begin * whole_.gqa_group();
    KVL_ASSIGN_OR_RETURN(
        std::vector<float> of_all,
        reader_.Vector(names_.sink_logits(held_names_.LayerOf(layer_idx)), whole_.n_heads));
    KVL_ASSIGN_OR_RETURN(layer.sink_logits, Upload({of_all.begin() + first,
                                                    of_all.begin() + first + config_.n_heads}));
  }
  return config_.has_experts(layer_idx) ? LoadExperts(layer_idx, pool) : LoadMlp(layer_idx, pool);
}

Status ModelWeights::LoadMlp(int layer_idx, ThreadPool* pool) {
  LayerWeights& layer = layers_[layer_idx];
  const std::vector<Projection> mlp_in = held_names_.mlp_in(layer_idx);
  const Projection down = held_names_.mlp_out(layer_idx);
  KVL_ASSIGN_OR_RETURN(layer.mlp_in, reader_.Pack(mlp_in, types_, residents(), pool));
  KVL_ASSIGN_OR_RETURN(layer.down, reader_.Pack({down}, types_, residents(), pool));
  if (config_.mlp == MlpKind::kXielu) KVL_RETURN_IF_ERROR(LoadXielu(layer_idx));
  if (config_.biases.mlp) {
    KVL_ASSIGN_OR_RETURN(std::vector<float> of_in, ReadBiases(mlp_in));
    KVL_ASSIGN_OR_RETURN(layer.mlp_in_bias, Upload(std::move(of_in)));
    if (!shard_.adds_biases()) return OkStatus();
    KVL_ASSIGN_OR_RETURN(std::vector<float> of_down, reader_.Bias(down));
    KVL_ASSIGN_OR_RETURN(layer.down_bias, Upload(std::move(of_down)));
  }
  return OkStatus();
}

Status ModelWeights::LoadQkNorms(int layer_idx) {
  LayerWeights& layer = layers_[layer_idx];
  const QkNormConfig& norms = *config_.norms.of_qk;
  const auto load = [&](std::vector<VectorPart> parts, NormWeights* to) -> Status {
    KVL_ASSIGN_OR_RETURN(std::vector<float> wanted, reader_.Vector(parts));
    for (float& w : wanted) w += names_.norm_offset();
    KVL_ASSIGN_OR_RETURN(to->weight, Upload(std::move(wanted)));
    if (norms.kind != NormKind::kLayer) return OkStatus();
    constexpr std::string_view kWeight = "weight";
    for (VectorPart& part : parts) {
      part.name.replace(part.name.size() - kWeight.size(), kWeight.size(), "bias");
    }
    KVL_ASSIGN_OR_RETURN(std::vector<float> biases, reader_.Vector(parts));
    KVL_ASSIGN_OR_RETURN(to->bias, Upload(std::move(biases)));
    return OkStatus();
  };
  KVL_RETURN_IF_ERROR(load(held_names_.q_norm(layer_idx), &layer.q_norm));
  KVL_RETURN_IF_ERROR(load(held_names_.k_norm(layer_idx), &layer.k_norm));
  if (!norms.weighs_turned_queries) return OkStatus();
  std::vector<float> both(config_.head_dim);
  for (int i = 0; i < config_.head_dim; ++i) {
    both[i] = layer.q_norm.weight.values()[i] * layer.k_norm.weight.values()[i];
  }
  KVL_ASSIGN_OR_RETURN(layer.turned_query_weights, Upload(std::move(both)));
  return OkStatus();
}

Status ModelWeights::LoadXielu(int layer_idx) {
  XieluNumbers& xielu = layers_[layer_idx].xielu;
  if (!config_.xielu.empty()) {
    xielu = config_.xielu[layer_idx];
    return OkStatus();
  }
  const std::string prefix = names_.xielu(held_names_.LayerOf(layer_idx));
  KVL_ASSIGN_OR_RETURN(const float alpha_p, reader_.Number(prefix + ".alpha_p"));
  KVL_ASSIGN_OR_RETURN(const float alpha_n, reader_.Number(prefix + ".alpha_n"));
  KVL_ASSIGN_OR_RETURN(const float beta, reader_.Number(prefix + ".beta"));
  KVL_ASSIGN_OR_RETURN(const float eps, reader_.Number(prefix + ".eps"));
  xielu = XieluOf(alpha_p, alpha_n, beta, eps);
  return OkStatus();
}

StatusOr<NormWeights> ModelWeights::ReadNorm(const std::string& tensor, int64_t n_dims,
                                             NormKind kind, float scale) {
  NormWeights norm;
  std::vector<float> weight(n_dims, 1);
  if (config_.norms.has_weights) {
    KVL_ASSIGN_OR_RETURN(weight, reader_.Vector(tensor + ".weight", n_dims));
    for (float& w : weight) w += names_.norm_offset();
  }
  for (float& w : weight) w *= scale;
  KVL_ASSIGN_OR_RETURN(norm.weight, Upload(std::move(weight)));
  if (kind == NormKind::kLayer) {
    KVL_ASSIGN_OR_RETURN(std::vector<float> bias, reader_.Vector(tensor + ".bias", n_dims));
    for (float& b : bias) b *= scale;
    KVL_ASSIGN_OR_RETURN(norm.bias, Upload(std::move(bias)));
  }
  return norm;
}

StatusOr<std::vector<float>> ModelWeights::ReadBiases(const std::vector<Projection>& parts) {
  std::vector<float> all;
  for (const Projection& part : parts) {
    KVL_ASSIGN_OR_RETURN(const std::vector<float> bias, reader_.Bias(part));
    all.insert(all.end(), bias.begin(), bias.end());
  }
  return all;
}

StatusOr<ModelWeights::ValueBiases> ModelWeights::ReadValueBiases(int layer_idx) {
  ValueBiases biases;
  if (config_.biases.o && shard_.adds_biases()) {
    KVL_ASSIGN_OR_RETURN(biases.o, reader_.Bias(held_names_.o(layer_idx)));
  }
  if (config_.biases.qkv) {
    KVL_ASSIGN_OR_RETURN(biases.v, reader_.Bias(held_names_.v(layer_idx)));
  }
  return biases;
}

StatusOr<ValueProjection> ModelWeights::WholeValues(int layer_idx, ThreadPool* pool) {
  ValueProjection p;
  KVL_ASSIGN_OR_RETURN(ValueBiases biases, ReadValueBiases(layer_idx));
  KVL_ASSIGN_OR_RETURN(p.v, reader_.Pack({held_names_.v(layer_idx)}, types_, residents(), pool));
  KVL_ASSIGN_OR_RETURN(p.o, reader_.Pack({held_names_.o(layer_idx)}, types_, residents(), pool));
  KVL_ASSIGN_OR_RETURN(p.v_bias, Upload(std::move(biases.v)));
  KVL_ASSIGN_OR_RETURN(p.o_bias, Upload(std::move(biases.o)));
  return p;
}

WeightType ModelWeights::FoldedType(const Projection& whole) const {
  const WeightType type = reader_.TypeOf({whole}, types_);
  // A fold makes new numbers: what was rounded to few bits is not rounded so again.
  return HasBlocks(type) ? types_.dense_weights() : type;
}

StatusOr<ValueProjection> ModelWeights::FoldedValues(int layer_idx, const ModelBasis& basis,
                                                     ThreadPool* pool) {
  const ModelConfig& c = config_;
  std::vector<int64_t> v_offset = {0};  // first row of each KV head in the folded W_V
  for (int g = 0; g < basis.n_kv_heads; ++g) {
    v_offset.push_back(v_offset.back() + basis.head(layer_idx, g).rank_v);
  }
  ValueProjection p;
  KVL_ASSIGN_OR_RETURN(ValueBiases biases, ReadValueBiases(layer_idx));
  const int64_t v_rows = v_offset.back(), hidden = c.hidden_dim;
  const WeightType v_type = FoldedType(held_names_.v(layer_idx));
  KVL_ASSIGN_OR_RETURN(p.v, Weight::Create(residents(), v_rows, hidden, v_type));
  if (KeepsOutputs(basis)) {
    KVL_ASSIGN_OR_RETURN(p.o, reader_.Pack({held_names_.o(layer_idx)}, types_, residents(), pool));
  } else {
    KVL_ASSIGN_OR_RETURN(p.o, Weight::Create(residents(), hidden, v_rows * c.gqa_group(),
                                             FoldedType(held_names_.o(layer_idx))));
  }
  KVL_RETURN_IF_ERROR(FoldValueRows(layer_idx, basis, v_offset, pool, &p, &biases));
  KVL_RETURN_IF_ERROR(FoldOutputColumns(layer_idx, basis, v_offset, pool, &p, &biases));
  KVL_ASSIGN_OR_RETURN(p.v_bias, Upload(std::move(biases.v)));
  KVL_ASSIGN_OR_RETURN(p.o_bias, Upload(std::move(biases.o)));
  return p;
}

StatusOr<std::shared_ptr<const ValueProjection>> ModelWeights::FoldValues(int layer_idx,
                                                                          const ModelBasis* basis,
                                                                          ThreadPool* pool) {
  const bool is_whole = basis == nullptr || !MapsValues(*basis, layer_idx);
  projections_.resize(config_.n_layers);
  auto& held = projections_[layer_idx];
  std::erase_if(held, [](const auto& p) { return p.second.expired(); });
  const uint64_t key = is_whole ? 0 : HashOfValueMaps(*basis, layer_idx);
  if (const auto found = held.find(key); found != held.end()) return found->second.lock();
  KVL_ASSIGN_OR_RETURN(ValueProjection p, is_whole ? WholeValues(layer_idx, pool)
                                                   : FoldedValues(layer_idx, *basis, pool));
  const auto shared = std::make_shared<const ValueProjection>(std::move(p));
  held[key] = shared;
  return shared;
}

Status ModelWeights::FoldValueRows(int layer_idx, const ModelBasis& basis,
                                   const std::vector<int64_t>& v_offset, ThreadPool* pool,
                                   ValueProjection* p, ValueBiases* biases) {
  const int64_t hidden = config_.hidden_dim, d = basis.head_dim, v_rows = v_offset.back();
  // Rows of the heads that share latents are one.
  const int n = HeadsPerLatent(basis.keys);
  const auto first_head = [n](int g) { return g / n * n; };
  const auto rank = [&](int g) { return v_offset[g + 1] - v_offset[g]; };
  const auto value_basis = [&](int g) {
    return ConstMap(basis.head(layer_idx, g).value_basis.data(), n * d, rank(g));
  };
  if (config_.biases.qkv || HasValueOffset(basis, layer_idx)) {
    biases->v.resize(basis.n_kv_heads * d);
    for (int g = 0; g < basis.n_kv_heads; ++g) {
      const std::vector<float>& offset = basis.head(layer_idx, g).value_offset;
      if (offset.empty()) continue;
      Eigen::Map<RowMatrix>(&biases->v[g * d], 1, d) -= ConstMap(offset.data(), 1, d);
    }
    std::vector<float> folded(v_rows);
    for (int g = 0; g < basis.n_kv_heads; ++g) {
      Eigen::Map<RowMatrix>(&folded[v_offset[g]], 1, rank(g)) =
          ConstMap(&biases->v[first_head(g) * d], 1, n * d) * value_basis(g);
    }
    biases->v = std::move(folded);
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<float> w_v, reader_.Matrix(held_names_.v(layer_idx)));
  std::vector<float> folded(v_rows * hidden);
  pool->Run([&](int worker_id) {
    const Range columns = ShareOf(hidden, 64, worker_id, pool->n_workers());
    const int64_t n_columns = columns.end - columns.begin;
    if (n_columns == 0) return;
    for (int g = 0; g < basis.n_kv_heads; ++g) {
      const ConstMap rows(&w_v[first_head(g) * d * hidden], n * d, hidden);
      Eigen::Map<RowMatrix>(&folded[v_offset[g] * hidden], rank(g), hidden)
          .middleCols(columns.begin, n_columns)
          .noalias() = value_basis(g).transpose() * rows.middleCols(columns.begin, n_columns);
    }
  });
  pool->Run([&](int worker_id) {
    const Range rows = ShareOf(v_rows, 64, worker_id, pool->n_workers());
    if (rows.begin == rows.end) return;
    WriteFloats(rows.begin, rows.end - rows.begin, &folded[rows.begin * hidden], &p->v);
  });
  return OkStatus();
}

Status ModelWeights::FoldOutputColumns(int layer_idx, const ModelBasis& basis,
                                       const std::vector<int64_t>& v_offset, ThreadPool* pool,
                                       ValueProjection* p, ValueBiases* biases) {
  const int64_t d = config_.head_dim, group = config_.gqa_group();
  const int64_t o_full = config_.n_heads * d, o_columns = p->o.n_in();
  const bool is_folded = !KeepsOutputs(basis);
  if (!is_folded && !HasValueOffset(basis, layer_idx)) return OkStatus();
  const int n_joined = HeadsPerMap(basis.keys);
  if (HasValueOffset(basis, layer_idx)) biases->o.resize(config_.hidden_dim);
  return reader_.ForRowGroups(
      held_names_.o(layer_idx), pool, [&](int64_t first, int64_t n, const float* rows) {
        std::vector<float> folded(is_folded ? n * o_columns : 0);
        const ConstMap from(rows, n, o_full);
        Eigen::Map<RowMatrix> to(folded.data(), is_folded ? n : 0, o_columns);
        // Column by column: Eigen's order of sums along rows hangs on how many columns there are,
        // and a column is to have the same bits at every rank.
        Eigen::MatrixXf of_head;
        for (int h = 0; h < config_.n_heads; ++h) {
          const int g = h / static_cast<int>(group);
          if (is_folded) {
            const int64_t rank = v_offset[g + 1] - v_offset[g];
            of_head.noalias() =
                from.middleCols(h * d, d) *
                ConstMap(basis.head(layer_idx, g).output_basis.data(), rank, d).transpose();
            to.middleCols(v_offset[g] * group + (h % group) * rank, rank) = of_head;
          }
          const std::vector<float>& offset = basis.head(layer_idx, g / n_joined).value_offset;
          if (offset.empty()) continue;
          Eigen::Map<RowMatrix>(&biases->o[first], n, 1) +=
              from.middleCols(h * d, d) * ConstMap(offset.data() + g % n_joined * d, d, 1);
        }
        if (is_folded) WriteFloats(first, n, folded.data(), &p->o);
      });
}

StatusOr<std::vector<float>> ModelWeights::QkMatrix(int layer_idx) {
  return Stacked(names_.qk(layer_idx));
}

StatusOr<std::vector<float>> ModelWeights::Stacked(const std::vector<Projection>& parts) {
  std::vector<float> w;
  for (const Projection& part : parts) {
    KVL_ASSIGN_OR_RETURN(const std::vector<float> rows, reader_.Matrix(part));
    w.insert(w.end(), rows.begin(), rows.end());
  }
  return w;
}

EmbedPlan ModelWeights::PlanEmbedding(std::span<const TokenPlace> tokens,
                                      const ObjectPlace& out) const {
  return {.tokens = tokens,
          .tied_words = embedding_.id().is_null() ? lm_head_.id() : WeightId(),
          .words = embedding_.id(),
          .held_words = shard_.words,
          .scale = config_.embedding_scale,
          .positions = position_embedding_.id(),
          .n_dims = config_.hidden_dim,
          .out = out};
}

}  // namespace kvlathe
