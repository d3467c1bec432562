#include "model/weights.h"

#include <Eigen/Core>
#include <algorithm>
#include <cstring>
#include <iterator>

namespace kvlathe {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;

constexpr const char* kValueWeight = "self_attn.v_proj.weight";
constexpr const char* kOutputWeight = "self_attn.o_proj.weight";

template <typename Bits>
bool AllFinite(const Bits* bits, int64_t n, Bits exponent) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= (bits[i] & exponent) != exponent;
  return finite;
}

Status CheckFinite(const std::string& name, const TensorView& tensor) {
  const int64_t n = tensor.n_elements();
  bool finite = true;
  switch (tensor.dtype) {
    case DType::kBf16:
      finite = AllFinite<uint16_t>(reinterpret_cast<const uint16_t*>(tensor.data), n, 0x7f80);
      break;
    case DType::kF16:
      finite = AllFinite<uint16_t>(reinterpret_cast<const uint16_t*>(tensor.data), n, 0x7c00);
      break;
    case DType::kF32:
      finite = AllFinite<uint32_t>(reinterpret_cast<const uint32_t*>(tensor.data), n, 0x7f800000u);
      break;
  }
  if (finite) return OkStatus();
  return Error(
      StatusCode::kDataLoss,
      "tensor '{}' holds values that are not finite (NaN or infinity); download the model again",
      name);
}

std::string LayerName(int layer_idx, const char* suffix) {
  return fmt::format("model.layers.{}.{}", layer_idx, suffix);
}

int RankV(const ModelBasis* basis, const ModelConfig& config, int layer_idx, int kv_head_idx) {
  return basis == nullptr ? config.head_dim : basis->head(layer_idx, kv_head_idx).rank_v;
}

}  // namespace

StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(const ModelConfig& config,
                                                           DType compute_type,
                                                           std::unique_ptr<TensorSource> source,
                                                           ThreadPool* pool,
                                                           const LoadProgress& progress) {
  std::unique_ptr<ModelWeights> w(new ModelWeights);
  w->config_ = config;
  w->compute_type_ = compute_type;
  w->source_ = std::move(source);
  const int64_t vocab = config.vocab_size, hidden = config.hidden_dim;
  KVL_ASSIGN_OR_RETURN(w->lm_head_, PackedMatrix::Create(vocab, hidden, compute_type));
  const char* kEmbedding = "model.embed_tokens.weight";
  const char* kHead = "lm_head.weight";
  KVL_RETURN_IF_ERROR(w->PackTensor(config.tie_word_embeddings ? kEmbedding : kHead, vocab, hidden,
                                    0, &w->lm_head_, pool));
  if (!config.tie_word_embeddings) {
    KVL_ASSIGN_OR_RETURN(w->embedding_, w->source_->Get(kEmbedding, {vocab, hidden}));
    KVL_RETURN_IF_ERROR(CheckFinite(kEmbedding, w->embedding_));
    if (w->source_->is_mapped()) w->source_->Done(w->embedding_);
  }
  KVL_ASSIGN_OR_RETURN(w->final_norm_, w->ReadVector("model.norm.weight", hidden));
  w->layers_.resize(config.n_layers);
  for (int l = 0; l < config.n_layers; ++l) {
    if (progress) progress(static_cast<double>(l) / config.n_layers);
    KVL_RETURN_IF_ERROR(w->LoadLayer(l, pool));
  }
  if (progress) progress(1);
  return w;
}

