// The parameters of a Decoder: their names in each family's files, and how they are drawn.
#include <cmath>
#include <cstdlib>

#include "model/rope.h"
#include "training/retrofit/decoder.h"

namespace kvlathe {

using torch::Tensor;

int LayerOf(std::string_view name) {
  for (const std::string_view prefix : {"model.layers.", "transformer.h."}) {
    if (name.starts_with(prefix)) return std::atoi(name.data() + prefix.size());
  }
  return -1;
}

std::string FirstNotFinite(const Decoder& decoder) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : decoder.parameters()) {
    // No sum of finite numbers of F32 overflows in F64.
    if (!std::isfinite(parameter.sum(torch::kDouble).item<double>())) return name;
  }
  return "";
}

bool IsOfAttention(std::string_view name) {
  return name.find(".self_attn.") != name.npos || name.find(".attn.") != name.npos;
}

bool IsOfDmsHead(std::string_view name) {
  return name.find(".self_attn.dms_proj_alpha") != name.npos;
}

void Decoder::AddDmsHeads() {
  for (auto& [name, parameter] : parameters_) parameter.set_requires_grad(false);
  const auto options = parameters_.front().second.options().requires_grad(false);
  const int64_t n_heads = config_.n_kv_heads, hidden = config_.hidden_dim;
  for (int i = 0; i < config_.n_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.self_attn.dms_proj_alpha", i);
    const DmsHead head{torch::zeros({n_heads, hidden}, options).set_requires_grad(true),
                       torch::zeros({n_heads}, options).set_requires_grad(true),
                       torch::ones({hidden}, options)};
    parameters_.emplace_back(at + ".weight", head.weight);
    parameters_.emplace_back(at + ".bias", head.bias);
    parameters_.emplace_back(at + "_norm.weight", head.norm);
    dms_heads_.push_back(head);
  }
}

Decoder WithKvHeads(const Decoder& decoder, int n_kv_heads) {
  ModelConfig config = decoder.config();
  const int64_t n_from = config.n_kv_heads, n_to = n_kv_heads, head_dim = config.head_dim;
  config.n_kv_heads = n_kv_heads;
  Decoder changed(config, /*seed=*/0, torch::kFloat, decoder.device());
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < decoder.parameters().size(); ++i) {
    const auto& [name, from] = decoder.parameters()[i];
    const Tensor to = changed.parameters()[i].second;
    if (to.sizes() == from.sizes()) {
      to.copy_(from);
    } else if (n_to < n_from) {
      to.copy_(from.view({n_to, n_from / n_to, head_dim, -1}).mean(1).view_as(to));
    } else {
      to.copy_(from.view({n_from, 1, head_dim, -1})
                   .expand({n_from, n_to / n_from, head_dim, from.size(1)})
                   .reshape(to.sizes()));
    }
  }
  return changed;
}

namespace {

// The rows of the channel that decides in W_Q or W_K, one for each head.
Tensor ChannelRows(const Tensor& w, const DmcConfig& config, int64_t head_dim) {
  return w.view({-1, head_dim, w.size(1)}).select(1, config.is_last ? head_dim - 1 : 0);
}

}  // namespace

std::vector<Tensor> DecidingRows(const Decoder& decoder) {
  const torch::NoGradGuard no_grad;
  const ModelConfig& config = decoder.config();
  std::vector<Tensor> rows;
  for (const auto& [name, w] : decoder.parameters()) {
    if (!name.ends_with("k_proj.weight")) continue;
    // Detached: weights may be read from a file, in place, once the views are there.
    rows.push_back(ChannelRows(w.detach(), *config.dmc, config.head_dim));
  }
  return rows;
}

void FoldVariant(const DmcVariant& variant, const DmcConfig& config, Decoder* decoder) {
  const torch::NoGradGuard no_grad;
  const int64_t head_dim = decoder->config().head_dim;
  for (const auto& [name, parameter] : decoder->parameters()) {
    const bool is_query = name.ends_with("q_proj.weight");
    if (!is_query && !name.ends_with("k_proj.weight")) continue;
    const Tensor rows = ChannelRows(parameter, config, head_dim);
    if (variant.shares_decisions) rows.copy_(rows.mean(0, true).expand_as(rows));
    if (variant.uniform_weights && is_query) rows.zero_();
  }
}

class Decoder::Initialiser {
 public:
  Initialiser(Decoder* decoder, uint64_t seed, torch::ScalarType parameter_type)
      : d_(*decoder),
        c_(decoder->config_),
        type_(parameter_type),
        generator_(at::detail::createCPUGenerator(seed)) {}

