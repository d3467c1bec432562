#include "random_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <random>

#include "io/safetensors/safetensors.h"
#include "references/random_config.h"
#include "tensor/dtype.h"

namespace kvlathe::testing {
namespace {

struct Stored {
  std::vector<int64_t> shape;
  std::vector<Bf16> data;
};

// What the trainer of FastDMS leaves beside config.json.
nlohmann::json FastDmsMetadata(const ReferenceDms& dms) {
  return {{"config",
           {{"window_size", dms.window},
            {"alpha_scale", dms.scale},
            {"alpha_offset", dms.offset},
            {"target_cr", 8}}}};
}

// Draws tensors into the reference and, as Bf16, into what goes to the file.
class Writer {
 public:
  Writer(const RandomModelShape& shape, uint64_t seed, ReferenceModel* model)
      : s_(shape), random_(seed), model_(model) {}

  void DrawAll() {
    if (s_.model_type == "gpt2") return DrawGpt2();
    if (s_.model_type == "falcon") return DrawFalcon();
    DrawLlamaLike();
  }

  void Write(const std::string& path) const {
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, tensor] : stored_) {
      tensors.push_back({name, DType::kBf16, tensor.shape, tensor.data.data()});
    }
    const Status written = WriteSafetensors(path, tensors, {});
    EXPECT_TRUE(written.ok()) << written;
  }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    Stored& tensor = stored_[name];
    tensor.shape = std::move(shape);
    for (int64_t i = 0; i < n; ++i) {
      tensor.data.push_back(ToBf16(static_cast<float>(normal(random_))));
      model_->tensors[name].push_back(ToFloat(tensor.data.back()));
    }
  }
  void AddNorm(const std::string& name, bool bias) {
    Add(name + ".weight", {s_.hidden}, MeanOfNorms(), 0.1);
    if (bias) Add(name + ".bias", {s_.hidden}, 0, 0.3);
  }
  bool Is(std::initializer_list<const char*> types) const {
    return std::ranges::find(types, s_.model_type) != types.end();
  }
  bool IsGemma() const { return Is({"gemma2", "gemma3_text"}); }
  // Those whose weights are stored less one.
  double MeanOfNorms() const { return IsGemma() || Is({"nemotron"}) ? 0 : 1; }
  // Norms of queries and keys: of the rows of every head, with weights of each head's own, or of
  // all heads together.
  void AddHeadNorms(const std::string& attention) {
    const bool is_hunyuan = Is({"hunyuan_v1_dense"});
    const auto add = [&](const std::string& name, int n_heads) {
      std::vector<int64_t> shape = {s_.head_dim};
      if (Is({"cohere"})) shape = {n_heads, s_.head_dim};
      if (Is({"olmo2"})) shape = {n_heads * s_.head_dim};
      Add(attention + name + ".weight", shape, MeanOfNorms(), 0.1);
    };
    add(is_hunyuan ? "query_layernorm" : "q_norm", s_.n_heads);
    add(is_hunyuan ? "key_layernorm" : "k_norm", s_.n_kv_heads);
  }
  void AddLinear(const std::string& name, int n_out, int n_in, double deviation, bool bias) {
    Add(name + ".weight", {n_out, n_in}, 0, deviation);
    if (bias) Add(name + ".bias", {n_out}, 0, s_.bias_deviation);
  }
  void AddConv1d(const std::string& name, int n_out, int n_in, double deviation) {
    Add(name + ".weight", {n_in, n_out}, 0, deviation);
    Add(name + ".bias", {n_out}, 0, 0.5);
  }

  // Biases that put the deciding channel where it decides.
  void CentreDecisions(const std::string& attention) {
    const int channel = s_.dmc->is_last ? s_.head_dim - 1 : 0;
    const auto set = [&](const std::string& name, int n_heads, double to) {
      for (int h = 0; h < n_heads; ++h) {
        const int at = h * s_.head_dim + channel;
        stored_[name].data[at] = ToBf16(static_cast<float>(to));
        model_->tensors[name][at] = ToFloat(stored_[name].data[at]);
      }
    };
    set(attention + "k_proj.bias", s_.n_kv_heads, s_.dmc->offset + 0.5);
    set(attention + "q_proj.bias", s_.n_heads, -s_.dmc->weight_offset);
  }

  void DrawLlamaLike() {
    const bool has_norm_bias = Is({"nemotron"});
    // Gemma multiplies it by the root of its width where it is read.
    Add("model.embed_tokens.weight", {s_.vocab, s_.hidden}, 0, IsGemma() ? w_ : 1);
    AddNorm("model.norm", has_norm_bias);
    if (!s_.tied) AddLinear("lm_head", s_.vocab, s_.hidden, w_, false);
    for (int l = 0; l < s_.n_layers; ++l) {
      const std::string layer = "model.layers." + std::to_string(l) + ".";
      if (!Is({"olmo2", "exaone4"})) AddNorm(layer + "input_layernorm", has_norm_bias);
      if (!Is({"cohere"})) AddNorm(layer + "post_attention_layernorm", has_norm_bias);
      if (IsGemma()) AddNorm(layer + "pre_feedforward_layernorm", false);
      if (IsGemma() || Is({"olmo2", "exaone4"})) {
        AddNorm(layer + "post_feedforward_layernorm", false);
      }
      if (Is({"glm4"})) {
        AddNorm(layer + "post_self_attn_layernorm", false);
        AddNorm(layer + "post_mlp_layernorm", false);
      }
      const bool has_experts = s_.features.n_experts > 0 && l >= s_.features.n_dense_layers;
      DrawAttentionIn(layer + "self_attn.");
      if (!has_experts) DrawMlpIn(layer + "mlp.", s_.ffn);
      DrawAttentionOut(layer + "self_attn.");
      has_experts ? DrawExperts(layer + "mlp.") : DrawMlpOut(layer + "mlp.", s_.ffn);
    }
  }

  // Names of parts end with a dot.
  void DrawAttentionIn(const std::string& attention) {
    if (Is({"gemma3_text", "qwen3", "olmo2", "exaone4", "cohere", "hunyuan_v1_dense", "qwen3_moe",
            "glm4_moe"})) {
      AddHeadNorms(attention);
    }
    if (Is({"phi3"})) {
      AddLinear(attention + "qkv_proj", q_ + 2 * kv_, s_.hidden, 2 * w_, false);
    } else {
      const bool qkv_bias = s_.attention_bias || Is({"qwen2"});
      // Larger queries and keys, so that attention is far from uniform.
      AddLinear(attention + "q_proj", q_, s_.hidden, 2 * w_, qkv_bias);
      AddLinear(attention + "k_proj", kv_, s_.hidden, 2 * w_, qkv_bias);
      AddLinear(attention + "v_proj", kv_, s_.hidden, w_, qkv_bias);
    }
  }

  void DrawAttentionOut(const std::string& attention) {
    AddLinear(attention + "o_proj", s_.hidden, q_, w_,
              s_.attention_bias && !Is({"qwen2", "glm4", "glm4_moe"}));
    if (Is({"gpt_oss"})) Add(attention + "sinks", {s_.n_heads}, 1, 1);
    if (s_.dmc.has_value()) CentreDecisions(attention);
    if (s_.dms.has_value() && !s_.dms->query_channel.has_value()) {
      AddNorm(attention + "dms_proj_alpha_norm", false);
      AddLinear(attention + "dms_proj_alpha", s_.n_kv_heads, s_.hidden, w_, s_.dms->has_bias);
    }
  }

  void DrawMlpIn(const std::string& mlp, int ffn) {
    if (Is({"phi3", "glm4"})) {
      AddLinear(mlp + "gate_up_proj", 2 * ffn, s_.hidden, w_, false);
    } else {
      if (!Is({"nemotron"})) AddLinear(mlp + "gate_proj", ffn, s_.hidden, w_, s_.mlp_bias);
      AddLinear(mlp + "up_proj", ffn, s_.hidden, w_, s_.mlp_bias);
    }
  }

  void DrawMlpOut(const std::string& mlp, int ffn) {
    AddLinear(mlp + "down_proj", s_.hidden, ffn, w_, s_.mlp_bias);
  }

  void DrawMlp(const std::string& mlp, int ffn) {
    DrawMlpIn(mlp, ffn);
    DrawMlpOut(mlp, ffn);
  }

  void DrawExperts(const std::string& mlp) {
    const ReferenceFeatures& f = s_.features;
    if (Is({"gpt_oss"})) {
      AddLinear(mlp + "router", f.n_experts, s_.hidden, 2 * w_, true);
      const std::string experts = mlp + "experts.";
      Add(experts + "gate_up_proj", {f.n_experts, s_.hidden, 2 * f.expert_ffn}, 0, 2 * w_);
      Add(experts + "gate_up_proj_bias", {f.n_experts, 2 * f.expert_ffn}, 0, 0.5);
      Add(experts + "down_proj", {f.n_experts, f.expert_ffn, s_.hidden}, 0, w_);
      Add(experts + "down_proj_bias", {f.n_experts, s_.hidden}, 0, 0.5);
      return;
    }
    AddLinear(mlp + "gate", f.n_experts, s_.hidden, 2 * w_, false);
    for (int e = 0; e < f.n_experts; ++e) {
      DrawMlp(mlp + "experts." + std::to_string(e) + ".", f.expert_ffn);
    }
    if (!Is({"glm4_moe"})) return;
    Add(mlp + "gate.e_score_correction_bias", {f.n_experts}, 0, 0.3);
    DrawMlp(mlp + "shared_experts.", f.expert_ffn);
  }

  void DrawGpt2() {
    Add(s_.prefix + "wte.weight", {s_.vocab, s_.hidden}, 0, s_.tied ? 1 : 0.5);
    Add(s_.prefix + "wpe.weight", {s_.max_positions, s_.hidden}, 0, 0.5);
    AddNorm(s_.prefix + "ln_f", true);
    if (!s_.tied) AddLinear("lm_head", s_.vocab, s_.hidden, w_, false);
    for (int l = 0; l < s_.n_layers; ++l) {
      const std::string layer = s_.prefix + "h." + std::to_string(l) + ".";
      AddNorm(layer + "ln_1", true);
      AddNorm(layer + "ln_2", true);
      AddConv1d(layer + "attn.c_attn", 3 * s_.hidden, s_.hidden, 2 * w_);
      AddConv1d(layer + "attn.c_proj", s_.hidden, s_.hidden, w_);
      AddConv1d(layer + "mlp.c_fc", s_.ffn, s_.hidden, w_);
      AddConv1d(layer + "mlp.c_proj", s_.hidden, s_.ffn, w_);
    }
  }

  void DrawFalcon() {
    const bool bias = s_.attention_bias;
    Add("transformer.word_embeddings.weight", {s_.vocab, s_.hidden}, 0, 1);
    AddNorm("transformer.ln_f", true);
    if (!s_.tied) AddLinear("lm_head", s_.vocab, s_.hidden, w_, false);
    for (int l = 0; l < s_.n_layers; ++l) {
      const std::string layer = "transformer.h." + std::to_string(l) + ".";
      const bool two = s_.parallel && s_.n_norms == 2;
      AddNorm(layer + (two ? "ln_attn" : "input_layernorm"), true);
      if (two) AddNorm(layer + "ln_mlp", true);
      if (!s_.parallel) AddNorm(layer + "post_attention_layernorm", true);
      AddLinear(layer + "self_attention.query_key_value", q_ + 2 * kv_, s_.hidden, 2 * w_, bias);
      AddLinear(layer + "self_attention.dense", s_.hidden, q_, w_, bias);
      AddLinear(layer + "mlp.dense_h_to_4h", s_.ffn, s_.hidden, w_, bias);
      AddLinear(layer + "mlp.dense_4h_to_h", s_.hidden, s_.ffn, w_, bias);
    }
  }

  const RandomModelShape& s_;
  std::mt19937_64 random_;
  ReferenceModel* model_;
  std::map<std::string, Stored> stored_;
  double w_ = 1.0 / std::sqrt(s_.hidden);
  int q_ = s_.n_heads * s_.head_dim, kv_ = s_.n_kv_heads * s_.head_dim;
};

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
  m.model_type = s.model_type;
  m.rope = s.rope;
  m.rope.max_position = s.max_positions;
  m.rotary_dim = s.model_type == "gpt2" ? 0 : static_cast<int>(s.head_dim * s.rotary_fraction);
  m.window = s.window;
  m.whole_every = s.whole_every;
  m.local_rope = s.rope;
  if (s.model_type == "gemma3_text") m.local_rope = {.theta = s.local_theta};
  m.features = s.features;
  m.query_scalar = s.query_scalar;
  m.dmc = s.dmc;
  if (s.dms.has_value()) m.query_channel = s.dms->query_channel;
  m.activation = s.activation;
  m.prefix = s.prefix;
  m.parallel = s.parallel;
  m.n_norms = s.n_norms;
  Writer writer(s, seed, &m);
  writer.DrawAll();
  writer.Write(directory + "/model.safetensors");
  std::ofstream(directory + "/config.json") << RandomConfig(s).dump(2);
  if (s.dms.has_value() && s.dms->decides_of_itself) {
    std::ofstream(directory + "/dms_metadata.json") << FastDmsMetadata(*s.dms).dump(2);
  }
  return m;
}

