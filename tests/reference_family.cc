#include "reference_family.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "references/reference_experts.h"

namespace kvlathe::testing {
namespace {

void AddBias(const ReferenceModel& m, const std::string& name, Vector* y) {
  const auto bias = m.tensors.find(name + ".bias");
  if (bias == m.tensors.end()) return;
  for (size_t o = 0; o < y->size(); ++o) (*y)[o] += bias->second[o];
}

// Project for Conv1D, which stores [n_in, n_out].
Vector Conv1d(const ReferenceModel& m, const std::string& name, const Vector& x) {
  const Vector& w = Tensor(m, name + ".weight");
  const size_t n_out = w.size() / x.size();
  Vector y(n_out, 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t o = 0; o < n_out; ++o) y[o] += x[i] * w[i * n_out + o];
  }
  AddBias(m, name, &y);
  return y;
}

Vector RmsNorm(const Vector& x, const Vector& weight, double eps) {
  double mean_square = 0;
  for (double v : x) mean_square += v * v / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(mean_square + eps) * weight[i];
  return y;
}

Vector LayerNorm(const Vector& x, const Vector& weight, const Vector& bias, double eps) {
  double mean = 0, variance = 0;
  for (double v : x) mean += v / static_cast<double>(x.size());
  for (double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + eps) * weight[i] + bias[i];
  }
  return y;
}

bool IsAny(const ReferenceModel& m, std::initializer_list<const char*> types) {
  return std::ranges::find(types, m.model_type) != types.end();
}
bool IsGpt2(const ReferenceModel& m) { return m.model_type == "gpt2"; }
bool IsFalcon(const ReferenceModel& m) { return m.model_type == "falcon"; }
bool IsGemma(const ReferenceModel& m) { return IsAny(m, {"gemma2", "gemma3_text"}); }
// Whether attention and the MLP read the stream as it is.
bool ReadsStream(const ReferenceModel& m) { return IsAny(m, {"olmo2", "exaone4"}); }

Vector Norm(const ReferenceModel& m, const std::string& name, const Vector& x) {
  Vector weight = Tensor(m, name + ".weight");
  if (IsGemma(m) || m.model_type == "nemotron") {
    for (double& w : weight) w += 1;
  }
  if (!IsAny(m, {"gpt2", "falcon", "cohere", "nemotron"})) return RmsNorm(x, weight, m.eps);
  const auto bias = m.tensors.find(name + ".bias");
  return LayerNorm(x, weight, bias == m.tensors.end() ? Vector(x.size()) : bias->second, m.eps);
}

double Gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double GeluNew(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double Silu(double x) { return x / (1 + std::exp(-x)); }
double Relu2(double x) { return x > 0 ? x * x : 0; }

void Append(const Vector& from, Vector* to) { to->insert(to->end(), from.begin(), from.end()); }

// Rows of heads normalised, where the model has such a norm: each by itself, with weights of all
// heads or of its own (Cohere), or all together (OLMo 2).
Vector NormaliseHeads(const ReferenceModel& m, const std::string& name, const Vector& heads) {
  const auto found = m.tensors.find(name + ".weight");
  if (found == m.tensors.end()) return heads;
  if (m.model_type == "olmo2") return Norm(m, name, heads);
  Vector all;
  for (int h = 0; h < static_cast<int>(heads.size()) / m.head_dim; ++h) {
    const Vector head = Slice(heads, h, m.head_dim);
    if (m.model_type == "cohere") {
      Append(LayerNorm(head, Slice(found->second, h, m.head_dim), Vector(m.head_dim), m.eps), &all);
    } else if (m.model_type == "hunyuan_v1_dense") {
      Append(RmsNorm(head, Vector(m.head_dim, 1.0), m.eps), &all);
    } else {
      Append(Norm(m, name, head), &all);
    }
  }
  return all;
}

// GLM and Cohere turn neighbours together.
bool TurnsNeighbours(const ReferenceModel& m) { return IsAny(m, {"glm4", "cohere"}); }

Vector PutApart(const ReferenceModel& m, const Vector& stored) {
  Vector heads;
  for (size_t i = 0; i < stored.size(); ++i) {
    heads.push_back(stored[StoredRow(m, static_cast<int>(i))]);
  }
  return heads;
}

std::string NameOfQueryNorm(const ReferenceModel& m) {
  return m.model_type == "hunyuan_v1_dense" ? "self_attn.query_layernorm" : "self_attn.q_norm";
}
std::string NameOfKeyNorm(const ReferenceModel& m) {
  return m.model_type == "hunyuan_v1_dense" ? "self_attn.key_layernorm" : "self_attn.k_norm";
}

// y, or its norm where the model normalises what attention or the MLP puts out.
Vector AsAdded(const ReferenceModel& m, const std::string& layer, const char* name,
               const char* of_glm, const Vector& y) {
  if (m.model_type == "glm4") return Norm(m, layer + of_glm, y);
  return IsGemma(m) || ReadsStream(m) ? Norm(m, layer + name, y) : y;
}

}  // namespace

