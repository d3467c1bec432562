#include "reference_decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference_family.h"

namespace kvlathe::testing {
namespace {

double Frequency(const ReferenceRope& rope, int pair, int head_dim) {
  const double f = 1.0 / std::pow(rope.theta, 2.0 * pair / head_dim);
  if (rope.scaling.empty()) return f;
  if (rope.scaling == "linear") return f / rope.factor;
  if (rope.scaling == "longrope") {
    return f / (rope.uses_long_factors ? rope.long_factors : rope.short_factors).at(pair);
  }
  const double wavelength = 2 * M_PI / f;
  if (wavelength < rope.original / rope.high) return f;
  if (wavelength > rope.original / rope.low) return f / rope.factor;
  const double smooth = (rope.original / wavelength - rope.low) / (rope.high - rope.low);
  return (1 - smooth) * f / rope.factor + smooth * f;
}

double Amplitude(const ReferenceRope& rope) {
  if (rope.scaling != "longrope" || rope.max_position <= rope.original) return 1;
  return std::sqrt(1 + std::log(rope.max_position / rope.original) / std::log(rope.original));
}

Vector TimesMatrix(const Vector& x, const Matrix& m) {
  Vector y(m.at(0).size(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j) y[j] += x[i] * m[i][j];
  }
  return y;
}

// x, or x plus sign times an offset that is not empty.
Vector Shifted(Vector x, const Vector& offset, double sign) {
  for (size_t i = 0; i < offset.size(); ++i) x[i] += sign * offset[i];
  return x;
}

// x without the channel that decides.
Vector WithoutDecision(const ReferenceModel& m, Vector x) {
  if (m.dmc.has_value()) x[m.dmc->is_last ? m.head_dim - 1 : 0] = 0;
  return x;
}

bool SeesEverything(const ReferenceModel& m, int layer) {
  return m.whole_every > 0 && (layer + 1) % m.whole_every == 0;
}

// A query or key of one head at its position.
Vector Rotated(const ReferenceModel& m, int layer, const Vector& x, int position) {
  const Vector y = RotateRow(RopeOf(m, layer), m.rotary_dim, WithoutDecision(m, x), position);
  return m.dmc.has_value() && m.dmc->zeroes_after_rope ? WithoutDecision(m, y) : y;
}

// The first of the heads that share latents with head g, and how many they are.
struct HeadGroup {
  int first = 0, n = 1;
};
HeadGroup GroupOf(const ReferenceModel& m, const ReferenceBasis* basis, int g) {
  if (basis == nullptr) return {g, 1};
  const int n = static_cast<int>(basis->value.size()) / m.head_dim;
  return {g / n * n, n};
}

// Row j of the heads of a group, side by side.
Vector JoinedRow(const std::vector<Matrix>& heads, const HeadGroup& group, int j) {
  Vector joined;
  for (int g = group.first; g < group.first + group.n; ++g) {
    joined.insert(joined.end(), heads[g][j].begin(), heads[g][j].end());
  }
  return joined;
}

// What rows of one head stand for, by position, with the stored rows that it was made of: mapped
// back once as long as they stay what they are, not again for every later token.
class MappedBack {
 public:
  template <typename Map>
  const Vector& Of(Vector stored, int position, const Map& map) {
    if (position >= std::ssize(rows_)) rows_.resize(position + 1);
    Row& row = rows_[position];
    if (row.mapped.empty() || row.stored != stored) {
      row.mapped = map(stored);
      row.stored = std::move(stored);
    }
    return row.mapped;
  }