namespace {

std::vector<ReferenceBasis> DrawBases(const ReferenceModel& m, uint64_t seed, int n_sharing) {
  std::mt19937_64 random(seed);
  const int d = m.head_dim, width = n_sharing * d;
  std::normal_distribution<double> normal(0, 1 / std::sqrt(width));
  const auto matrix = [&](int n_rows, int n_columns) {
    Matrix x(n_rows, std::vector<double>(n_columns));
    for (auto& row : x) {
      for (double& v : row) v = normal(random);
    }
    return x;
  };
  std::vector<ReferenceBasis> bases;
  int rank_k = 0, rank_v = 0;
  for (int i = 0; i < m.n_layers * m.n_kv_heads; ++i) {
    if (i % n_sharing == 0) {
      rank_k = 16 * (1 + static_cast<int>(random() % (d / 16)));
      rank_v = 16 * (1 + static_cast<int>(random() % (d / 16)));
    }
    bases.push_back({matrix(d, n_sharing * rank_k), matrix(width, rank_k), matrix(width, rank_v),
                     matrix(n_sharing * rank_v, d)});
    if (i % 2 == 1) continue;  // heads with and without offsets side by side
    bases.back().key_offset = matrix(1, d)[0];
    // Beside sink logits probabilities do not add up to 1, and the engine takes none off values.
    const std::vector<double> of_values = matrix(1, d)[0];
    if (m.model_type != "gpt_oss") bases.back().value_offset = of_values;
  }
  return bases;
}

}  // namespace

