#include "analysis/bases/predicted_kl.h"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "analysis/ranks/bit_ladder.h"
#include "base/check.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A square of the moments, of channels [first, first + dim) of the rows of a layer.
Matrix SquareOf(const std::vector<float>& squares, const StatisticsShape& shape, int layer_idx,
                int first, int dim) {
  const int width = JointHeads(shape) * shape.head_dim;
  const int64_t n_groups = int64_t{shape.n_kv_heads} * shape.head_dim / width;
  const int64_t group = layer_idx * n_groups + first / width;
  const Eigen::Map<const FloatMatrix> all(squares.data() + group * width * width, width, width);
  return all.block(first % width, first % width, dim, dim).cast<double>();
}

// The second moments, about `offset`, of the rows as their gradients weigh them.
Matrix MomentsAbout(const JointMoments& moments, const StatisticsShape& shape, int layer_idx,
                    int first, const std::vector<float>& offset, int dim) {
  Matrix gram = SquareOf(moments.weighed_gram, shape, layer_idx, first, dim);
  if (offset.empty()) return gram;
  const int64_t row = int64_t{layer_idx} * shape.n_kv_heads * shape.head_dim + first;
  const Eigen::VectorXd mean =
      Eigen::Map<const Eigen::VectorXf>(moments.weighed_mean.data() + row, dim).cast<double>();
  const Eigen::VectorXd from = Eigen::Map<const Eigen::VectorXf>(offset.data(), dim).cast<double>();
  gram += -mean * from.transpose() - from * mean.transpose() + from * from.transpose();
  return gram;
}

Matrix MapOf(const std::vector<float>& map, int dim) {
  return Eigen::Map<const FloatMatrix>(map.data(), dim, dim).cast<double>();
}

// The mean square error of codes of a channel whose variance is not 1, as it was in the text that
// the map comes from: of a Student's t of TailDegrees that is scaled to it.
class CodeLosses {
 public:
  CodeLosses() {
    for (size_t level = 0; level < kSplitBits.size(); ++level) {
      for (int i = 0; i < kPoints; ++i) {
        losses_[level][i] = Integrate(kSplitBits[level], std::exp2(Exponent(i)));
      }
    }
  }

  double At(size_t level, double variance) const {
    const double least = std::exp2(Exponent(0)), most = std::exp2(Exponent(kPoints - 1));
    if (variance > most) return losses_[level].back() * variance / most;
    const double place = (std::log2(std::max(variance, least)) - kFirstExponent) / kStep;
    const int i = std::min(static_cast<int>(place), kPoints - 2);
    const double share = place - i;
    return (1 - share) * losses_[level][i] + share * losses_[level][i + 1];
  }

 private:
  static constexpr int kPoints = 49;
  static constexpr double kFirstExponent = -6, kStep = 0.25;
  static double Exponent(int i) { return kFirstExponent + kStep * i; }

  static double Integrate(int bits, double variance) {
    constexpr double kDegrees = TailDegrees(StoredUnit::kChannel);
    constexpr double kRange = 12, kStepOfX = 1.0 / 128;  // in deviations
    const double deviation = std::sqrt(variance);
    double loss = 0, mass = 0;
    for (double x = -kRange; x <= kRange; x += kStepOfX) {
      // Of unit variance, but for a factor that the mass takes out.
      const double density = std::pow(1 + x * x / (kDegrees - 2), -(kDegrees + 1) / 2);
      const double value = deviation * x, error = value - Nearest(bits, value);
      loss += density * error * error;
      mass += density;
    }
    return loss / mass;
  }

  static double Nearest(int bits, double x) {
    if (bits == 8) return std::clamp(std::nearbyint(x / kUnitStep), -128.0, 127.0) * kUnitStep;
    const std::span<const float> boundaries = UnitBoundaries(bits);
    const auto code = std::ranges::lower_bound(boundaries, static_cast<float>(x));
    return UnitCentroids(bits)[code - boundaries.begin()];
  }

  std::array<std::array<double, kPoints>, kSplitBits.size()> losses_;
};

}  // namespace

