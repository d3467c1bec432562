#include "random_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "io/safetensors.h"
#include "tensor/dtype.h"

namespace kvlathe::testing {
namespace {

struct Stored {
  std::vector<int64_t> shape;
  std::vector<Bf16> data;
};

nlohmann::json ConfigOf(const RandomModelShape& s) {
  nlohmann::json config = {{"model_type", s.model_type},
                           {"hidden_size", s.hidden},
                           {"num_hidden_layers", s.n_layers},
                           {"num_attention_heads", s.n_heads},
                           {"num_key_value_heads", s.n_kv_heads},
                           {"head_dim", s.head_dim},
                           {"intermediate_size", s.ffn},
                           {"vocab_size", s.vocab},
                           {"max_position_embeddings", 512},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", s.rope.theta},
                           {"hidden_act", "silu"},
                           {"tie_word_embeddings", s.tied},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2}};
  if (s.attention_bias && s.model_type != "qwen2") config["attention_bias"] = true;
  if (s.mlp_bias) config["mlp_bias"] = true;
  if (s.rope.scaling == "linear") {
    config["rope_scaling"] = {{"type", "linear"}, {"factor", s.rope.factor}};
  } else if (s.rope.scaling == "llama3") {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", s.rope.factor},
                              {"low_freq_factor", s.rope.low},
                              {"high_freq_factor", s.rope.high},
                              {"original_max_position_embeddings", s.rope.original}};
  }
  return config;
}

}  // namespace

std::string FreshDirectory(const std::string& name) {
  const std::string path =
      ::testing::TempDir() + "/kvlathe_" + name + "_" + std::to_string(getpid());
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

ReferenceModel WriteRandomModel(const RandomModelShape& s, const std::string& directory,
                                uint64_t seed) {
  ReferenceModel m;
  m.n_layers = s.n_layers;
  m.hidden = s.hidden;
  m.n_heads = s.n_heads;
  m.n_kv_heads = s.n_kv_heads;
  m.head_dim = s.head_dim;
  m.ffn = s.ffn;
  m.vocab = s.vocab;
  m.tied = s.tied;
  m.rope = s.rope;
  std::mt19937_64 random(seed);
  std::map<std::string, Stored> stored;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, double mean,
                       double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    Stored& tensor = stored[name];
    tensor.shape = std::move(shape);
    for (int64_t i = 0; i < n; ++i) {
      tensor.data.push_back(ToBf16(static_cast<float>(normal(random))));
      m.tensors[name].push_back(ToFloat(tensor.data.back()));
    }
  };
  const double w = 1.0 / std::sqrt(s.hidden);
  const int q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
  const bool o_bias = s.attention_bias && s.model_type != "qwen2";
  add("model.embed_tokens.weight", {s.vocab, s.hidden}, 0, 1);
  add("model.norm.weight", {s.hidden}, 1, 0.1);
  if (!s.tied) add("lm_head.weight", {s.vocab, s.hidden}, 0, w);
  for (int l = 0; l < s.n_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    add(layer + "input_layernorm.weight", {s.hidden}, 1, 0.1);
    add(layer + "post_attention_layernorm.weight", {s.hidden}, 1, 0.1);
    // Larger queries and keys, so that attention is far from uniform.
    add(layer + "self_attn.q_proj.weight", {q, s.hidden}, 0, 2 * w);
    add(layer + "self_attn.k_proj.weight", {kv, s.hidden}, 0, 2 * w);
    add(layer + "self_attn.v_proj.weight", {kv, s.hidden}, 0, w);
    add(layer + "self_attn.o_proj.weight", {s.hidden, q}, 0, w);
    add(layer + "mlp.gate_proj.weight", {s.ffn, s.hidden}, 0, w);
    add(layer + "mlp.up_proj.weight", {s.ffn, s.hidden}, 0, w);
    add(layer + "mlp.down_proj.weight", {s.hidden, s.ffn}, 0, w);
    if (s.attention_bias || s.model_type == "qwen2") {
      add(layer + "self_attn.q_proj.bias", {q}, 0, 0.5);
      add(layer + "self_attn.k_proj.bias", {kv}, 0, 0.5);
      add(layer + "self_attn.v_proj.bias", {kv}, 0, 0.5);
    }
    if (o_bias) add(layer + "self_attn.o_proj.bias", {s.hidden}, 0, 0.5);
    if (s.mlp_bias) {
      add(layer + "mlp.gate_proj.bias", {s.ffn}, 0, 0.5);
      add(layer + "mlp.up_proj.bias", {s.ffn}, 0, 0.5);
      add(layer + "mlp.down_proj.bias", {s.hidden}, 0, 0.5);
    }
  }
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, tensor] : stored) {
    tensors.push_back({name, DType::kBf16, tensor.shape, tensor.data.data()});
  }
  const Status written = WriteSafetensors(directory + "/model.safetensors", tensors, {});
  EXPECT_TRUE(written.ok()) << written;
  std::ofstream(directory + "/config.json") << ConfigOf(s).dump(2);
  return m;
}

std::vector<ReferenceBasis> RandomBases(const ReferenceModel& m, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 1 / std::sqrt(m.head_dim));
  const auto matrix = [&](int n_rows, int n_columns) {
    Matrix x(n_rows, std::vector<double>(n_columns));
    for (auto& row : x) {
      for (double& v : row) v = normal(random);
    }
    return x;
  };
  std::vector<ReferenceBasis> bases;
  for (int i = 0; i < m.n_layers * m.n_kv_heads; ++i) {
    const int rank_k = 16 * (1 + static_cast<int>(random() % (m.head_dim / 16)));
    const int rank_v = 16 * (1 + static_cast<int>(random() % (m.head_dim / 16)));
    bases.push_back({matrix(m.head_dim, rank_k), matrix(m.head_dim, rank_k),
                     matrix(m.head_dim, rank_v), matrix(rank_v, m.head_dim)});
  }
  return bases;
}

}  // namespace kvlathe::testing