std::vector<ReferenceBasis> RandomBases(const ReferenceModel& m, uint64_t seed, int n_sharing) {
  return DrawBases(m, seed, n_sharing);
}

std::vector<ReferenceBasis> RandomLatentBases(const ReferenceModel& m, uint64_t seed,
                                              int n_sharing) {
  std::vector<ReferenceBasis> bases = DrawBases(m, seed, n_sharing);
  for (ReferenceBasis& basis : bases) {
    for (size_t r = 0; r < basis.query[0].size(); ++r) {
      std::vector<double>& row = basis.key_way_back.emplace_back();
      for (int i = 0; i < m.head_dim; ++i) row.push_back(basis.query[i][r]);
    }
    basis.query.clear();
  }
  return bases;
}

ModelBasis ToModelBasis(const ReferenceModel& m, const std::vector<ReferenceBasis>& bases) {
  const auto flat = [](const Matrix& x) {
    std::vector<float> values;
    for (const auto& row : x) values.insert(values.end(), row.begin(), row.end());
    return values;
  };
  ModelBasis basis{m.n_layers, m.n_kv_heads, m.head_dim};
  if (!bases.empty() && !bases[0].key_way_back.empty()) {
    const int n_sharing = static_cast<int>(bases[0].key.size()) / m.head_dim;
    basis.keys = LatentKeys{.heads_per_latent = n_sharing};
  }
  for (const ReferenceBasis& b : bases) {
    basis.heads.push_back({.rank_k = static_cast<int>(b.key[0].size()),
                           .rank_v = static_cast<int>(b.value[0].size()),
                           .query_basis = flat(b.query),
                           .key_basis = flat(b.key),
                           .value_basis = flat(b.value),
                           .output_basis = flat(b.output),
                           .key_offset = flat({b.key_offset}),
                           .value_offset = flat({b.value_offset}),
                           .key_way_back = flat(b.key_way_back)});
  }
  return basis;
}