Status ModelWeights::LoadLayer(int layer_idx, ThreadPool* pool) {
  const ModelConfig& c = config_;
  LayerWeights& layer = layers_[layer_idx];
  const auto name = [&](const char* suffix) { return LayerName(layer_idx, suffix); };
  const int64_t hidden = c.hidden_dim, ffn = c.ffn_dim;
  const int64_t q_rows = int64_t{c.n_heads} * c.head_dim,
                k_rows = int64_t{c.n_kv_heads} * c.head_dim;

  KVL_ASSIGN_OR_RETURN(layer.attn_norm, ReadVector(name("input_layernorm.weight"), hidden));
  KVL_ASSIGN_OR_RETURN(layer.ffn_norm, ReadVector(name("post_attention_layernorm.weight"), hidden));

  KVL_ASSIGN_OR_RETURN(layer.qk, PackedMatrix::Create(q_rows + k_rows, hidden, compute_type_));
  KVL_RETURN_IF_ERROR(
      PackTensor(name("self_attn.q_proj.weight"), q_rows, hidden, 0, &layer.qk, pool));
  KVL_RETURN_IF_ERROR(
      PackTensor(name("self_attn.k_proj.weight"), k_rows, hidden, q_rows, &layer.qk, pool));
  if (c.qkv_bias) {
    KVL_ASSIGN_OR_RETURN(layer.qk_bias, ReadVector(name("self_attn.q_proj.bias"), q_rows));
    KVL_ASSIGN_OR_RETURN(const std::vector<float> k_bias,
                         ReadVector(name("self_attn.k_proj.bias"), k_rows));
    layer.qk_bias.insert(layer.qk_bias.end(), k_bias.begin(), k_bias.end());
  }

  KVL_ASSIGN_OR_RETURN(layer.gate_up, PackedMatrix::Create(2 * ffn, hidden, compute_type_));
  KVL_RETURN_IF_ERROR(
      PackTensor(name("mlp.gate_proj.weight"), ffn, hidden, 0, &layer.gate_up, pool));
  KVL_RETURN_IF_ERROR(
      PackTensor(name("mlp.up_proj.weight"), ffn, hidden, ffn, &layer.gate_up, pool));
  KVL_ASSIGN_OR_RETURN(layer.down, PackedMatrix::Create(hidden, ffn, compute_type_));
  KVL_RETURN_IF_ERROR(PackTensor(name("mlp.down_proj.weight"), hidden, ffn, 0, &layer.down, pool));
  if (c.mlp_bias) {
    KVL_ASSIGN_OR_RETURN(layer.gate_up_bias, ReadVector(name("mlp.gate_proj.bias"), ffn));
    KVL_ASSIGN_OR_RETURN(const std::vector<float> up_bias,
                         ReadVector(name("mlp.up_proj.bias"), ffn));
    layer.gate_up_bias.insert(layer.gate_up_bias.end(), up_bias.begin(), up_bias.end());
    KVL_ASSIGN_OR_RETURN(layer.down_bias, ReadVector(name("mlp.down_proj.bias"), hidden));
  }
  return OkStatus();
}

Status ModelWeights::PackTensor(const std::string& name, int64_t n_out, int64_t n_in,
                                int64_t first_out, PackedMatrix* matrix, ThreadPool* pool) {
  KVL_ASSIGN_OR_RETURN(const TensorView tensor, source_->Get(name, {n_out, n_in}));
  KVL_RETURN_IF_ERROR(CheckFinite(name, tensor));
  const int64_t row_bytes = n_in * SizeOf(tensor.dtype);
  // Workers may share no group of 64 packed rows.
  const bool aligned = first_out % 64 == 0;
  pool->Run([&](int worker_id) {
    const Range rows = aligned ? ShareOf(n_out, 64, worker_id, pool->n_workers())
                               : Range{0, worker_id == 0 ? n_out : 0};
    if (rows.begin == rows.end) return;
    matrix->PackRows(first_out + rows.begin, rows.end - rows.begin, tensor.dtype,
                     tensor.data + rows.begin * row_bytes, n_in);
  });
  source_->Done(tensor);
  return OkStatus();
}

StatusOr<std::vector<float>> ModelWeights::ReadMatrix(const std::string& name, int64_t n_rows,
                                                      int64_t n_columns) {
  KVL_ASSIGN_OR_RETURN(const TensorView tensor, n_columns == 0
                                                    ? source_->Get(name, {n_rows})
                                                    : source_->Get(name, {n_rows, n_columns}));
  KVL_RETURN_IF_ERROR(CheckFinite(name, tensor));
  std::vector<float> values(tensor.n_elements());
  ConvertToFloat(tensor.dtype, tensor.data, tensor.n_elements(), values.data());
  source_->Done(tensor);
  return values;
}

