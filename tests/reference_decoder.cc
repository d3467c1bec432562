#include "reference_decoder.h"

#include <cmath>
#include <stdexcept>

namespace kvlathe::testing {
namespace {

using Vector = std::vector<double>;

const Vector& Tensor(const ReferenceModel& m, const std::string& name) {
  return m.tensors.at(name);
}

// y = W x + b for a stored [n_out, n_in] matrix; the bias is used when it exists.
Vector Project(const ReferenceModel& m, const std::string& name, const Vector& x) {
  const Vector& w = Tensor(m, name + ".weight");
  const size_t n_out = w.size() / x.size();
  Vector y(n_out, 0.0);
  for (size_t o = 0; o < n_out; ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  }
  const auto bias = m.tensors.find(name + ".bias");
  if (bias != m.tensors.end()) {
    for (size_t o = 0; o < n_out; ++o) y[o] += bias->second[o];
  }
  return y;
}

Vector Norm(const Vector& x, const Vector& weight, double eps) {
  double mean_square = 0;
  for (double v : x) mean_square += v * v / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(mean_square + eps) * weight[i];
  return y;
}

double Frequency(const ReferenceRope& rope, int pair, int head_dim) {
  const double f = 1.0 / std::pow(rope.theta, 2.0 * pair / head_dim);
  if (rope.scaling.empty()) return f;
  if (rope.scaling == "linear") return f / rope.factor;
  const double wavelength = 2 * M_PI / f;
  if (wavelength < rope.original / rope.high) return f;
  if (wavelength > rope.original / rope.low) return f / rope.factor;
  const double smooth = (rope.original / wavelength - rope.low) / (rope.high - rope.low);
  return (1 - smooth) * f / rope.factor + smooth * f;
}

Vector Rotate(const ReferenceRope& rope, const Vector& x, int position) {
  const int half = static_cast<int>(x.size()) / 2;
  Vector y(x.size());
  for (int i = 0; i < half; ++i) {
    const double angle = position * Frequency(rope, i, 2 * half);
    y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

Vector TimesMatrix(const Vector& x, const Matrix& m) {
  Vector y(m.at(0).size(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j) y[j] += x[i] * m[i][j];
  }
  return y;
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector Slice(const Vector& x, int index, int width) {
  return Vector(x.begin() + index * width, x.begin() + (index + 1) * width);
}

struct LayerCache {
  std::vector<std::vector<Vector>> keys, values;  // [kv head][position]
};

// Output of all heads for the newest token, back in the width of W_O's input.
Vector Attend(const ReferenceModel& m, int layer, const std::vector<ReferenceBasis>& bases,
              int n_sink, const Vector& q_all, int position, const LayerCache& cache) {
  Vector out;
  for (int h = 0; h < m.n_heads; ++h) {
    const int g = h / (m.n_heads / m.n_kv_heads);
    const Vector q = Rotate(m.rope, Slice(q_all, h, m.head_dim), position);
    const ReferenceBasis* basis = bases.empty() ? nullptr : &bases[layer * m.n_kv_heads + g];
    Vector scores;
    for (int j = 0; j <= position; ++j) {
      const Vector& k = cache.keys[g][j];
      const double score = basis == nullptr || j < n_sink
                               ? Dot(q, k)
                               : Dot(TimesMatrix(q, basis->query), TimesMatrix(k, basis->key));
      scores.push_back(score / std::sqrt(static_cast<double>(m.head_dim)));
    }
    double max = scores[0], sum = 0;
    for (double s : scores) max = std::max(max, s);
    for (double& s : scores) sum += s = std::exp(s - max);
    Vector o(m.head_dim, 0.0);
    for (int j = 0; j <= position; ++j) {
      Vector v = cache.values[g][j];
      if (basis != nullptr) v = TimesMatrix(TimesMatrix(v, basis->value), basis->output);
      for (int i = 0; i < m.head_dim; ++i) o[i] += scores[j] / sum * v[i];
    }
    out.insert(out.end(), o.begin(), o.end());
  }
  return out;
}

}  // namespace

Matrix ReferenceLogits(const ReferenceModel& m, const std::vector<int>& ids,
                       const std::vector<ReferenceBasis>& bases, int n_sink) {
  std::vector<LayerCache> caches(m.n_layers);
  for (LayerCache& c : caches) {
    c.keys.resize(m.n_kv_heads);
    c.values.resize(m.n_kv_heads);
  }
  Matrix logits;
  for (size_t t = 0; t < ids.size(); ++t) {
    const int position = static_cast<int>(t);
    const Vector& embedding = Tensor(m, "model.embed_tokens.weight");
    Vector x = Slice(embedding, ids[t], m.hidden);
    for (int l = 0; l < m.n_layers; ++l) {
      const std::string layer = "model.layers." + std::to_string(l) + ".";
      const Vector a = Norm(x, Tensor(m, layer + "input_layernorm.weight"), m.eps);
      const Vector q = Project(m, layer + "self_attn.q_proj", a);
      const Vector k = Project(m, layer + "self_attn.k_proj", a);
      const Vector v = Project(m, layer + "self_attn.v_proj", a);
      for (int g = 0; g < m.n_kv_heads; ++g) {
        caches[l].keys[g].push_back(Rotate(m.rope, Slice(k, g, m.head_dim), position));
        caches[l].values[g].push_back(Slice(v, g, m.head_dim));
      }
      const Vector o = Project(m, layer + "self_attn.o_proj",
                               Attend(m, l, bases, n_sink, q, position, caches[l]));
      for (int i = 0; i < m.hidden; ++i) x[i] += o[i];
      const Vector f = Norm(x, Tensor(m, layer + "post_attention_layernorm.weight"), m.eps);
      Vector gate = Project(m, layer + "mlp.gate_proj", f);
      const Vector up = Project(m, layer + "mlp.up_proj", f);
      for (int i = 0; i < m.ffn; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      const Vector down = Project(m, layer + "mlp.down_proj", gate);
      for (int i = 0; i < m.hidden; ++i) x[i] += down[i];
    }
    const Vector last = Norm(x, Tensor(m, "model.norm.weight"), m.eps);
    const Vector& head = Tensor(m, m.tied ? "model.embed_tokens.weight" : "lm_head.weight");
    Vector row(m.vocab, 0.0);
    for (int i = 0; i < m.vocab; ++i) row[i] = Dot(Slice(head, i, m.hidden), last);
    logits.push_back(row);
  }
  return logits;
}

}  // namespace kvlathe::testing