double PredictedLosses::kl() const {
  return std::accumulate(keys.begin(), keys.end(), 0.0) +
         std::accumulate(values.begin(), values.end(), 0.0);
}

LossPredictor::LossPredictor(const BasisAnalysis& analysis, const JointStatistics& text,
                             const StatisticsShape& shape, ThreadPool* pool)
    : n_layers_(shape.n_layers), n_heads_(analysis.shape.n_kv_heads) {
  const int dim = analysis.shape.head_dim;
  KVL_CHECK_EQ(n_heads_ * dim, shape.n_kv_heads * shape.head_dim);
  KVL_CHECK(text.n_tokens > 0);
  BitSplit all;
  all.channels[0] = dim;
  const size_t n_heads = analysis.heads.size();
  const ModelBasis basis =
      CutBasis(analysis, std::vector<HeadRanks>(n_heads, {dim, dim, all, all}));
  const JointMoments& keys = basis.has_latent_keys() ? text.k_pre : text.k;
  // In the stored channels, whose maps are `map` [dim, dim] and `way_back` [dim, dim].
  const auto side_of = [&](const JointMoments& moments, size_t h, const std::vector<float>& offset,
                           const Matrix& map, const Matrix& way_back) {
    const int layer_idx = static_cast<int>(h) / n_heads_,
              first = static_cast<int>(h) % n_heads_ * dim;
    const Matrix fisher = SquareOf(moments.fisher, shape, layer_idx, first, dim);
    const Matrix metric = way_back * fisher * way_back.transpose();
    const Matrix variances =
        map.transpose() * MomentsAbout(moments, shape, layer_idx, first, offset, dim) * map;
    Side side;
    for (int rank = 0; rank <= dim; rank += kBitGroup) {
      const int n = dim - rank;
      side.cuts.push_back(
          metric.bottomRightCorner(n, n).cwiseProduct(variances.bottomRightCorner(n, n)).sum());
    }
    for (int i = 0; i < dim; ++i) {
      side.metric.push_back(metric(i, i));
      side.variances.push_back(variances(i, i));
    }
    return side;
  };
  keys_.resize(n_heads);
  values_.resize(n_heads);
  const auto fill = [&](Range heads) {
    for (auto h = static_cast<size_t>(heads.begin); h < static_cast<size_t>(heads.end); ++h) {
      const HeadBasis& head = basis.heads[h];
      const Matrix key_back = basis.has_latent_keys()
                                  ? MapOf(head.key_way_back, dim)
                                  : Matrix(MapOf(head.query_basis, dim).transpose());
      keys_[h] = side_of(keys, h, head.key_offset, MapOf(head.key_basis, dim), key_back);
      values_[h] = side_of(text.v, h, head.value_offset, MapOf(head.value_basis, dim),
                           MapOf(head.output_basis, dim));
    }
  };
  const auto n = static_cast<int64_t>(n_heads);
  if (pool == nullptr) {
    fill({0, n});
    return;
  }
  pool->Run([&](int worker_id) { fill(ShareOf(n, 1, worker_id, pool->n_workers())); });
}

double LossPredictor::LossOf(const Side& side, const BitSplit& bits) const {
  static const CodeLosses codes;
  double loss = side.cuts[bits.n_channels() / kBitGroup];
  int channel = 0;
  for (size_t level = 0; level < kSplitBits.size(); ++level) {
    for (int i = 0; i < bits.channels[level]; ++i, ++channel) {
      loss += side.metric[channel] * codes.At(level, side.variances[channel]);
    }
  }
  return loss;
}

PredictedLosses LossPredictor::At(const std::vector<HeadRanks>& ranks) const {
  KVL_CHECK_EQ(ranks.size(), keys_.size());
  PredictedLosses losses = {std::vector<double>(n_layers_), std::vector<double>(n_layers_)};
  for (size_t h = 0; h < ranks.size(); ++h) {
    losses.keys[h / n_heads_] += LossOf(keys_[h], ranks[h].k_bits);
    losses.values[h / n_heads_] += LossOf(values_[h], ranks[h].v_bits);
  }
  return losses;
}

}  // namespace kvlathe
