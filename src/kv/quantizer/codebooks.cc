#include "kv/quantizer/codebooks.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "analysis/codebooks/codebook_fit.h"
#include "analysis/statistics/gram.h"
#include "analysis/statistics/joint_rows.h"
#include "base/check.h"
#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kPoints = 256;            // values of a channel, of equal probability
constexpr int kDrawnTokens = 256;       // of V, per layer
constexpr double kWidestTail = 3.2e-5;  // of a normal channel without outliers: 4 deviations
constexpr float kNarrowest = 1e-6f;     // of the ranges of constant channels
constexpr float kEvenRange = 4;

double NormalQuantile(double share) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? low : high) = middle;
  }
  return low;
}

double ShareOfPoint(int i) { return (i + 0.5) / kPoints; }

// What is known of a stored channel.
struct Channel {
  std::vector<float> points;  // [kPoints] ascending
  float low, high;            // quantiles between which elements have codes
};

Channel ChannelOfHistogram(const ChannelHistograms& histograms, int64_t channel, double tail) {
  Channel c;
  c.low = histograms.Percentile(channel, tail);
  c.high = histograms.Percentile(channel, 1 - tail);
  for (int i = 0; i < kPoints; ++i) {
    c.points.push_back(histograms.Percentile(channel, ShareOfPoint(i)));
  }
  return c;
}

// Normal channels share the quantiles of one with mean 0 and deviation 1.
class NormalChannels {
 public:
  explicit NormalChannels(double tail) : high_(NormalQuantile(1 - std::max(tail, kWidestTail))) {
    for (int i = 0; i < kPoints; ++i) points_.push_back(NormalQuantile(ShareOfPoint(i)));
  }
  Channel Make(double mean, double variance) const {
    const double deviation = std::sqrt(std::max(variance, 0.0));
    Channel c{.low = static_cast<float>(mean - high_ * deviation),
              .high = static_cast<float>(mean + high_ * deviation)};
    for (const double z : points_) c.points.push_back(static_cast<float>(mean + z * deviation));
    return c;
  }

 private:
  double high_;
  std::vector<double> points_;
};

// Second moments of a head's rows along a direction.
struct Direction {
  const std::vector<float>& columns;  // [head_dim, n_columns] row-major
  int n_columns;
  int idx;
  double at(int row) const { return columns[int64_t{row} * n_columns + idx]; }
};

double DotAlong(const Direction& direction, std::span<const float> row) {
  double sum = 0;
  for (int i = 0; i < std::ssize(row); ++i) sum += direction.at(i) * row[i];
  return sum;
}

template <typename T>
double SquareAlong(const Direction& direction, const T* moments, int head_dim) {
  double sum = 0;
  for (int i = 0; i < head_dim; ++i) {
    double row = 0;
    for (int j = 0; j < head_dim; ++j) row += moments[int64_t{i} * head_dim + j] * direction.at(j);
    sum += row * direction.at(i);
  }
  return sum;
}

// One layer of the model at work.
class LayerFit {
 public:
  LayerFit(const CodebookInputs& inputs, const NormalChannels& normal, int layer_idx)
      : in_(inputs), s_(*inputs.statistics), normal_(normal), layer_idx_(layer_idx) {}

  LayerCodebooks Fit() {
    LayerCodebooks layer;
    QuotientHistogram keys, values;
    for (int g = 0; g < s_.shape.n_kv_heads; ++g) layer.key_scales.push_back(AddKeys(g, &keys));
    AddValues(&values);
    layer.k = keys.Fit(in_.bits, in_.matches_moments);
    layer.v = values.Fit(in_.bits, in_.matches_moments);
    return layer;
  }

 private:
  int head_dim() const { return s_.shape.head_dim; }
  int64_t head_idx(int kv_head) const { return s_.HeadIndex(layer_idx_, kv_head); }
  const HeadBasis& Basis(int kv_head) const { return in_.basis->head(layer_idx_, kv_head); }

