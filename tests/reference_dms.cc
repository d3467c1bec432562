#include "reference_dms.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "reference_family.h"

namespace kvlathe::testing {

bool SweepLiterally::IsSweep(int n_tokens) const {
  if (n_tokens >= m_.n_prompt) return (n_tokens - m_.n_prompt) % m_.interval == 0;
  return n_tokens > m_.n_sink && (n_tokens - m_.n_sink) % m_.run == 0;
}

std::vector<double> SweepLiterally::Decisions(int layer_idx, const ReferenceRows& rows) const {
  if (m_.query_channel.has_value()) return rows.channel;
  const std::string name = LayerPrefix(model_, layer_idx) + "self_attn.dms_proj_alpha";
  double square = 0;
  for (const double x : rows.stream) square += x * x / model_.hidden;
  Vector normed = rows.stream;
  for (int i = 0; i < model_.hidden; ++i) {
    normed[i] *= Tensor(model_, name + "_norm.weight")[i] / std::sqrt(square + model_.eps);
  }
  std::vector<double> logits;
  for (int g = 0; g < model_.n_kv_heads; ++g) {
    const int of_head = m_.is_per_head ? g : 0;
    double logit = Dot(Slice(Tensor(model_, name + ".weight"), of_head, model_.hidden), normed);
    if (m_.has_bias) logit += Tensor(model_, name + ".bias")[of_head];
    logits.push_back(logit);
  }
  return logits;
}

void SweepLiterally::operator()(int layer_idx, ReferenceRows* rows) {
  auto& of_layer = may_leave_[layer_idx];
  const int n_tokens = static_cast<int>(of_layer[0].size()) + 1;
  const std::vector<double> logits = Decisions(layer_idx, *rows);
  for (int g = 0; g < model_.n_kv_heads; ++g) {
    const bool lets_go = logits[g] * m_.scale - m_.offset > 0;
    // The token decides of the one before, and the next one of it; or each of itself.
    if (n_tokens > 1 && !m_.decides_of_itself) of_layer[g].back() = lets_go;
    of_layer[g].push_back(m_.decides_of_itself && lets_go);
    if (!IsSweep(n_tokens)) continue;
    for (int j = static_cast<int>(rows->positions[g].size()) - 1; j >= 0; --j) {
      const int position = rows->positions[g][j];
      if (position < m_.n_sink || n_tokens - position <= m_.window) continue;
      if (!of_layer[g][position]) continue;
      rows->positions[g].erase(rows->positions[g].begin() + j);
      rows->keys[g].erase(rows->keys[g].begin() + j);
      rows->values[g].erase(rows->values[g].begin() + j);
    }
  }
}

double SweepLiterally::ShareOf(int layer_idx) const {
  double n = 0, n_leaving = 0;
  for (const std::vector<bool>& head : may_leave_[layer_idx]) {
    n += static_cast<double>(head.size());
    n_leaving += static_cast<double>(std::ranges::count(head, true));
  }
  return n_leaving / n;
}

}  // namespace kvlathe::testing
