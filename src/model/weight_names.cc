#include "model/weight_names.h"

#include <string_view>

namespace kvlathe {
namespace {

constexpr const char* kGpt2Prefix = "transformer.";

}  // namespace

int64_t Projection::n_out() const {
  int64_t n = 0;
  for (const Run& run : runs) n += run.n;
  return n;
}

WeightNames::WeightNames(const ModelConfig& config, const TensorSource& source)
    : config_(config), has_two_norms_(config.parallel_block && !config.shared_norm) {
  switch (config_.layout) {
    case WeightLayout::kLlama:
    case WeightLayout::kPhi3:
      outside_ = "model.";
      layers_ = "model.layers.";
      return;
    case WeightLayout::kFalcon:
      outside_ = "transformer.";
      break;
    case WeightLayout::kGpt2:
      outside_ = source.Has("wte.weight") ? "" : kGpt2Prefix;
      break;
  }
  layers_ = outside_ + "h.";
}

std::string WeightNames::embedding() const {
  switch (config_.layout) {
    case WeightLayout::kGpt2:
      return outside_ + "wte.weight";
    case WeightLayout::kFalcon:
      return outside_ + "word_embeddings.weight";
    default:
      return outside_ + "embed_tokens.weight";
  }
}

std::string WeightNames::position_embedding() const { return outside_ + "wpe.weight"; }

Projection WeightNames::output_head() const {
  std::string tensor = "lm_head";
  if (config_.tie_word_embeddings) {
    tensor = embedding();
    tensor.resize(tensor.size() - std::string_view(".weight").size());
  }
  return {tensor, config_.vocab_size, config_.hidden_dim, false, {{0, config_.vocab_size}}};
}

std::string WeightNames::final_norm() const {
  const bool is_llama_like =
      config_.layout == WeightLayout::kLlama || config_.layout == WeightLayout::kPhi3;
  return outside_ + (is_llama_like ? "norm" : "ln_f");
}

std::string WeightNames::attn_norm(int layer_idx) const {
  if (config_.layout == WeightLayout::kGpt2) return Layer(layer_idx, "ln_1");
  return Layer(layer_idx, has_two_norms_ ? "ln_attn" : "input_layernorm");
}

std::string WeightNames::ffn_norm(int layer_idx) const {
  if (config_.layout == WeightLayout::kGpt2) return Layer(layer_idx, "ln_2");
  return Layer(layer_idx, has_two_norms_ ? "ln_mlp" : "post_attention_layernorm");
}

std::string WeightNames::Layer(int layer_idx, const char* suffix) const {
  return fmt::format("{}{}.{}", layers_, layer_idx, suffix);
}

Projection WeightNames::Whole(int layer_idx, const char* suffix, int64_t n_out,
                              int64_t n_in) const {
  return {
      Layer(layer_idx, suffix), n_out, n_in, config_.layout == WeightLayout::kGpt2, {{0, n_out}}};
}

Projection WeightNames::FusedQkv(int layer_idx, Role role) const {
  const int64_t d = config_.head_dim, n_kv = config_.n_kv_heads, group = config_.gqa_group();
  const int64_t qk_rows = (config_.n_heads + n_kv) * d, n_stored = qk_rows + n_kv * d;
  Projection p;
  if (config_.layout != WeightLayout::kFalcon) {
    const bool is_gpt2 = config_.layout == WeightLayout::kGpt2;
    p = Whole(layer_idx, is_gpt2 ? "attn.c_attn" : "self_attn.qkv_proj", n_stored,
              config_.hidden_dim);
    p.runs = role == Role::kQk ? std::vector<Projection::Run>{{0, qk_rows}}
                               : std::vector<Projection::Run>{{qk_rows, n_kv * d}};
    return p;
  }
  // Per KV head its query heads, its key, its value.
  p = Whole(layer_idx, "self_attention.query_key_value", n_stored, config_.hidden_dim);
  p.runs.clear();
  const int64_t stride = (group + 2) * d;
  if (role == Role::kValue) {
    for (int64_t g = 0; g < n_kv; ++g) p.runs.push_back({g * stride + (group + 1) * d, d});
    return p;
  }
  for (int64_t g = 0; g < n_kv; ++g) p.runs.push_back({g * stride, group * d});
  for (int64_t g = 0; g < n_kv; ++g) p.runs.push_back({g * stride + group * d, d});
  return p;
}

std::vector<Projection> WeightNames::qk(int layer_idx) const {
  if (config_.layout != WeightLayout::kLlama) return {FusedQkv(layer_idx, Role::kQk)};
  const int64_t d = config_.head_dim, hidden = config_.hidden_dim;
  return {Whole(layer_idx, "self_attn.q_proj", config_.n_heads * d, hidden),
          Whole(layer_idx, "self_attn.k_proj", config_.n_kv_heads * d, hidden)};
}

Projection WeightNames::v(int layer_idx) const {
  if (config_.layout != WeightLayout::kLlama) return FusedQkv(layer_idx, Role::kValue);
  return Whole(layer_idx, "self_attn.v_proj", int64_t{config_.n_kv_heads} * config_.head_dim,
               config_.hidden_dim);
}

Projection WeightNames::o(int layer_idx) const {
  const int64_t n_in = int64_t{config_.n_heads} * config_.head_dim;
  const char* suffix = config_.layout == WeightLayout::kGpt2     ? "attn.c_proj"
                       : config_.layout == WeightLayout::kFalcon ? "self_attention.dense"
                                                                 : "self_attn.o_proj";
  return Whole(layer_idx, suffix, config_.hidden_dim, n_in);
}

std::vector<Projection> WeightNames::mlp_in(int layer_idx) const {
  const int64_t ffn = config_.ffn_dim, hidden = config_.hidden_dim;
  switch (config_.layout) {
    case WeightLayout::kLlama:
      return {Whole(layer_idx, "mlp.gate_proj", ffn, hidden),
              Whole(layer_idx, "mlp.up_proj", ffn, hidden)};
    case WeightLayout::kPhi3:
      return {Whole(layer_idx, "mlp.gate_up_proj", 2 * ffn, hidden)};
    case WeightLayout::kGpt2:
      return {Whole(layer_idx, "mlp.c_fc", ffn, hidden)};
    case WeightLayout::kFalcon:
      return {Whole(layer_idx, "mlp.dense_h_to_4h", ffn, hidden)};
  }
  return {};
}

Projection WeightNames::mlp_out(int layer_idx) const {
  const char* suffix = config_.layout == WeightLayout::kGpt2     ? "mlp.c_proj"
                       : config_.layout == WeightLayout::kFalcon ? "mlp.dense_4h_to_h"
                                                                 : "mlp.down_proj";
  return Whole(layer_idx, suffix, config_.hidden_dim, config_.ffn_dim);
}

}  // namespace kvlathe