 private:
  struct Row {
    Vector stored, mapped;
  };
  std::vector<Row> rows_;
};

// By KV head of a layer.
struct LayerMappedBack {
  std::vector<MappedBack> keys, values;
};

// Scaled scores of a query head with the rows `seen` of its KV head.
Vector ScoresOf(const ReferenceModel& m, const ReferenceBasis* basis, int n_sink, int g,
                const Vector& q, const std::vector<int>& seen, const ReferenceRows& rows,
                MappedBack* keys) {
  const HeadGroup group = GroupOf(m, basis, g);
  const bool is_latent = basis != nullptr && !basis->key_way_back.empty();
  // q^T of a stored key: (q D) k~ + q^T offset.
  const bool is_rotated = basis != nullptr && !is_latent;
  const Vector rotated = is_rotated ? TimesMatrix(q, basis->query) : Vector();
  const double of_offset =
      is_rotated && !basis->key_offset.empty() ? Dot(q, basis->key_offset) : 0.0;
  Vector scores;
  for (const int j : seen) {
    double score = 0;
    if (basis == nullptr || j < n_sink) {
      score = Dot(q, rows.keys[g][j]);
    } else if (is_latent) {
      const int position = rows.positions[g][j];
      const auto key_of = [&](const Vector& latent) {
        const Vector k = Shifted(TimesMatrix(latent, basis->key_way_back), basis->key_offset, 1);
        return Rotated(m, rows.layer_idx, k, position);
      };
      score = Dot(q, keys->Of(JoinedRow(rows.keys, group, j), position, key_of));
    } else {
      score = Dot(rotated, JoinedRow(rows.keys, group, j)) + of_offset;
    }
    const ReferenceFeatures& f = m.features;
    score *= f.score_scale > 0 ? f.score_scale
                               : 1 / std::sqrt(m.query_scalar > 0 ? m.query_scalar : m.head_dim);
    scores.push_back(f.score_cap > 0 ? f.score_cap * std::tanh(score / f.score_cap) : score);
  }
  return scores;
}

// Output of all heads for the newest token, back in the width of W_O's input.
Vector Attend(const ReferenceModel& m, int layer, const std::vector<ReferenceBasis>& bases,
              int n_sink, const Vector& q_all, int position, ReferenceRows& rows,
              LayerMappedBack* mapped) {
  Vector out;
  rows.queries.clear();
  rows.scores.clear();
  rows.weights.clear();
  for (int h = 0; h < m.n_heads; ++h) {
    const int g = h / (m.n_heads / m.n_kv_heads);
    const bool decides = m.query_channel.has_value() && h == g * (m.n_heads / m.n_kv_heads);
    Vector q = Slice(q_all, h, m.head_dim);
    if (decides) q.back() = 0;
    q = Rotated(m, layer, q, position);
    if (decides && m.query_channel->zeroes_after_rope) q.back() = 0;
    const Vector weights = TurnedQueryWeights(m, LayerPrefix(m, layer));
    for (size_t i = 0; i < weights.size(); ++i) q[i] *= weights[i];
    rows.queries.push_back(q);
    const ReferenceBasis* basis = bases.empty() ? nullptr : &bases[layer * m.n_kv_heads + g];
    const HeadGroup group = GroupOf(m, basis, g);
    std::vector<int> seen;
    for (int j = 0; j < static_cast<int>(rows.keys[g].size()); ++j) {
      const bool sees_all = m.window == 0 || SeesEverything(m, layer);
      if (sees_all || j < m.window_spares || j > position - m.window) seen.push_back(j);
    }
    Vector scores = ScoresOf(m, basis, n_sink, g, q, seen, rows, &mapped->keys[g]);
    rows.scores.push_back(scores);
    double max = scores[0], sum = 0;
    for (double s : scores) max = std::max(max, s);
    for (double& s : scores) sum += s = std::exp(s - max);
    const auto sinks = m.tensors.find(LayerPrefix(m, layer) + "self_attn.sinks");
    if (sinks != m.tensors.end()) sum += std::exp(sinks->second[h] - max);
    for (double& s : scores) s /= sum;
    rows.weights.push_back(scores);
    Vector o(m.head_dim, 0.0);
    const auto value_of = [&](const Vector& stored) {
      if (basis == nullptr) return stored;
      return Shifted(TimesMatrix(stored, basis->output), basis->value_offset, 1);
    };
    for (size_t s = 0; s < seen.size(); ++s) {
      const Vector& v = mapped->values[g].Of(JoinedRow(rows.values, group, seen[s]),
                                             rows.positions[g][seen[s]], value_of);
      for (int i = 0; i < m.head_dim; ++i) o[i] += scores[s] * v[i];
    }
    out.insert(out.end(), o.begin(), o.end());
  }
  return out;
}

// What decides, of one head: its key's channel and the mean of its queries'.
struct Decision {
  double key = 0, query = 0;
};
Decision DecisionOf(const ReferenceModel& m, const Qkv& qkv, int g) {
  const int group = m.n_heads / m.n_kv_heads, channel = m.dmc->is_last ? m.head_dim - 1 : 0;
  Decision decision = {Slice(qkv.k, g, m.head_dim)[channel], 0};
  for (int h = g * group; h < (g + 1) * group; ++h) {
    decision.query += Slice(qkv.q, h, m.head_dim)[channel] / group;
  }
  return decision;
}

struct KeyValue {
  Vector key, value;
};

// Codes of 8 bits in steps of a sixteenth of the least scale with which 127 of them reach all of
// the row; scales have a byte, 4 bits of it behind the leading one.
void CodeRow(Vector* row) {
  double most = 0, scale = 0;
  for (const double y : *row) most = std::max(most, std::abs(y));
  for (int byte = 0; byte < 256 && (byte == 0 || scale * 127 / 16 < most); ++byte) {
    scale = std::ldexp(1 + byte % 16 / 16.0, byte / 16 - 11);
  }
  for (double& y : *row) y = std::clamp(std::nearbyint(y / scale * 16), -128.0, 127.0) / 16 * scale;
}

// Joins the newest token to the open entry of its head, or opens another; what it holds then.
KeyValue Merge(const ReferenceModel& m, const ReferenceMerging& merging, const Qkv& qkv, int g,
               int n_before, std::vector<ReferenceRows::Merged>* open) {
  bool joins = false;
  double weight = 1;
  if (merging.every > 0) {
    joins = n_before % merging.every != 0;
  } else {
    const Decision decision = DecisionOf(m, qkv, g);
    joins = decision.key - m.dmc->offset > 0;
    weight = 1 / (1 + std::exp(-(decision.query + m.dmc->weight_offset))) + m.dmc->epsilon;
  }
  if (!joins) open->clear();
  open->push_back(
      {weight, WithoutDecision(m, Slice(qkv.k, g, m.head_dim)), Slice(qkv.v, g, m.head_dim)});
  size_t first = 0;
  if (merging.window > 0 && open->size() > static_cast<size_t>(merging.window)) {
    first = open->size() - merging.window;
  }
  KeyValue mean = {Vector(m.head_dim), Vector(m.head_dim)};
  double sum = 0;
  for (size_t i = first; i < open->size(); ++i) sum += (*open)[i].weight;
  for (size_t i = first; i < open->size(); ++i) {
    for (int d = 0; d < m.head_dim; ++d) {
      mean.key[d] += (*open)[i].weight / sum * (*open)[i].key[d];
      mean.value[d] += (*open)[i].weight / sum * (*open)[i].value[d];
    }
  }
  return mean;
}

// What a cache does to rows.
struct Storage {
  const std::vector<ReferenceBasis>& bases;
  int n_sink = 0;
  const ReferenceMerging* merging = nullptr;
};

// Of the heads of a group side by side: their keys, at their position or before it, or values, less
// the offsets.
Vector JoinedInput(const ReferenceModel& m, int layer, const Storage& storage,
                   const HeadGroup& group, const std::function<Vector(int head)>& row_of,
                   Vector ReferenceBasis::*offset) {
  Vector joined;
  for (int g = group.first; g < group.first + group.n; ++g) {
    const Vector row = Shifted(row_of(g), storage.bases[layer * m.n_kv_heads + g].*offset, -1);
    joined.insert(joined.end(), row.begin(), row.end());
  }
  return joined;
}

// Appends the newest token's rows, or makes them part of the last ones.
void Store(const ReferenceModel& m, int layer, const Storage& storage, const Qkv& qkv, int position,
           ReferenceRows* rows) {
  const auto& [bases, n_sink, merging] = storage;
  for (int g = 0; g < m.n_kv_heads; ++g) {
    const ReferenceBasis* basis = bases.empty() ? nullptr : &bases[layer * m.n_kv_heads + g];
    KeyValue row = {Slice(qkv.k, g, m.head_dim), Slice(qkv.v, g, m.head_dim)};
    if (merging != nullptr && position >= n_sink) {
      row = Merge(m, *merging, qkv, g, position - n_sink, &rows->open[g]);
      if (rows->open[g].size() > 1) {
        rows->keys[g].pop_back();
        rows->values[g].pop_back();
        rows->positions[g].pop_back();
      }
    }
    const bool is_plain = basis == nullptr || position < n_sink;
    const bool is_latent = !is_plain && !basis->key_way_back.empty();
    const HeadGroup group = GroupOf(m, basis, g);
    const auto key_of = [&](int head) {
      const Vector k = head == g ? row.key : Slice(qkv.k, head, m.head_dim);
      return is_latent ? k : Rotated(m, layer, k, position);
    };
    const auto value_of = [&](int head) {
      return head == g ? row.value : Slice(qkv.v, head, m.head_dim);
    };
    rows->positions[g].push_back(position);
    rows->keys[g].push_back(is_plain ? key_of(g)
                                     : TimesMatrix(JoinedInput(m, layer, storage, group, key_of,
                                                               &ReferenceBasis::key_offset),
                                                   basis->key));
    rows->values[g].push_back(basis == nullptr
                                  ? row.value
                                  : TimesMatrix(JoinedInput(m, layer, storage, group, value_of,
                                                            &ReferenceBasis::value_offset),
                                                basis->value));
    if (is_plain || !basis->codes_rows) continue;
    for (Vector* stored : {&rows->keys[g].back(), &rows->values[g].back()}) CodeRow(stored);
  }
}

}  // namespace

const ReferenceRope& RopeOf(const ReferenceModel& m, int layer) {
  static const ReferenceRope still = {.is_still = true};
  const int every = m.features.still_every;
  if (every > 0 && (layer + 1) % every == 0) return still;
  if (m.whole_every == 0) return m.rope;
  if (!SeesEverything(m, layer)) return m.local_rope;
  return m.model_type == "exaone4" ? still : m.rope;
}

Vector RotateRow(const ReferenceRope& rope, int n_channels, const Vector& x, int position) {
  if (rope.is_still) return x;
  const int half = n_channels / 2;
  const double amplitude = Amplitude(rope);
  Vector y = x;
  for (int i = 0; i < half; ++i) {
    const double angle = position * Frequency(rope, i, n_channels);
    const double c = amplitude * std::cos(angle), s = amplitude * std::sin(angle);
    y[i] = x[i] * c - x[i + half] * s;
    y[i + half] = x[i + half] * c + x[i] * s;
  }
  return y;
}

Vector RotateRowBack(const ReferenceRope& rope, int n_channels, const Vector& x, int position) {
  if (rope.is_still) return x;
  Vector y = RotateRow(rope, n_channels, x, -position);
  for (int i = 0; i < n_channels; ++i) y[i] /= Amplitude(rope) * Amplitude(rope);
  return y;
}

void MapKeys(const ReferenceModel& m, int layer, const std::vector<ReferenceBasis>& bases,
             int n_sink, ReferenceRows* rows) {
  for (int g = 0; g < m.n_kv_heads; ++g) {
    const ReferenceBasis& basis = bases[layer * m.n_kv_heads + g];
    for (size_t j = n_sink; j < rows->keys[g].size(); ++j) {
      rows->keys[g][j] = TimesMatrix(Shifted(rows->keys[g][j], basis.key_offset, -1), basis.key);
    }
  }
}

Matrix ReferenceLogits(const ReferenceModel& m, const std::vector<int>& ids,
                       const std::vector<ReferenceBasis>& bases, int n_sink,
                       const ReferenceLoss& loss, const ReferenceMerging* merging,
                       int n_whole_keys) {
  std::vector<ReferenceRows> rows(m.n_layers);
  for (int l = 0; l < m.n_layers; ++l) {
    ReferenceRows& r = rows[l];
    r.layer_idx = l;
    r.keys.resize(m.n_kv_heads);
    r.positions.resize(m.n_kv_heads);
    r.values.resize(m.n_kv_heads);
    r.open.resize(m.n_kv_heads);
  }
  const std::vector<MappedBack> none(m.n_kv_heads);
  std::vector<LayerMappedBack> mapped(m.n_layers, {none, none});
  Matrix logits;
  for (size_t t = 0; t < ids.size(); ++t) {
    const int position = static_cast<int>(t);
    Vector x = Embed(m, ids[t], position);
    for (int l = 0; l < m.n_layers; ++l) {
      const std::string layer = LayerPrefix(m, l);
      const Vector before = x;
      rows[l].stream = x;
      const Qkv qkv = ProjectQkv(m, layer, AttentionNorm(m, layer, x));
      rows[l].channel.clear();
      for (int g = 0; g < m.n_kv_heads; ++g) {
        const int first = g * (m.n_heads / m.n_kv_heads);
        rows[l].channel.push_back(Slice(qkv.q, first, m.head_dim).back());
      }
      const int n_plain_keys = position < n_whole_keys ? n_whole_keys : n_sink;
      Store(m, l, {bases, n_plain_keys, merging}, qkv, position, &rows[l]);
      const Vector o = AddedByAttention(
          m, layer, Attend(m, l, bases, n_plain_keys, qkv.q, position, rows[l], &mapped[l]));
      if (loss) loss(l, &rows[l]);
      for (int i = 0; i < m.hidden; ++i) x[i] += m.features.residual_scale * o[i];
      const Vector mlp = Mlp(m, layer, MlpNorm(m, layer, before, x));
      for (int i = 0; i < m.hidden; ++i) x[i] += m.features.residual_scale * mlp[i];
    }
    logits.push_back(Logits(m, x));
  }
  return logits;
}

double RootMeanSquare(const Matrix& a, const Matrix& b) {
  double sum = 0, n = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i, ++n) {
      sum += (a[t][i] - b[t][i]) * (a[t][i] - b[t][i]);
    }
  }
  return std::sqrt(sum / n);
}

Matrix Columns(const Matrix& m, size_t begin, size_t end) {
  Matrix columns;
  for (const auto& row : m) columns.emplace_back(row.begin() + begin, row.begin() + end);
  return columns;
}

std::vector<float> Flat(const Matrix& m) {
  std::vector<float> flat;
  for (const auto& row : m) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

}  // namespace kvlathe::testing
