#include "reference_retention.h"

#include <algorithm>
#include <cmath>

namespace kvlathe::testing {
namespace {

// The noise as cpu/kernels/attend/entry_scores.h and model/steps/attend.cc define its keys.
uint64_t SplitMix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double GumbelNoise(int layer, int head, int query, int key) {
  const uint64_t place = (static_cast<uint64_t>(head) << 32) + static_cast<uint64_t>(query);
  uint32_t x = static_cast<uint32_t>(SplitMix(SplitMix(layer) ^ SplitMix(place)));
  x += static_cast<uint32_t>(key) * 0x9e3779b1u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  x ^= x >> 16;
  return -std::log(-std::log((2.0 * (x >> 9) + 1) / 16777216.0));
}

std::vector<double> Softmax(std::vector<double> x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& value : x) sum += value = std::exp(value - max);
  for (double& value : x) value /= sum;
  return x;
}

}  // namespace

RepeatLiterally::RepeatLiterally(int n_layers, int n_kv_heads, int n_sink, int n_context)
    : n_sink_(n_sink),
      n_context_(n_context),
      votes_(n_layers, std::vector(n_kv_heads, std::vector<double>(n_context - n_sink))),
      n_tokens_(n_layers) {}

void RepeatLiterally::BeginChunk() { std::ranges::fill(n_tokens_, 0); }

void RepeatLiterally::operator()(int layer_idx, ReferenceRows* rows) {
  if (n_tokens_[layer_idx]++ < n_context_) return;
  auto& heads = votes_[layer_idx];
  const size_t group = rows->scores.size() / heads.size();
  for (size_t h = 0; h < rows->scores.size(); ++h) {
    const std::vector<double>& weights = rows->weights[h];
    std::vector<double>& votes = heads[h / group];
    for (size_t e = 0; e < votes.size(); ++e) votes[e] = std::max(votes[e], weights[n_sink_ + e]);
  }
}

void RetainLiterally::SetVotes(const RepeatLiterally::Votes& votes) {
  given_votes_ = votes;
  if (!m_.joint) return;
  struct Vote {
    double vote;
    size_t layer, head;
  };
  std::vector<Vote> all;
  const int n_old = m_.n_prompt - m_.n_sink - Newest(m_.n_prompt);
  for (size_t l = 0; l < votes.size(); ++l) {
    n_left_.emplace_back(votes[l].size(), Newest(m_.n_prompt));
    for (size_t g = 0; g < votes[l].size(); ++g) {
      for (int e = 0; e < n_old; ++e) all.push_back({votes[l][g][e], l, g});
    }
  }
  std::ranges::stable_sort(all, [](const Vote& a, const Vote& b) { return a.vote > b.vote; });
  const int n_each = Budget(m_.n_prompt) - m_.n_sink - Newest(m_.n_prompt);
  const size_t n_chosen = std::max(0, n_each) * votes.size() * votes[0].size();
  for (size_t i = 0; i < n_chosen; ++i) ++n_left_[all[i].layer][all[i].head];
}

void RetainLiterally::operator()(int layer_idx, ReferenceRows* rows) {
  const int position = n_tokens_[layer_idx]++;
  if (position >= m_.n_sink) {
    for (auto& head : entries_[layer_idx]) head.push_back({position});
  }
  Vote(layer_idx, *rows, position);
  if (m_.name == "kvzip" && position + 1 == m_.n_prompt) {
    auto& heads = entries_[layer_idx];
    for (size_t g = 0; g < heads.size(); ++g) {
      for (size_t e = 0; e < given_votes_[layer_idx][g].size(); ++e) {
        heads[g][e].votes = given_votes_[layer_idx][g][e];
      }
    }
  }
  const int n_entries = static_cast<int>(entries_[layer_idx][0].size());
  if (IsPrunePoint(position + 1, n_entries)) Prune(layer_idx, position + 1, rows);
}

std::vector<int> RetainLiterally::Positions(int layer_idx, int kv_head_idx) const {
  std::vector<int> positions;
  for (const Entry& e : entries_[layer_idx][kv_head_idx]) positions.push_back(e.position);
  return positions;
}

// Positions kept of n, sinks included.
int RetainLiterally::Budget(int n_tokens) const {
  const int n = m_.of_prompt ? m_.n_prompt : n_tokens;
  return m_.keep > 0 ? static_cast<int>(std::ceil(m_.keep * n - 1e-9)) : m_.budget;
}

// Of these the newest that stay whatever their votes.
int RetainLiterally::Newest(int n_tokens) const {
  const int recent = m_.recent > 0
                         ? static_cast<int>(std::floor(m_.recent * Budget(n_tokens) + 1e-9))
                         : m_.n_recent;
  return std::max(recent, 1);
}