  void DrawLlama() {
    const int64_t hidden = c_.hidden_dim, ffn = c_.ffn_dim;
    const int64_t q_dim = c_.n_heads * c_.head_dim, kv_dim = c_.n_kv_heads * c_.head_dim;
    d_.embedding_ = Normal("model.embed_tokens.weight", c_.vocab_size, hidden);
    for (int i = 0; i < c_.n_layers; ++i) {
      const std::string at = fmt::format("model.layers.{}.", i);
      Layer layer;
      layer.attn_norm.weight = Ones(at + "input_layernorm.weight", hidden);
      layer.qkv.parts = {Normal(at + "self_attn.q_proj.weight", q_dim, hidden),
                         Normal(at + "self_attn.k_proj.weight", kv_dim, hidden),
                         Normal(at + "self_attn.v_proj.weight", kv_dim, hidden)};
      layer.o.parts = {Normal(at + "self_attn.o_proj.weight", hidden, q_dim, kToStream)};
      layer.ffn_norm.weight = Ones(at + "post_attention_layernorm.weight", hidden);
      layer.mlp_in.parts = {Normal(at + "mlp.gate_proj.weight", ffn, hidden),
                            Normal(at + "mlp.up_proj.weight", ffn, hidden)};
      layer.mlp_out.parts = {Normal(at + "mlp.down_proj.weight", hidden, ffn, kToStream)};
      d_.layers_.push_back(layer);
    }
    d_.final_norm_.weight = Ones("model.norm.weight", hidden);
    DrawHead();

    const std::vector<double> frequencies = RopeFrequencies(c_.attention.of(0).rope, c_.head_dim);
    const Tensor angles = torch::outer(torch::arange(c_.max_seq_len, torch::kDouble),
                                       torch::tensor(frequencies, torch::kDouble));
    d_.cos_ = angles.cos().to(d_.device_, type_);
    d_.sin_ = angles.sin().to(d_.device_, type_);
  }

  void DrawGpt2() {
    const int64_t hidden = c_.hidden_dim, ffn = c_.ffn_dim;
    d_.embedding_ = Normal("transformer.wte.weight", c_.vocab_size, hidden);
    d_.position_embedding_ = Normal("transformer.wpe.weight", c_.max_seq_len, hidden);
    for (int i = 0; i < c_.n_layers; ++i) {
      const std::string at = fmt::format("transformer.h.{}.", i);
      Layer layer;
      layer.attn_norm = LayerNorm(at + "ln_1");
      layer.qkv = Conv1d(at + "attn.c_attn", hidden, 3 * hidden);
      layer.o = Conv1d(at + "attn.c_proj", hidden, hidden, kToStream);
      layer.ffn_norm = LayerNorm(at + "ln_2");
      layer.mlp_in = Conv1d(at + "mlp.c_fc", hidden, ffn);
      layer.mlp_out = Conv1d(at + "mlp.c_proj", ffn, hidden, kToStream);
      d_.layers_.push_back(layer);
    }
    d_.final_norm_ = LayerNorm("transformer.ln_f");
    DrawHead();
  }

 private:
  // Whether a product is added to the residual stream, whose variance grows with every layer.
  static constexpr bool kToStream = true;

  Tensor Add(const std::string& name, const Tensor& tensor) {
    Tensor parameter = tensor.to(d_.device_, type_).detach().set_requires_grad(true);
    d_.parameters_.emplace_back(name, parameter);
    return parameter;
  }
  Tensor Normal(const std::string& name, int64_t n_rows, int64_t n_columns,
                bool goes_to_stream = false) {
    const double deviation = goes_to_stream ? 0.02 / std::sqrt(2.0 * c_.n_layers) : 0.02;
    return Add(name, torch::randn({n_rows, n_columns}, generator_, torch::kFloat).mul_(deviation));
  }
  Tensor Ones(const std::string& name, int64_t n) { return Add(name, torch::ones({n})); }
  Tensor Zeros(const std::string& name, int64_t n) { return Add(name, torch::zeros({n})); }
  Norm LayerNorm(const std::string& name) {
    const Tensor weight = Ones(name + ".weight", c_.hidden_dim);
    return {weight, Zeros(name + ".bias", c_.hidden_dim)};
  }
  Projection Conv1d(const std::string& name, int64_t n_in, int64_t n_out,
                    bool goes_to_stream = false) {
    const Tensor weight = Normal(name + ".weight", n_in, n_out, goes_to_stream);
    return {{weight}, Zeros(name + ".bias", n_out)};
  }
  void DrawHead() {
    d_.head_ = c_.tie_word_embeddings ? d_.embedding_
                                      : Normal("lm_head.weight", c_.vocab_size, c_.hidden_dim);
  }

  Decoder& d_;
  const ModelConfig& c_;
  torch::ScalarType type_;
  at::Generator generator_;
};

Decoder::Decoder(const ModelConfig& config, uint64_t seed, torch::ScalarType parameter_type,
                 torch::Device device)
    : config_(config), device_(device) {
  Initialiser initialiser(this, seed, parameter_type);
  if (config_.layout == WeightLayout::kGpt2) {
    initialiser.DrawGpt2();
  } else {
    initialiser.DrawLlama();
  }
}

}  // namespace kvlathe
