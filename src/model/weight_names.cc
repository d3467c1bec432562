#include "model/weight_names.h"

#include <algorithm>
#include <utility>

namespace kvlathe {

int64_t Projection::n_out() const {
  int64_t n = 0;
  for (const Run& run : runs) n += run.n;
  return n;
}

std::vector<Projection> TakeRows(std::vector<Projection> parts, std::span<const Range> wanted) {
  int64_t first = 0;  // of the run, among the rows of all parts
  for (Projection& part : parts) {
    std::vector<Projection::Run> taken;
    for (const Projection::Run& run : part.runs) {
      for (const Range& rows : wanted) {
        const int64_t begin = std::max(rows.begin, first);
        const int64_t end = std::min(rows.end, first + run.n);
        if (begin < end) taken.push_back({run.begin + begin - first, end - begin});
      }
      first += run.n;
    }
    part.runs = std::move(taken);
  }
  return parts;
}

WeightNames::Table WeightNames::TableOf(const ModelConfig& config, const TensorSource& source) {
  const bool has_two_norms = config.parallel_block && !config.shared_norm;
  Table t;
  switch (config.layout) {
    case WeightLayout::kLlama:
    case WeightLayout::kPhi3:
    case WeightLayout::kGemma:
      t = {.outside = "model.",
           .layers = "model.layers.",
           .embedding = "embed_tokens",
           .final_norm = "norm",
           .attn_norm = "input_layernorm",
           .ffn_norm = "post_attention_layernorm",
           .q_norm = "self_attn.q_norm",
           .k_norm = "self_attn.k_norm",
           .q = "self_attn.q_proj",
           .k = "self_attn.k_proj",
           .v = "self_attn.v_proj",
           .o = "self_attn.o_proj",
           .gate = "mlp.gate_proj",
           .up = "mlp.up_proj",
           .down = "mlp.down_proj"};
      if (config.layout == WeightLayout::kPhi3) {
        t.qkv = "self_attn.qkv_proj";
        t.gate = "";
        t.up = "mlp.gate_up_proj";
      }
      if (config.norms.of_outputs) {
        t.attn_out_norm = "post_attention_layernorm";
        t.ffn_norm = "pre_feedforward_layernorm";
        t.ffn_out_norm = "post_feedforward_layernorm";
      }
      break;
    case WeightLayout::kFalcon:
      t = {.outside = "transformer.",
           .layers = "transformer.h.",
           .embedding = "word_embeddings",
           .final_norm = "ln_f",
           .attn_norm = has_two_norms ? "ln_attn" : "input_layernorm",
           .ffn_norm = has_two_norms ? "ln_mlp" : "post_attention_layernorm",
           .qkv = "self_attention.query_key_value",
           .o = "self_attention.dense",
           .up = "mlp.dense_h_to_4h",
           .down = "mlp.dense_4h_to_h"};
      break;
    case WeightLayout::kGpt2: {
      const bool has_prefix = !source.Has("wte.weight");
      t = {.outside = has_prefix ? "transformer." : "",
           .layers = has_prefix ? "transformer.h." : "h.",
           .embedding = "wte",
           .final_norm = "ln_f",
           .attn_norm = "ln_1",
           .ffn_norm = "ln_2",
           .qkv = "attn.c_attn",
           .o = "attn.c_proj",
           .up = "mlp.c_fc",
           .down = "mlp.c_proj"};
      break;
    }
    case WeightLayout::kGguf:
    case WeightLayout::kGgufPairs:
      // Of Falcon's two norms the file calls that of the MLP attn_norm.
      t = {.layers = "blk.",
           .embedding = "token_embd",
           .head = "output",
           .final_norm = "output_norm",
           .attn_norm = has_two_norms ? "attn_norm_2" : "attn_norm",
           .ffn_norm = has_two_norms ? "attn_norm" : "ffn_norm",
           .q_norm = "attn_q_norm",
           .k_norm = "attn_k_norm",
           .attn_out_norm = "post_attention_norm",
           .ffn_out_norm = "post_ffw_norm",
           .qkv = source.Has("blk.0.attn_qkv.weight") ? "attn_qkv" : "",
           .q = "attn_q",
           .k = "attn_k",
           .v = "attn_v",
           .o = "attn_output",
           .gate = source.Has("blk.0.ffn_gate.weight") ? "ffn_gate" : "",
           .up = "ffn_up",
           .down = "ffn_down"};
      break;
  }
  return t;
}

WeightNames::WeightNames(const ModelConfig& config, const TensorSource& source)
    : config_(config), names_(TableOf(config, source)) {}

std::string WeightNames::embedding() const {
  return fmt::format("{}{}.weight", names_.outside, names_.embedding);
}

std::string WeightNames::position_embedding() const {
  const bool is_gpt2 = config_.layout == WeightLayout::kGpt2;
  return is_gpt2 ? fmt::format("{}wpe.weight", names_.outside) : "position_embd.weight";
}

Projection WeightNames::output_head() const {
  const std::string tensor = config_.tie_word_embeddings
                                 ? fmt::format("{}{}", names_.outside, names_.embedding)
                                 : names_.head;
  return {tensor, config_.vocab_size, config_.hidden_dim, false, {{0, config_.vocab_size}}};
}

std::string WeightNames::final_norm() const {
  return fmt::format("{}{}", names_.outside, names_.final_norm);
}

std::string WeightNames::attn_norm(int layer_idx) const {
  return Layer(layer_idx, names_.attn_norm);
}

std::string WeightNames::ffn_norm(int layer_idx) const { return Layer(layer_idx, names_.ffn_norm); }

std::string WeightNames::q_norm(int layer_idx) const { return Layer(layer_idx, names_.q_norm); }

std::string WeightNames::k_norm(int layer_idx) const { return Layer(layer_idx, names_.k_norm); }

std::string WeightNames::attn_out_norm(int layer_idx) const {
  return Layer(layer_idx, names_.attn_out_norm);
}

std::string WeightNames::ffn_out_norm(int layer_idx) const {
  return Layer(layer_idx, names_.ffn_out_norm);
}

std::string WeightNames::Layer(int layer_idx, const char* suffix) const {
  return fmt::format("{}{}.{}", names_.layers, layer_idx, suffix);
}

Projection WeightNames::Whole(int layer_idx, const char* suffix, int64_t n_out,
                              int64_t n_in) const {
  return {
      Layer(layer_idx, suffix), n_out, n_in, config_.layout == WeightLayout::kGpt2, {{0, n_out}}};
}

Projection WeightNames::FusedQkv(int layer_idx, Role role) const {
  const int64_t d = config_.head_dim, n_kv = config_.n_kv_heads, group = config_.gqa_group();
  const int64_t qk_rows = (config_.n_heads + n_kv) * d, n_stored = qk_rows + n_kv * d;
  Projection p = Whole(layer_idx, names_.qkv, n_stored, config_.hidden_dim);
  if (config_.layout != WeightLayout::kFalcon) {
    p.runs = role == Role::kQk ? RotatingRows(0, config_.n_heads + config_.n_kv_heads)
                               : std::vector<Projection::Run>{{qk_rows, n_kv * d}};
    return p;
  }
  // Per KV head its query heads, its key, its value.
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

std::vector<Projection::Run> WeightNames::RotatingRows(int64_t begin, int n_heads) const {
  const int64_t d = config_.head_dim;
  if (config_.layout != WeightLayout::kGgufPairs) return {{begin, n_heads * d}};
  std::vector<Projection::Run> runs;
  for (int h = 0; h < n_heads; ++h) {
    for (int64_t row = 0; row < d; ++row) {
      const int64_t half = row / (d / 2), pair = row % (d / 2);
      runs.push_back({begin + h * d + 2 * pair + half, 1});
    }
  }
  return runs;
}

Projection WeightNames::RotatingHeads(int layer_idx, const char* suffix, int n_heads) const {
  Projection p = Whole(layer_idx, suffix, int64_t{n_heads} * config_.head_dim, config_.hidden_dim);
  p.runs = RotatingRows(0, n_heads);
  return p;
}

std::vector<Projection> WeightNames::qk(int layer_idx) const {
  if (*names_.qkv != 0) return {FusedQkv(layer_idx, Role::kQk)};
  return {RotatingHeads(layer_idx, names_.q, config_.n_heads),
          RotatingHeads(layer_idx, names_.k, config_.n_kv_heads)};
}

Projection WeightNames::v(int layer_idx) const {
  if (*names_.qkv != 0) return FusedQkv(layer_idx, Role::kValue);
  return Whole(layer_idx, names_.v, int64_t{config_.n_kv_heads} * config_.head_dim,
               config_.hidden_dim);
}

Projection WeightNames::o(int layer_idx) const {
  const int64_t n_in = int64_t{config_.n_heads} * config_.head_dim;
  return Whole(layer_idx, names_.o, config_.hidden_dim, n_in);
}

std::vector<Projection> WeightNames::mlp_in(int layer_idx) const {
  const int64_t ffn = config_.ffn_dim, hidden = config_.hidden_dim;
  if (*names_.gate == 0) return {Whole(layer_idx, names_.up, config_.mlp_rows(), hidden)};
  return {Whole(layer_idx, names_.gate, ffn, hidden), Whole(layer_idx, names_.up, ffn, hidden)};
}

Projection WeightNames::mlp_out(int layer_idx) const {
  return Whole(layer_idx, names_.down, config_.hidden_dim, config_.ffn_dim);
}

}  // namespace kvlathe