Vector Project(const ReferenceModel& m, const std::string& name, const Vector& x) {
  const Vector& w = Tensor(m, name + ".weight");
  const size_t n_out = w.size() / x.size();
  Vector y(n_out, 0.0);
  for (size_t o = 0; o < n_out; ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  }
  AddBias(m, name, &y);
  return y;
}

const Vector& Tensor(const ReferenceModel& m, const std::string& name) {
  return m.tensors.at(name);
}

Vector Slice(const Vector& x, int index, int width) {
  return Vector(x.begin() + index * width, x.begin() + (index + 1) * width);
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::string LayerPrefix(const ReferenceModel& m, int layer_idx) {
  const std::string layers = IsGpt2(m)     ? m.prefix + "h."
                             : IsFalcon(m) ? "transformer.h."
                                           : "model.layers.";
  return layers + std::to_string(layer_idx) + ".";
}

Vector Embed(const ReferenceModel& m, int id, int position) {
  if (IsFalcon(m)) return Slice(Tensor(m, "transformer.word_embeddings.weight"), id, m.hidden);
  if (!IsGpt2(m)) {
    Vector x = Slice(Tensor(m, "model.embed_tokens.weight"), id, m.hidden);
    for (double& v : x) v *= IsGemma(m) ? std::sqrt(m.hidden) : m.features.embedding_scale;
    return x;
  }
  Vector x = Slice(Tensor(m, m.prefix + "wte.weight"), id, m.hidden);
  const Vector place = Slice(Tensor(m, m.prefix + "wpe.weight"), position, m.hidden);
  for (int i = 0; i < m.hidden; ++i) x[i] += place[i];
  return x;
}

Vector AttentionNorm(const ReferenceModel& m, const std::string& layer, const Vector& x) {
  if (ReadsStream(m)) return x;
  if (IsGpt2(m)) return Norm(m, layer + "ln_1", x);
  const bool two = IsFalcon(m) && m.parallel && m.n_norms == 2;
  return Norm(m, layer + (two ? "ln_attn" : "input_layernorm"), x);
}

Vector MlpNorm(const ReferenceModel& m, const std::string& layer, const Vector& before,
               const Vector& after) {
  if (ReadsStream(m)) return after;
  if (m.model_type == "cohere") return Norm(m, layer + "input_layernorm", before);
  if (IsGpt2(m)) return Norm(m, layer + "ln_2", after);
  if (IsFalcon(m) && m.parallel) {
    return Norm(m, layer + (m.n_norms == 2 ? "ln_mlp" : "input_layernorm"), before);
  }
  return Norm(m, layer + (IsGemma(m) ? "pre_feedforward_layernorm" : "post_attention_layernorm"),
              after);
}

Qkv ProjectQkv(const ReferenceModel& m, const std::string& layer, const Vector& x) {
  Qkv out;
  if (IsFalcon(m)) {
    // view(n_kv_heads, group + 2, head_dim): queries, then a key, then a value.
    const Vector fused = Project(m, layer + "self_attention.query_key_value", x);
    const int group = m.n_heads / m.n_kv_heads;
    for (int g = 0; g < m.n_kv_heads; ++g) {
      const int first = g * (group + 2);
      for (int h = 0; h < group; ++h) Append(Slice(fused, first + h, m.head_dim), &out.q);
      Append(Slice(fused, first + group, m.head_dim), &out.k);
      Append(Slice(fused, first + group + 1, m.head_dim), &out.v);
    }
    return out;
  }
  if (IsGpt2(m) || m.model_type == "phi3") {
    const Vector fused = IsGpt2(m) ? Conv1d(m, layer + "attn.c_attn", x)
                                   : Project(m, layer + "self_attn.qkv_proj", x);
    const auto k = fused.begin() + m.n_heads * m.head_dim;
    const auto v = k + m.n_kv_heads * m.head_dim;
    return {Vector(fused.begin(), k), Vector(k, v), Vector(v, fused.end())};
  }
  const Vector q = Project(m, layer + "self_attn.q_proj", x);
  const Vector k = Project(m, layer + "self_attn.k_proj", x);
  return {PutApart(m, NormaliseHeads(m, layer + NameOfQueryNorm(m), q)),
          PutApart(m, NormaliseHeads(m, layer + NameOfKeyNorm(m), k)),
          Project(m, layer + "self_attn.v_proj", x)};
}

int StoredRow(const ReferenceModel& m, int i) {
  const int channel = i % m.head_dim, half = m.rotary_dim / 2;
  if (!TurnsNeighbours(m) || channel >= m.rotary_dim) return i;
  return i - channel + (channel < half ? 2 * channel : 2 * (channel - half) + 1);
}

Vector TurnedQueryWeights(const ReferenceModel& m, const std::string& layer) {
  if (m.model_type != "hunyuan_v1_dense") return {};
  Vector both = Tensor(m, layer + NameOfQueryNorm(m) + ".weight");
  const Vector& of_keys = Tensor(m, layer + NameOfKeyNorm(m) + ".weight");
  for (size_t i = 0; i < both.size(); ++i) both[i] *= of_keys[i];
  return both;
}

Vector ProjectOutput(const ReferenceModel& m, const std::string& layer, const Vector& x) {
  if (IsGpt2(m)) return Conv1d(m, layer + "attn.c_proj", x);
  return Project(m, layer + (IsFalcon(m) ? "self_attention.dense" : "self_attn.o_proj"), x);
}

Vector AddedByAttention(const ReferenceModel& m, const std::string& layer, const Vector& x) {
  return AsAdded(m, layer, "post_attention_layernorm", "post_self_attn_layernorm",
                 ProjectOutput(m, layer, x));
}

Vector Mlp(const ReferenceModel& m, const std::string& layer, const Vector& x) {
  if (IsGpt2(m)) {
    Vector h = Conv1d(m, layer + "mlp.c_fc", x);
    for (double& v : h) v = m.activation == "gelu" ? Gelu(v) : GeluNew(v);
    return Conv1d(m, layer + "mlp.c_proj", h);
  }
  if (IsFalcon(m)) {
    Vector h = Project(m, layer + "mlp.dense_h_to_4h", x);
    for (double& v : h) v = Gelu(v);
    return Project(m, layer + "mlp.dense_4h_to_h", h);
  }
  if (m.model_type == "nemotron") {
    Vector h = Project(m, layer + "mlp.up_proj", x);
    for (double& v : h) v = Relu2(v);
    return Project(m, layer + "mlp.down_proj", h);
  }
  if (HasExperts(m, layer)) return Experts(m, layer, x);
  Vector gate, up;
  if (IsAny(m, {"phi3", "glm4"})) {
    const Vector fused = Project(m, layer + "mlp.gate_up_proj", x);
    gate = Slice(fused, 0, m.ffn);
    up = Slice(fused, 1, m.ffn);
  } else {
    gate = Project(m, layer + "mlp.gate_proj", x);
    up = Project(m, layer + "mlp.up_proj", x);
  }
  for (int i = 0; i < m.ffn; ++i) {
    gate[i] = (IsGemma(m) ? GeluNew(gate[i]) : Silu(gate[i])) * up[i];
  }
  return AsAdded(m, layer, "post_feedforward_layernorm", "post_mlp_layernorm",
                 Project(m, layer + "mlp.down_proj", gate));
}

Vector Logits(const ReferenceModel& m, const Vector& x) {
  const std::string embedding = IsGpt2(m)     ? m.prefix + "wte.weight"
                                : IsFalcon(m) ? "transformer.word_embeddings.weight"
                                              : "model.embed_tokens.weight";
  const Vector last = Norm(m,
                           IsGpt2(m)     ? m.prefix + "ln_f"
                           : IsFalcon(m) ? "transformer.ln_f"
                                         : "model.norm",
                           x);
  const Vector& head = Tensor(m, m.tied ? embedding : "lm_head.weight");
  Vector row(m.vocab, 0.0);
  const double cap = m.features.logit_cap;
  for (int i = 0; i < m.vocab; ++i) {
    row[i] = m.features.logit_scale * Dot(Slice(head, i, m.hidden), last);
    if (cap > 0) row[i] = cap * std::tanh(row[i] / cap);
  }
  return row;
}

}  // namespace kvlathe::testing