bool RetainLiterally::IsPrunePoint(int n_tokens, int n_entries) const {
  if (n_tokens == m_.n_prompt) return true;
  if (n_tokens < m_.n_prompt) {
    return m_.run > 0 && n_tokens > m_.n_sink && (n_tokens - m_.n_sink) % m_.run == 0;
  }
  if (m_.prompt_only) return false;
  if (m_.slack > 0) {
    const int budget = Budget(n_tokens) - m_.n_sink, excess = n_entries - budget;
    return excess >= 64 && excess >= m_.slack * budget && (1 + m_.slack) * m_.keep < 1;
  }
  return (n_tokens - m_.n_prompt) % m_.interval == 0;
}

double RetainLiterally::Temperature(int position) const {
  if (position < m_.n_prompt) return m_.tau_init;
  const double step = (m_.tau_end - m_.tau_init) / m_.n_generated;
  return m_.tau_init + (position - m_.n_prompt + 1) * step;
}

void RetainLiterally::Vote(int layer_idx, const ReferenceRows& rows, int position) {
  auto& heads = entries_[layer_idx];
  const size_t group = rows.scores.size() / heads.size();
  const int n_sinks = std::min(position + 1, m_.n_sink);
  const bool votes =
      m_.name == "h2o" || m_.name == "mas" || m_.name == "keyformer" || m_.name == "tova" ||
      (m_.name == "snapkv" && position < m_.n_prompt && position >= m_.n_prompt - m_.n_recent);
  for (size_t g = 0; votes && g < heads.size(); ++g) {
    for (Entry& e : heads[g]) {
      if (m_.name == "tova") e.votes = 0;
    }
    for (size_t h = g * group; h < (g + 1) * group; ++h) {
      std::vector<double> scores = rows.scores[h];
      if (m_.name == "keyformer") {
        scores.erase(scores.begin(), scores.begin() + n_sinks);
        if (scores.empty()) continue;
        for (size_t e = 0; e < scores.size(); ++e) {
          scores[e] += GumbelNoise(layer_idx, static_cast<int>(h), position, heads[g][e].position);
          scores[e] /= Temperature(position);
        }
        const std::vector<double> weights = Softmax(scores);
        for (size_t e = 0; e < weights.size(); ++e) heads[g][e].votes += weights[e];
      } else {
        const std::vector<double>& weights = rows.weights[h];
        for (size_t e = 0; e < heads[g].size(); ++e) heads[g][e].votes += weights[n_sinks + e];
      }
    }
  }
}

void RetainLiterally::Prune(int layer_idx, int n_tokens, ReferenceRows* rows) {
  auto& heads = entries_[layer_idx];
  const int recent = Newest(n_tokens);
  const size_t n_of_all = std::max(Budget(n_tokens) - m_.n_sink, m_.recent > 0 ? 1 : recent);

  // Votes that decide, per head: pooled, or summed over the heads of the layer.
  std::vector<std::vector<double>> votes;
  for (const auto& head : heads) {
    std::vector<double> own;
    for (size_t e = 0; e < head.size(); ++e) {
      double sum = 0;
      for (int j = -(m_.kernel / 2); j <= m_.kernel / 2; ++j) {
        const int at = static_cast<int>(e) + j;
        if (at >= 0 && at < static_cast<int>(head.size())) sum += head[at].votes;
      }
      // Every query from the entry's own position on has seen it.
      const int n_queries = m_.name == "mas" ? n_tokens - head[e].position : 1;
      own.push_back(sum / m_.kernel / n_queries);
    }
    votes.push_back(own);
  }
  for (size_t g = 1; m_.shared && g < votes.size(); ++g) {
    for (size_t e = 0; e < votes[0].size(); ++e) votes[0][e] += votes[g][e];
  }
  for (size_t g = 1; m_.shared && g < votes.size(); ++g) votes[g] = votes[0];

  for (size_t g = 0; g < heads.size(); ++g) {
    const size_t n_left = n_left_.empty() ? n_of_all : n_left_[layer_idx][g];
    while (heads[g].size() > n_left) {
      size_t worst = heads[g].size();
      for (size_t e = 0; e < heads[g].size(); ++e) {
        if (heads[g][e].position >= n_tokens - recent) continue;
        if (worst == heads[g].size() || votes[g][e] < votes[g][worst]) worst = e;
      }
      if (worst == heads[g].size()) break;
      heads[g].erase(heads[g].begin() + worst);
      votes[g].erase(votes[g].begin() + worst);
      rows->keys[g].erase(rows->keys[g].begin() + m_.n_sink + worst);
      rows->values[g].erase(rows->values[g].begin() + m_.n_sink + worst);
      rows->positions[g].erase(rows->positions[g].begin() + m_.n_sink + worst);
    }
  }
}

}  // namespace kvlathe::testing
