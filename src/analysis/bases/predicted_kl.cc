#include "analysis/bases/predicted_kl.h"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "analysis/ranks/bit_ladder.h"
#include "analysis/statistics/joint_rows.h"
#include "base/check.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

// What is measured over trace(F C), which takes errors of positions, heads and layers as
// independent and of second order. On 8,192 tokens of WikiText-2 with SmolLM2-135M and keys
// after RoPE it would be 2.1 to 2.4 at ratios 4 to 8, on other texts 1.1 to 2.9
// (docs/methods/lathe/measured.md, Predicted and measured).
constexpr double kSealedFactor = 1.5;
// The same of codes of open rows, from the difference that open=8 made when these had no scales.
// Nearer queries read them, whose gradients are not in F.
constexpr double kOpenFactor = 10;

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix ToMatrix(const std::vector<double>& square, int dim) {
  return Eigen::Map<const Matrix>(square.data(), dim, dim);
}

Matrix MapOf(const std::vector<float>& map, int dim) {
  return Eigen::Map<const FloatMatrix>(map.data(), dim, dim).cast<double>();
}

// The mean square error of codes of a channel whose variance is not 1, in the unit that its numbers
// count in: of a Student's t of TailDegrees that is scaled to it.
class CodeLosses {
 public:
  explicit CodeLosses(StoredUnit unit) {
    for (size_t level = 0; level < kSplitBits.size(); ++level) {
      for (int i = 0; i < kPoints; ++i) {
        losses_[level][i] = Integrate(unit, kSplitBits[level], std::exp2(Exponent(i)));
      }
      if (kSplitBits[level] == 8) continue;
      const double factor = UnitCost(kSplitBits[level], unit) / losses_[level][kUnitPoint];
      for (double& loss : losses_[level]) loss *= factor;
    }
  }

  static const CodeLosses& Of(StoredUnit unit) {
    static const CodeLosses of_channels(StoredUnit::kChannel), of_tokens(StoredUnit::kToken);
    return unit == StoredUnit::kToken ? of_tokens : of_channels;
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
  static constexpr int kUnitPoint = 24;  // a variance of 1
  static double Exponent(int i) { return kFirstExponent + kStep * i; }

  static double Integrate(StoredUnit unit, int bits, double variance) {
    const double degrees = TailDegrees(unit);
    constexpr double kRange = 12, kStepOfX = 1.0 / 128;  // in deviations
    const double deviation = std::sqrt(variance);
    double loss = 0, mass = 0;
    for (double x = -kRange; x <= kRange; x += kStepOfX) {
      // Of unit variance, but for a factor that the mass takes out.
      const double density = std::pow(1 + x * x / (degrees - 2), -(degrees + 1) / 2);
      const double value = deviation * x, error = value - Nearest(unit, bits, value);
      loss += density * error * error;
      mass += density;
    }
    return loss / mass;
  }

  static double Nearest(StoredUnit unit, int bits, double x) {
    if (bits == 8) return std::clamp(std::nearbyint(x / kUnitStep), -128.0, 127.0) * kUnitStep;
    const std::span<const float> boundaries = UnitBoundaries(bits, unit);
    const auto code = std::ranges::lower_bound(boundaries, static_cast<float>(x));
    return UnitCentroids(bits, unit)[code - boundaries.begin()];
  }

  std::array<std::array<double, kPoints>, kSplitBits.size()> losses_;
};

}  // namespace

PredictedLosses PredictedLosses::InKl() const {
  PredictedLosses parts = *this;
  for (double& loss : parts.keys) loss *= kSealedFactor;
  for (double& loss : parts.values) loss *= kSealedFactor;
  parts.open_rows *= kOpenFactor;
  return parts;
}