StatusOr<std::vector<float>> ModelWeights::ReadVector(const std::string& name, int64_t n) {
  return ReadMatrix(name, n, 0);
}

StatusOr<ValueProjection> ModelWeights::FoldValues(int layer_idx, const ModelBasis* basis,
                                                   ThreadPool* pool) {
  const ModelConfig& c = config_;
  const int64_t hidden = c.hidden_dim, d = c.head_dim, group = c.gqa_group();
  std::vector<int64_t> v_offset = {0};  // first row of each KV head in the folded W_V
  for (int g = 0; g < c.n_kv_heads; ++g) {
    v_offset.push_back(v_offset.back() + RankV(basis, c, layer_idx, g));
  }
  const int64_t v_rows = v_offset.back(), o_columns = v_rows * group;

  ValueProjection p;
  KVL_ASSIGN_OR_RETURN(p.v, PackedMatrix::Create(v_rows, hidden, compute_type_));
  KVL_ASSIGN_OR_RETURN(p.o, PackedMatrix::Create(hidden, o_columns, compute_type_));
  const int64_t v_full = c.n_kv_heads * d, o_full = c.n_heads * d;
  if (c.o_bias) {
    KVL_ASSIGN_OR_RETURN(p.o_bias,
                         ReadVector(LayerName(layer_idx, "self_attn.o_proj.bias"), hidden));
  }
  if (c.qkv_bias) {
    KVL_ASSIGN_OR_RETURN(p.v_bias,
                         ReadVector(LayerName(layer_idx, "self_attn.v_proj.bias"), v_full));
  }
  if (basis == nullptr) {
    KVL_RETURN_IF_ERROR(
        PackTensor(LayerName(layer_idx, kValueWeight), v_full, hidden, 0, &p.v, pool));
    KVL_RETURN_IF_ERROR(
        PackTensor(LayerName(layer_idx, kOutputWeight), hidden, o_full, 0, &p.o, pool));
    return p;
  }

  KVL_RETURN_IF_ERROR(FoldValueRows(layer_idx, *basis, v_offset, pool, &p));
  KVL_RETURN_IF_ERROR(FoldOutputColumns(layer_idx, *basis, v_offset, pool, &p));
  return p;
}

Status ModelWeights::FoldValueRows(int layer_idx, const ModelBasis& basis,
                                   const std::vector<int64_t>& v_offset, ThreadPool* pool,
                                   ValueProjection* p) {
  const int64_t hidden = config_.hidden_dim, d = config_.head_dim, v_rows = v_offset.back();
  const auto rank = [&](int g) { return v_offset[g + 1] - v_offset[g]; };
  const auto value_basis = [&](int g) {
    return ConstMap(basis.head(layer_idx, g).value_basis.data(), d, rank(g));
  };
  if (config_.qkv_bias) {
    std::vector<float> folded(v_rows);
    for (int g = 0; g < config_.n_kv_heads; ++g) {
      Eigen::Map<RowMatrix>(&folded[v_offset[g]], 1, rank(g)) =
          ConstMap(&p->v_bias[g * d], 1, d) * value_basis(g);
    }
    p->v_bias = std::move(folded);
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<float> w_v, ReadMatrix(LayerName(layer_idx, kValueWeight),
                                                                config_.n_kv_heads * d, hidden));
  std::vector<float> folded(v_rows * hidden);
  pool->Run([&](int worker_id) {
    const Range columns = ShareOf(hidden, 64, worker_id, pool->n_workers());
    const int64_t n = columns.end - columns.begin;
    if (n == 0) return;
    for (int g = 0; g < config_.n_kv_heads; ++g) {
      Eigen::Map<RowMatrix>(&folded[v_offset[g] * hidden], rank(g), hidden)
          .middleCols(columns.begin, n)
          .noalias() = value_basis(g).transpose() *
                       ConstMap(&w_v[g * d * hidden], d, hidden).middleCols(columns.begin, n);
    }
  });
  pool->Run([&](int worker_id) {
    const Range rows = ShareOf(v_rows, 64, worker_id, pool->n_workers());
    if (rows.begin == rows.end) return;
    p->v.PackRows(rows.begin, rows.end - rows.begin, DType::kF32, &folded[rows.begin * hidden],
                  hidden);
  });
  return OkStatus();
}