namespace {

// Matrices of as many rows side by side.
void AddColumns(const Matrix& more, Matrix* to) {
  to->resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) {
    (*to)[i].insert((*to)[i].end(), more[i].begin(), more[i].end());
  }
}

}  // namespace

ModelBasis ToJoinedBasis(const ReferenceModel& m, const std::vector<ReferenceBasis>& bases) {
  const int n = static_cast<int>(bases[0].key.size()) / m.head_dim;
  const std::vector<double> no_offset(m.head_dim, 0.0);
  std::vector<ReferenceBasis> joined;
  for (size_t first = 0; first < bases.size(); first += n) {
    ReferenceBasis& all = joined.emplace_back();
    for (size_t h = first; h < first + n; ++h) {
      const ReferenceBasis& one = bases[h];
      all.query.insert(all.query.end(), one.query.begin(), one.query.end());
      AddColumns(one.key, &all.key);
      AddColumns(one.value, &all.value);
      AddColumns(one.output, &all.output);
      AddColumns(one.key_way_back, &all.key_way_back);
      for (auto offset : {&ReferenceBasis::key_offset, &ReferenceBasis::value_offset}) {
        if (std::ranges::all_of(bases, [&](const auto& b) { return (b.*offset).empty(); }))
          continue;
        const std::vector<double>& of_one = (one.*offset).empty() ? no_offset : one.*offset;
        (all.*offset).insert((all.*offset).end(), of_one.begin(), of_one.end());
      }
    }
  }
  ReferenceModel wide = m;
  wide.n_kv_heads /= n;
  wide.head_dim *= n;
  ModelBasis basis = ToModelBasis(wide, joined);
  basis.keys =
      TurnWhenRead(basis.keys) ? Keys(LatentKeys{.heads_per_map = n}) : Keys(MappedKeys{n});
  return basis;
}

