#include "model/stored/weight_names.h"

#include <algorithm>
#include <string_view>
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

WeightNames::WeightNames(const ModelConfig& config, const TensorSource& source)
    : config_(config), table_(TableOf(config, source)) {}

std::string WeightNames::embedding() const {
  return fmt::format("{}{}.weight", table_.outside, table_.embedding);
}

std::string WeightNames::position_embedding() const {
  return fmt::format("{}{}.weight", table_.outside, table_.positions);
}

Projection WeightNames::output_head() const {
  const std::string tensor = config_.tie_word_embeddings
                                 ? fmt::format("{}{}", table_.outside, table_.embedding)
                                 : table_.head;
  return {tensor, config_.vocab_size, config_.hidden_dim, false, {{0, config_.vocab_size}}};
}

std::string WeightNames::final_norm() const {
  return fmt::format("{}{}", table_.outside, table_.final_norm);
}

std::string WeightNames::attn_norm(int layer_idx) const {
  return Layer(layer_idx, table_.attn_norm);
}

std::string WeightNames::ffn_norm(int layer_idx) const { return Layer(layer_idx, table_.ffn_norm); }

std::vector<VectorPart> WeightNames::q_norm(int layer_idx) const {
  return QkNorm(layer_idx, table_.q_norm, config_.n_heads);
}

std::vector<VectorPart> WeightNames::k_norm(int layer_idx) const {
  return QkNorm(layer_idx, table_.k_norm, config_.n_kv_heads);
}

std::vector<VectorPart> WeightNames::QkNorm(int layer_idx, const char* suffix, int n_heads) const {
  const QkNormConfig::Over over = config_.norms.of_qk->over;
  const std::string tensor = Layer(layer_idx, suffix);
  const int64_t d = config_.head_dim;
  if (over == QkNormConfig::Over::kHead) return {{tensor + ".weight", d, 0, RotatingRows(0, 1)}};
  if (!table_.has_norm_of_each_head) {
    const int64_t n_rows = over == QkNormConfig::Over::kHeadOwn ? n_heads : 0;
    return {{tensor + ".weight", n_heads * d, n_rows, RotatingRows(0, n_heads)}};
  }
  std::vector<VectorPart> parts;
  for (int h = 0; h < n_heads; ++h) {
    parts.push_back({fmt::format("{}.norms.{}.weight", tensor, h), d, 0, RotatingRows(0, 1)});
  }
  return parts;
}

std::string WeightNames::xielu(int layer_idx) const { return Layer(layer_idx, table_.xielu); }

std::string WeightNames::sink_logits(int layer_idx) const { return Layer(layer_idx, table_.sinks); }

std::string WeightNames::attn_out_norm(int layer_idx) const {
  return Layer(layer_idx, table_.attn_out_norm);
}

std::string WeightNames::ffn_out_norm(int layer_idx) const {
  return Layer(layer_idx, table_.ffn_out_norm);
}

std::string WeightNames::Layer(int layer_idx, const char* suffix) const {
  return fmt::format("{}{}.{}", table_.layers, layer_idx, suffix);
}

Projection WeightNames::Whole(int layer_idx, const char* suffix, int64_t n_out,
                              int64_t n_in) const {
  return {Layer(layer_idx, suffix), n_out, n_in, table_.is_transposed, {{0, n_out}}};
}

Projection WeightNames::FusedQkv(int layer_idx, Role role) const {
  const int64_t d = config_.head_dim, n_kv = config_.n_kv_heads, group = config_.gqa_group();
  const int64_t qk_rows = (config_.n_heads + n_kv) * d, n_stored = qk_rows + n_kv * d;
  Projection p = Whole(layer_idx, table_.qkv, n_stored, config_.hidden_dim);
  if (table_.fused == WeightTable::Fused::kQueriesKeysValues) {
    p.runs = role == Role::kQk ? RotatingRows(0, config_.n_heads + config_.n_kv_heads)
                               : std::vector<Projection::Run>{{qk_rows, n_kv * d}};
    return p;
  }
  // Per KV head its query heads, its key, its value.
  p.runs.clear();
  const int64_t stride = (group + 2) * d;
  const auto add = [&](const std::vector<Projection::Run>& runs) {
    p.runs.insert(p.runs.end(), runs.begin(), runs.end());
  };
  if (role == Role::kValue) {
    for (int64_t g = 0; g < n_kv; ++g) add({{g * stride + (group + 1) * d, d}});
    return p;
  }
  for (int64_t g = 0; g < n_kv; ++g) add(RotatingRows(g * stride, static_cast<int>(group)));
  for (int64_t g = 0; g < n_kv; ++g) add(RotatingRows(g * stride + group * d, 1));
  return p;
}

std::vector<Projection::Run> WeightNames::RotatingRows(int64_t begin, int n_heads) const {
  const int64_t d = config_.head_dim, n_rotating = config_.rope_dim();
  if (!config_.has_neighbour_pairs) return {{begin, n_heads * d}};
  std::vector<Projection::Run> runs;
  for (int h = 0; h < n_heads; ++h) {
    for (int64_t row = 0; row < n_rotating; ++row) {
      const int64_t half = row / (n_rotating / 2), pair = row % (n_rotating / 2);
      runs.push_back({begin + h * d + 2 * pair + half, 1});
    }
    if (n_rotating < d) runs.push_back({begin + h * d + n_rotating, d - n_rotating});
  }
  return runs;
}