Status ModelWeights::FoldOutputColumns(int layer_idx, const ModelBasis& basis,
                                       const std::vector<int64_t>& v_offset, ThreadPool* pool,
                                       ValueProjection* p) {
  const int64_t hidden = config_.hidden_dim, d = config_.head_dim, group = config_.gqa_group();
  const int64_t o_full = config_.n_heads * d, o_columns = v_offset.back() * group;
  const std::string name = LayerName(layer_idx, kOutputWeight);
  KVL_ASSIGN_OR_RETURN(const TensorView w_o, source_->Get(name, {hidden, o_full}));
  KVL_RETURN_IF_ERROR(CheckFinite(name, w_o));
  pool->Run([&](int worker_id) {
    const Range rows = ShareOf(hidden, 64, worker_id, pool->n_workers());
    std::vector<float> source_rows(64 * o_full), folded_rows(64 * o_columns);
    for (int64_t first = rows.begin; first < rows.end; first += 64) {
      const int64_t n = std::min<int64_t>(64, rows.end - first);
      ConvertToFloat(w_o.dtype, w_o.data + first * o_full * SizeOf(w_o.dtype), n * o_full,
                     source_rows.data());
      const ConstMap from(source_rows.data(), n, o_full);
      Eigen::Map<RowMatrix> to(folded_rows.data(), n, o_columns);
      for (int h = 0; h < config_.n_heads; ++h) {
        const int g = h / static_cast<int>(group);
        const int64_t rank = v_offset[g + 1] - v_offset[g];
        to.middleCols(v_offset[g] * group + (h % group) * rank, rank).noalias() =
            from.middleCols(h * d, d) *
            ConstMap(basis.head(layer_idx, g).output_basis.data(), rank, d).transpose();
      }
      p->o.PackRows(first, n, DType::kF32, folded_rows.data(), o_columns);
    }
  });
  source_->Done(w_o);
  return OkStatus();
}

StatusOr<std::vector<std::vector<double>>> ModelWeights::ValueGrams(int layer_idx) {
  const int64_t d = config_.head_dim, hidden = config_.hidden_dim;
  KVL_ASSIGN_OR_RETURN(const std::vector<float> w_v, ReadMatrix(LayerName(layer_idx, kValueWeight),
                                                                config_.n_kv_heads * d, hidden));
  std::vector<std::vector<double>> grams(config_.n_kv_heads);
  for (int g = 0; g < config_.n_kv_heads; ++g) {
    grams[g].resize(d * d);
    // Rows of the stored matrix are output channels: W_V^T W_V = S S^T for S [head_dim,
    // hidden_dim].
    const Eigen::MatrixXd s = ConstMap(&w_v[g * d * hidden], d, hidden).cast<double>();
    Eigen::Map<Eigen::MatrixXd>(grams[g].data(), d, d).noalias() = s * s.transpose();
  }
  return grams;
}

StatusOr<std::vector<std::vector<double>>> ModelWeights::AllValueGrams() {
  std::vector<std::vector<double>> all;
  for (int l = 0; l < config_.n_layers; ++l) {
    KVL_ASSIGN_OR_RETURN(std::vector<std::vector<double>> grams, ValueGrams(l));
    std::move(grams.begin(), grams.end(), std::back_inserter(all));
  }
  return all;
}

void ModelWeights::Embed(int32_t token_id, float* row) const {
  if (embedding_.data == nullptr) {
    lm_head_.UnpackRow(token_id, row);
    return;
  }
  const int64_t row_bytes = config_.hidden_dim * SizeOf(embedding_.dtype);
  ConvertToFloat(embedding_.dtype, embedding_.data + token_id * row_bytes, config_.hidden_dim, row);
}

}  // namespace kvlathe