  // `offset` is what the basis subtracts from rows, or empty.
  Channel NormalAlong(const Direction& direction, const HeadMoments& moments, int kv_head,
                      std::span<const float> offset) const {
    const size_t n = head_dim();
    const double mean =
        DotAlong(direction, {moments.mean.data() + head_idx(kv_head) * head_dim(), n});
    const float* const covariance =
        moments.covariance.data() + head_idx(kv_head) * head_dim() * head_dim();
    return normal_.Make(mean - DotAlong(direction, offset),
                        SquareAlong(direction, covariance, head_dim()));
  }
  int RankK(int kv_head) const { return in_.basis == nullptr ? head_dim() : Basis(kv_head).rank_k; }
  int RankV(int kv_head) const { return in_.basis == nullptr ? head_dim() : Basis(kv_head).rank_v; }
  Channel KeyChannel(int kv_head, int r) const {
    if (in_.basis == nullptr) {
      return ChannelOfHistogram(s_.k_pre_histograms, head_idx(kv_head) * head_dim() + r,
                                in_.outliers / 2);
    }
    const HeadBasis& basis = Basis(kv_head);
    if (in_.histograms != nullptr) {
      return ChannelOfHistogram(in_.histograms->k, head_idx(kv_head) * head_dim() + r,
                                in_.outliers / 2);
    }
    return NormalAlong({basis.key_basis, basis.rank_k, r},
                       basis.key_way_back.empty() ? s_.k_post : s_.k_pre, kv_head,
                       basis.key_offset);
  }
  Channel ValueChannel(int kv_head, int r) const {
    if (in_.basis == nullptr) {
      return ChannelOfHistogram(s_.v_histograms, head_idx(kv_head) * head_dim() + r, 0);
    }
    if (in_.histograms != nullptr) {
      return ChannelOfHistogram(in_.histograms->v, head_idx(kv_head) * head_dim() + r, 0);
    }
    return NormalAlong({Basis(kv_head).value_basis, RankV(kv_head), r}, s_.v, kv_head,
                       Basis(kv_head).value_offset);
  }

  // The mean square of what multiplies the channel in scores, over the group of query heads, whose
  // second moments about zero are `gram`.
  double QuerySquare(const std::vector<double>& gram, int kv_head, int r) const {
    if (in_.basis != nullptr && Basis(kv_head).key_way_back.empty()) {
      return SquareAlong({Basis(kv_head).query_basis, RankK(kv_head), r}, gram.data(), head_dim());
    }
    const auto square = [&](int i) { return gram[int64_t{i} * head_dim() + i]; };
    // RoPE turns the two channels of a pair into each other: before it, both see their mean.
    const int half = in_.rope_dim / 2;
    const auto square_before_rope = [&](int i) {
      return i >= in_.rope_dim ? square(i) : (square(i % half) + square(i % half + half)) / 2;
    };
    if (in_.basis == nullptr) return square_before_rope(r);
    // A latent moves all channels of its key. What it multiplies is taken for a sum of channels
    // that do not know of each other, as pairs far apart in angle are.
    double sum = 0;
    for (int i = 0; i < head_dim(); ++i) {
      const double back = Basis(kv_head).key_way_back[int64_t{r} * head_dim() + i];
      sum += back * back * square_before_rope(i);
    }
    return sum;
  }

  bool has_gradients() const { return s_.joint.n_tokens > 0; }
  // What an error of 1 in each of `n` channels of a head costs, by the Fisher information of its
  // rows: back(i, r) is what channel r is worth in channel i of the row.
  template <typename Back>
  std::vector<double> PricesOf(const JointMoments& rows, int kv_head, int n,
                               const Back& back) const {
    const int d = head_dim();
    const std::vector<double> fisher =
        SquareOf(rows.fisher, s_.shape, {layer_idx_, kv_head * d, d});
    std::vector<double> prices(n);
    std::vector<float> way(d);
    for (int r = 0; r < n; ++r) {
      for (int i = 0; i < d; ++i) way[i] = back(i, r);
      prices[r] = SquareAlong({way, 1, 0}, fisher.data(), d);
    }
    return prices;
  }
  std::vector<double> KeyPrices(int kv_head) const {
    const int rank = RankK(kv_head), d = head_dim();
    if (!has_gradients()) {
      const std::vector<double> queries =
          GramOf(s_.q_post, head_idx(kv_head), d, s_.shape.gqa_group());
      std::vector<double> prices(rank);
      for (int r = 0; r < rank; ++r) prices[r] = QuerySquare(queries, kv_head, r);
      return prices;
    }
    if (in_.basis == nullptr) {
      return PricesOf(s_.joint.k_pre, kv_head, rank,
                      [](int i, int r) { return i == r ? 1.0f : 0.0f; });
    }
    const HeadBasis& basis = Basis(kv_head);
    if (!basis.key_way_back.empty()) {
      return PricesOf(s_.joint.k_pre, kv_head, rank,
                      [&](int i, int r) { return basis.key_way_back[int64_t{r} * d + i]; });
    }
    return PricesOf(s_.joint.k, kv_head, rank,
                    [&](int i, int r) { return basis.query_basis[int64_t{i} * rank + r]; });
  }
  std::vector<double> ValuePrices(int kv_head) const {
    const int rank = RankV(kv_head), d = head_dim();
    if (!has_gradients()) return std::vector<double>(rank, 1.0);
    return PricesOf(s_.joint.v, kv_head, rank, [&](int i, int r) {
      if (in_.basis == nullptr) return i == r ? 1.0f : 0.0f;
      return Basis(kv_head).output_basis[int64_t{r} * d + i];
    });
  }