Projection WeightNames::RotatingHeads(int layer_idx, const char* suffix, int n_heads) const {
  Projection p = Whole(layer_idx, suffix, int64_t{n_heads} * config_.head_dim, config_.hidden_dim);
  p.runs = RotatingRows(0, n_heads);
  return p;
}

std::vector<Projection> WeightNames::qk(int layer_idx) const {
  if (*table_.qkv != 0) return {FusedQkv(layer_idx, Role::kQk)};
  return {RotatingHeads(layer_idx, table_.q, config_.n_heads),
          RotatingHeads(layer_idx, table_.k, config_.n_kv_heads)};
}

Projection WeightNames::v(int layer_idx) const {
  if (*table_.qkv != 0) return FusedQkv(layer_idx, Role::kValue);
  return Whole(layer_idx, table_.v, int64_t{config_.n_kv_heads} * config_.head_dim,
               config_.hidden_dim);
}

Projection WeightNames::o(int layer_idx) const {
  const int64_t n_in = int64_t{config_.n_heads} * config_.head_dim;
  return Whole(layer_idx, table_.o, config_.hidden_dim, n_in);
}

std::vector<Projection> WeightNames::mlp_in(int layer_idx) const {
  const int64_t ffn = config_.ffn_dim, hidden = config_.hidden_dim;
  if (*table_.gate == 0) return {Whole(layer_idx, table_.up, config_.mlp_rows(), hidden)};
  return {Whole(layer_idx, table_.gate, ffn, hidden), Whole(layer_idx, table_.up, ffn, hidden)};
}

Projection WeightNames::mlp_out(int layer_idx) const {
  return Whole(layer_idx, table_.down, config_.hidden_dim, config_.ffn_dim);
}

Projection WeightNames::router(int layer_idx) const {
  const int64_t n_experts = config_.experts->n_experts;
  return {Layer(layer_idx, table_.experts.router),
          n_experts,
          config_.hidden_dim,
          false,
          {{0, n_experts}}};
}

std::string WeightNames::choice_bias(int layer_idx) const {
  return Layer(layer_idx, table_.experts.choice_bias);
}

Projection WeightNames::OfExpert(int layer_idx, int expert_idx, const char* name, int64_t n_out,
                                 int64_t n_in) const {
  const bool is_stacked = std::string_view(name).find("{}") == std::string_view::npos;
  return {.tensor = Layer(layer_idx, fmt::format(fmt::runtime(name), expert_idx).c_str()),
          .n_stored = n_out,
          .n_in = n_in,
          .is_transposed = table_.experts.is_transposed,
          .runs = {{0, n_out}},
          .n_stacked = is_stacked ? config_.experts->n_experts : 0,
          .stacked_idx = is_stacked ? expert_idx : 0,
          .has_bare_name = table_.experts.has_bare_names};
}

std::vector<Projection> WeightNames::expert_in(int layer_idx, int expert_idx) const {
  const ExpertTable& t = table_.experts;
  const int64_t ffn = config_.experts->ffn_dim, hidden = config_.hidden_dim;
  const auto of = [&](const char* name, int64_t n_out) {
    return OfExpert(layer_idx, expert_idx, name, n_out, hidden);
  };
  if (!config_.has_gate()) return {of(t.up, ffn)};
  if (*t.gate != 0) return {of(t.gate, ffn), of(t.up, ffn)};
  Projection both = of(t.up, 2 * ffn);
  if (!t.takes_turns) return {both};
  both.runs.clear();
  for (int64_t i = 0; i < 2 * ffn; ++i) both.runs.push_back({i % ffn * 2 + i / ffn, 1});
  return {both};
}

Projection WeightNames::expert_out(int layer_idx, int expert_idx) const {
  return OfExpert(layer_idx, expert_idx, table_.experts.down, config_.hidden_dim,
                  config_.experts->ffn_dim);
}

std::vector<Projection> WeightNames::shared_in(int layer_idx) const {
  const ExpertTable& t = table_.experts;
  const int64_t ffn = config_.experts->shared_ffn_dim, hidden = config_.hidden_dim;
  if (!config_.has_gate()) return {Whole(layer_idx, t.shared_up, ffn, hidden)};
  if (*t.shared_gate == 0) return {Whole(layer_idx, t.shared_up, 2 * ffn, hidden)};
  return {Whole(layer_idx, t.shared_gate, ffn, hidden), Whole(layer_idx, t.shared_up, ffn, hidden)};
}

Projection WeightNames::shared_out(int layer_idx) const {
  return Whole(layer_idx, table_.experts.shared_down, config_.hidden_dim,
               config_.experts->shared_ffn_dim);
}

std::string WeightNames::shared_router(int layer_idx) const {
  return Layer(layer_idx, table_.experts.shared_router) + ".weight";
}

}  // namespace kvlathe