double PredictedLosses::kl() const {
  const PredictedLosses parts = InKl();
  return std::accumulate(parts.keys.begin(), parts.keys.end(), 0.0) +
         std::accumulate(parts.values.begin(), parts.values.end(), 0.0) + parts.open_rows;
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
      CutBasis(analysis, std::vector<HeadRanks>(n_heads, {dim, dim, {.middle = {all, all}}}));
  const JointMoments& keys = TurnWhenRead(basis.keys)       ? text.k_pre
                             : HasFrames(basis.keys)        ? text.k_block
                             : TurningPairs(basis.keys) > 0 ? text.k_centred
                                                            : text.k;
  // In the stored channels, whose maps are `map` [dim, dim] and `way_back` [dim, dim].
  const auto side_of = [&](const JointMoments& moments, size_t h, const std::vector<float>& offset,
                           const Matrix& map, const Matrix& way_back) {
    const JointChannels channels = {static_cast<int>(h) / n_heads_,
                                    static_cast<int>(h) % n_heads_ * dim, dim};
    const Matrix fisher = ToMatrix(SquareOf(moments.fisher, shape, channels), dim);
    const Matrix metric = way_back * fisher * way_back.transpose();
    const Matrix rows = ToMatrix(RowsAbout(offset, moments, shape, channels).Priced(), dim);
    const Matrix variances = map.transpose() * rows * map;
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
      const Matrix key_back = TurnWhenRead(basis.keys)
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

double LossPredictor::LossOf(const Side& side, const BitSplit& bits, StoredUnit unit) {
  const CodeLosses& codes = CodeLosses::Of(unit);
  const int n = bits.n_channels();
  double scale = 1;
  if (unit == StoredUnit::kToken) {  // which brings the mean square of a token's numbers to 1
    const auto first = side.variances.begin();
    scale = std::accumulate(first, first + n, 0.0) / n;
  }
  double loss = kCoherentFactor * side.cuts[n / kBitGroup];
  if (scale <= 0) return loss;
  int channel = 0;
  for (size_t level = 0; level < kSplitBits.size(); ++level) {
    for (int i = 0; i < bits.channels[level]; ++i, ++channel) {
      loss += side.metric[channel] * scale * codes.At(level, side.variances[channel] / scale);
    }
  }
  return loss;
}

double LossPredictor::LossOfOpenRows(const Side& side) {
  // Of a row of some hundred numbers the largest is about so many of its deviations; it takes code
  // 127.
  constexpr double kLargest = 3.3;
  constexpr double kStep = kLargest / 127;
  const double of_channels = std::accumulate(side.metric.begin(), side.metric.end(), 0.0);
  const double variance = std::accumulate(side.variances.begin(), side.variances.end(), 0.0) /
                          static_cast<double>(side.variances.size());
  return of_channels * variance * kStep * kStep / 12;
}

PredictedLosses LossPredictor::At(const std::vector<HeadRanks>& ranks,
                                  const StoredForm& form) const {
  KVL_CHECK_EQ(ranks.size(), keys_.size());
  constexpr double kMost = kClassWeight / 4, kMiddle = 0.5, kLeast = 1 / (4 * kClassWeight);
  const auto loss_of = [&](const Side& side, const BitSplit& most, const BitSplit& middle,
                           const BitSplit& least) {
    const double loss = LossOf(side, middle, form.unit);
    if (most == BitSplit{}) return loss;  // no classes
    const double of_prompt = (kMost * LossOf(side, most, form.unit) + kMiddle * loss +
                              kLeast * LossOf(side, least, form.unit)) /
                             (kMost + kMiddle + kLeast);
    return (of_prompt + loss) / 2;
  };
  PredictedLosses losses = {std::vector<double>(n_layers_), std::vector<double>(n_layers_)};
  for (size_t h = 0; h < ranks.size(); ++h) {
    const HeadRanks& r = ranks[h];
    losses.keys[h / n_heads_] += loss_of(keys_[h], r.bits.most.k, r.bits.middle.k, r.bits.least.k);
    losses.values[h / n_heads_] +=
        loss_of(values_[h], r.bits.most.v, r.bits.middle.v, r.bits.least.v);
    if (!form.codes_open_rows) continue;
    losses.open_rows += LossOfOpenRows(keys_[h]) + LossOfOpenRows(values_[h]);
  }
  return losses;
}

}  // namespace kvlathe