namespace {

void DrawBitsOfHead(std::vector<int>* of_channels, BitSplit* split, int rank,
                    std::mt19937_64* random) {
  size_t level = (*random)() % 3;
  for (int r = 0; r < rank; r += 16) {
    split->channels[level] += 16;
    of_channels->insert(of_channels->end(), 16, kSplitBits[level]);
    level = std::min(level + (*random)() % 3, kSplitBits.size() - 1);
  }
}

}  // namespace

DrawnBits DrawClassBits(ModelBasis* basis) {
  std::mt19937_64 random(5);
  DrawnBits bits;
  for (size_t h = 0; h < basis->heads.size(); ++h) {
    HeadBasis& head = basis->heads[h];
    const auto draw = [&](auto* of_keys, auto* of_values, int n_lost, BitSplit* k, BitSplit* v) {
      *k = *v = {};
      DrawBitsOfHead(&of_keys->emplace_back(), k, std::max(16, head.rank_k - n_lost), &random);
      DrawBitsOfHead(&of_values->emplace_back(), v, std::max(16, head.rank_v - n_lost), &random);
    };
    draw(&bits.of_keys, &bits.of_values, 16 * (h % 2), &head.bits.middle.k, &head.bits.middle.v);
    draw(&bits.of_most_keys, &bits.of_most_values, 0, &head.bits.most.k, &head.bits.most.v);
    draw(&bits.of_least_keys, &bits.of_least_values, 16, &head.bits.least.k, &head.bits.least.v);
  }
  return bits;
}

DrawnBits DrawSplitBits(ModelBasis* basis) {
  std::mt19937_64 random(3);
  DrawnBits bits;
  for (HeadBasis& head : basis->heads) {
    head.bits.middle.k = head.bits.middle.v = {};
    DrawBitsOfHead(&bits.of_keys.emplace_back(), &head.bits.middle.k, head.rank_k, &random);
    DrawBitsOfHead(&bits.of_values.emplace_back(), &head.bits.middle.v, head.rank_v, &random);
  }
  return bits;
}

}  // namespace kvlathe::testing