  // Returns ranges and offsets of the head.
  std::vector<float> AddKeys(int kv_head, QuotientHistogram* histogram) {
    const int rank = RankK(kv_head);
    std::vector<float> scales(2 * rank);
    const std::vector<double> prices = KeyPrices(kv_head);
    for (int r = 0; r < rank; ++r) {
      const Channel channel = KeyChannel(kv_head, r);
      const float range = std::max((channel.high - channel.low) / 2, kNarrowest);
      const float offset = (channel.high + channel.low) / 2;
      const double weight = prices[r] * range * range;
      for (const float x : channel.points) {
        if (x >= channel.low && x <= channel.high) histogram->Add((x - offset) / range, weight);
      }
      scales[r] = range;
      scales[rank + r] = offset;
    }
    return scales;
  }

  void AddValues(QuotientHistogram* histogram) {
    std::vector<Channel> channels;
    std::vector<double> prices;
    for (int g = 0; g < s_.shape.n_kv_heads; ++g) {
      const std::vector<double> of_head = ValuePrices(g);
      prices.insert(prices.end(), of_head.begin(), of_head.end());
      for (int r = 0; r < RankV(g); ++r) channels.push_back(ValueChannel(g, r));
    }
    const PackedShape shape =
        MakePackedShape({.codec = CodebookCodec{}, .sparse_share = in_.outliers}, {}, {},
                        {.layer_rank_v = static_cast<int>(channels.size())});
    const int n_out = shape.value_outliers();
    Random random(static_cast<uint64_t>(layer_idx_));
    struct Element {
      float x;
      double price;
    };
    std::vector<Element> token(channels.size());
    for (int t = 0; t < kDrawnTokens; ++t) {
      for (size_t i = 0; i < token.size(); ++i) {
        token[i] = {channels[i].points[random.Below(kPoints)], prices[i]};
      }
      std::ranges::sort(token, {}, &Element::x);
      const std::span<const Element> inner(token.data() + n_out, token.size() - 2 * n_out);
      const double low = inner.front().x, high = inner.back().x;
      const double range = std::max((high - low) / 2, double{kNarrowest});
      const double offset = (high + low) / 2;
      for (const auto& [x, price] : inner) {
        histogram->Add((x - offset) / range, price * range * range);
      }
    }
  }

  const CodebookInputs& in_;
  const CalibrationStatistics& s_;
  const NormalChannels& normal_;
  int layer_idx_;
};

}  // namespace

ModelCodebooks FitCodebooks(const CodebookInputs& inputs) {
  KVL_CHECK(inputs.bits >= 2 && inputs.bits <= 4);
  const NormalChannels normal(inputs.outliers / 2);
  ModelCodebooks codebooks;
  for (int l = 0; l < inputs.statistics->shape.n_layers; ++l) {
    codebooks.push_back(LayerFit(inputs, normal, l).Fit());
  }
  return codebooks;
}

ModelCodebooks EvenCodebooks(const CacheLayout& layout) {
  KVL_CHECK(layout.seal.has_value());
  const int n_codes = 1 << KeySide(layout.seal->format.codec).bits;
  Codebook even{.n_codes = n_codes};
  const float step = 2.0f / static_cast<float>(n_codes);
  for (int i = 0; i < n_codes; ++i) {
    even.centroids[i] = (static_cast<float>(i) + 0.5f) * step - 1;
    if (i > 0) even.boundaries[i - 1] = static_cast<float>(i) * step - 1;
  }
  ModelCodebooks codebooks(layout.n_layers, LayerCodebooks{.k = even, .v = even});
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      const int rank = layout.shape(l, g).rank_k;
      std::vector<float>& scales = codebooks[l].key_scales.emplace_back(2 * rank, 0.0f);
      std::fill_n(scales.begin(), rank, kEvenRange);
    }
  }
  return codebooks;
}

int64_t CodebookBytes(const ModelCodebooks& codebooks) {
  int64_t n_bytes = 0;
  for (const LayerCodebooks& layer : codebooks) {
    n_bytes += static_cast<int64_t>(sizeof(layer.k) + sizeof(layer.v));
    for (const std::vector<float>& scales : layer.key_scales) n_bytes += std::ssize(scales) * 4;
  }
  return n_bytes;
}

}  // namespace kvlathe
