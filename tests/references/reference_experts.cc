#include "references/reference_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "reference_family.h"

namespace kvlathe::testing {
namespace {

bool IsGptOss(const ReferenceModel& m) { return m.model_type == "gpt_oss"; }

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Vector Softmax(Vector x) {
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v - most);
  for (double& v : x) v /= sum;
  return x;
}

// Numbers of the n largest, falling.
std::vector<int> Largest(const Vector& x, int n) {
  std::vector<int> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
  order.resize(n);
  return order;
}

struct Choice {
  std::vector<int> experts;
  Vector weights;
};

// gpt-oss: the softmax of the chosen logits. Qwen3-MoE: that of all, of which the chosen are
// divided by their sum. GLM 4.5: sigmoids, which a bias helps to choose, divided by their sum and
// scaled.
Choice Choose(const ReferenceModel& m, const std::string& layer, const Vector& x) {
  Choice choice;
  if (IsGptOss(m)) {
    const Vector logits = Project(m, layer + "mlp.router", x);
    choice.experts = Largest(logits, m.features.n_used_experts);
    for (const int e : choice.experts) choice.weights.push_back(logits[e]);
    choice.weights = Softmax(choice.weights);
    return choice;
  }
  Vector scores = Project(m, layer + "mlp.gate", x), chosen_by = scores;
  const bool is_glm = m.model_type == "glm4_moe";
  if (is_glm) {
    for (double& s : scores) s = Sigmoid(s);
    const Vector& bias = Tensor(m, layer + "mlp.gate.e_score_correction_bias");
    for (size_t e = 0; e < scores.size(); ++e) chosen_by[e] = scores[e] + bias[e];
  } else {
    scores = Softmax(scores);
  }
  choice.experts = Largest(chosen_by, m.features.n_used_experts);
  double sum = 0;
  for (const int e : choice.experts) sum += scores[e];
  for (const int e : choice.experts) {
    choice.weights.push_back(scores[e] / sum * (is_glm ? m.features.experts_scale : 1));
  }
  return choice;
}

// What an MLP with tensors of its own makes of x.
Vector GatedMlp(const ReferenceModel& m, const std::string& name, const Vector& x) {
  Vector gate = Project(m, name + "gate_proj", x);
  const Vector up = Project(m, name + "up_proj", x);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] * Sigmoid(gate[i]) * up[i];
  return Project(m, name + "down_proj", gate);
}

// gpt-oss keeps matrices of all experts together, [expert][n_in][n_out], gates beside ups.
Vector GptOssExpert(const ReferenceModel& m, const std::string& layer, int e, const Vector& x) {
  const std::string name = layer + "mlp.experts.";
  const auto multiplied = [&](const std::string& matrix, const Vector& by) {
    const Vector& w = Tensor(m, name + matrix);
    const Vector& bias = Tensor(m, name + matrix + "_bias");
    const size_t n_out = bias.size() / m.features.n_experts, n_in = by.size();
    Vector y(bias.begin() + e * n_out, bias.begin() + (e + 1) * n_out);
    for (size_t i = 0; i < n_in; ++i) {
      for (size_t o = 0; o < n_out; ++o) y[o] += by[i] * w[(e * n_in + i) * n_out + o];
    }
    return y;
  };
  const Vector both = multiplied("gate_up_proj", x);
  Vector gated;
  for (size_t i = 0; i < both.size(); i += 2) {
    const double gate = std::min(both[i], 7.0), up = std::clamp(both[i + 1], -7.0, 7.0);
    gated.push_back(gate * Sigmoid(1.702 * gate) * (up + 1));
  }
  return multiplied("down_proj", gated);
}

}  // namespace

bool HasExperts(const ReferenceModel& m, const std::string& layer) {
  return m.tensors.contains(layer + "mlp.gate.weight") ||
         m.tensors.contains(layer + "mlp.router.weight");
}

std::vector<double> Experts(const ReferenceModel& m, const std::string& layer,
                            const std::vector<double>& x) {
  const Choice choice = Choose(m, layer, x);
  Vector sum(x.size(), 0.0);
  const auto add = [&](const Vector& y, double weight) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * y[i];
  };
  for (size_t i = 0; i < choice.experts.size(); ++i) {
    const int e = choice.experts[i];
    add(IsGptOss(m) ? GptOssExpert(m, layer, e, x)
                    : GatedMlp(m, layer + "mlp.experts." + std::to_string(e) + ".", x),
        choice.weights[i]);
  }
  const std::string shared = layer + "mlp.shared_experts.";
  if (m.tensors.contains(shared + "up_proj.weight")) add(GatedMlp(m, shared, x), 1);
  return sum;
}

}  // namespace kvlathe::testing
