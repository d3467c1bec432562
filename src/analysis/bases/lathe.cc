#include "analysis/bases/lathe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "analysis/bases/hadamard.h"
#include "analysis/bases/optimal_pair.h"
#include "analysis/bases/rotation.h"
#include "analysis/ranks/bit_ladder.h"
#include "analysis/statistics/gram.h"
#include "analysis/statistics/joint_rows.h"
#include "analysis/statistics/positive.h"
#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

// A part of the mean eigenvalue that F gets in every direction: gradients of a few windows say too
// little of directions in which they are small.
constexpr double kFisherRidge = 0.1;
// The same where keys and values have one map: what they share is in small gradients too.
constexpr double kJoinedRidge = 0.04;
// All rows of the text count so much more than kPlainShare there: gradients weigh few rows, and
// these have twice the channels.
constexpr double kJoinedPlainShare = 0.4;

// The rows of one head of the cache: their moments about the offset, and what errors in them cost.
struct RowStatistics {
  std::vector<double> gram;    // [dim, dim]
  std::vector<double> plain;   // of all rows of the text alone
  std::vector<double> fisher;  // [dim, dim]
  std::vector<float> offset;   // [dim], or empty
};

// kDataLoss where second moments are not those of rows. The rows may hold more than `channels`.
Status CheckRows(const JointRows& rows, const JointChannels& channels, int head_dim) {
  for (const std::vector<double>* of_rows : {&rows.weighed, &rows.plain}) {
    const int dim = static_cast<int>(std::lround(std::sqrt(of_rows->size())));
    if (!AllFinite(*of_rows) || IsSumOfSquares(*of_rows, dim)) continue;
    return Error(StatusCode::kDataLoss,
                 "layer {}, KV head {}: rows of the calibration have a negative variance in some "
                 "direction, so their deviations are not known; write new statistics with kvlathe "
                 "calibrate, or take a cache that needs none, such as kivi",
                 channels.layer_idx, channels.first / head_dim);
  }
  return OkStatus();
}

// kDataLoss where the moments are not those of rows.
StatusOr<RowStatistics> RowsOf(const JointMoments& moments, const StatisticsShape& shape,
                               const JointChannels& channels, bool is_centred) {
  RowStatistics rows;
  const std::span<const float> mean = MeanOf(moments.weighed_mean, shape, channels);
  if (is_centred) rows.offset.assign(mean.begin(), mean.end());
  JointRows about_offset = RowsAbout(rows.offset, moments, shape, channels);
  KVL_RETURN_IF_ERROR(CheckRows(about_offset, channels, shape.head_dim));
  rows.gram = about_offset.Priced();
  rows.plain = std::move(about_offset.plain);
  const int dim = channels.dim;
  rows.fisher = SquareOf(moments.fisher, shape, channels);
  const double ridge = kFisherRidge * TraceOf(rows.fisher, dim) / dim;
  for (int i = 0; i < dim; ++i) rows.fisher[i * dim + i] += ridge;
  return rows;
}

// Rows of keys and values side by side, of a head of the cache that joins so many channels of keys.
// F gets its ridge by side: gradients of keys and of values are in units of their own.
StatusOr<RowStatistics> KeyValueRowsOf(const CalibrationStatistics& s, int64_t head_idx, int side,
                                       const BasisOptions& options) {
  const JointMoments& moments = s.key_values;
  const int64_t dim = 2 * int64_t{side}, square = dim * dim;
  const auto part_of = [&](const std::vector<float>& all, int64_t n) {
    return std::span<const float>(all).subspan(head_idx * n, n);
  };
  const auto square_of = [&](const std::vector<float>& all) {
    const std::span<const float> part = part_of(all, square);
    return std::vector<double>(part.begin(), part.end());
  };
  RowStatistics rows;
  const std::span<const float> mean = part_of(moments.weighed_mean, dim);
  if (options.is_centred) {
    rows.offset.assign(mean.begin(), mean.end());
    if (!options.has_value_offsets) std::fill(rows.offset.begin() + side, rows.offset.end(), 0.0f);
  }
  const JointRows about_offset = {
      MomentsAbout(rows.offset, mean, square_of(moments.weighed_covariance)),
      MomentsAbout(rows.offset, part_of(moments.mean, dim), square_of(moments.covariance))};
  const int n_groups = s.shape.n_kv_heads * s.shape.head_dim / side;
  const auto idx = static_cast<int>(head_idx);
  KVL_RETURN_IF_ERROR(
      CheckRows(about_offset, {idx / n_groups, idx % n_groups * side, side}, s.shape.head_dim));
  rows.gram = WeightedSum(1 / (1 + kJoinedPlainShare), about_offset.weighed,
                          kJoinedPlainShare / (1 + kJoinedPlainShare), about_offset.plain);
  rows.plain = about_offset.plain;
  rows.fisher = square_of(moments.fisher);
  for (int64_t first = 0; first < dim; first += side) {
    double trace = 0;
    for (int64_t i = first; i < first + side; ++i) trace += rows.fisher[i * dim + i];
    const double ridge = kJoinedRidge * trace / side;
    for (int64_t i = first; i < first + side; ++i) rows.fisher[i * dim + i] += ridge;
  }
  return rows;
}

// e^T square e of every column e of a square map.
std::vector<double> AlongColumns(const std::vector<double>& square, const std::vector<float>& map,
                                 int dim) {
  std::vector<double> along(dim);
  for (int column = 0; column < dim; ++column) {
    for (int i = 0; i < dim; ++i) {
      double sum = 0;
      for (int j = 0; j < dim; ++j) sum += square[i * dim + j] * double{map[j * dim + column]};
      along[column] += sum * double{map[i * dim + column]};
    }
  }
  return along;
}

// The deviation of every column of the square map, mixed as it is stored. No channel gets less than
// its part of what all rows of the text have there, whatever rounding left of the weighed ones:
// codes of a deviation that is too small lie far outside of their table, and take up the scale of
// their token. Channels without any variance get the smallest deviation that others can be told
// from.
std::vector<float> DeviationsOf(const RowStatistics& rows, const std::vector<double>& unmixed,
                                int dim) {
  constexpr double kLeast = 1e-6;  // of the largest
  std::vector<float> map = ToFloats(unmixed);
  MixColumns(kBitGroup, &map);
  const std::vector<double> plain = AlongColumns(rows.plain, map, dim);
  std::vector<double> deviations = AlongColumns(rows.gram, map, dim);
  for (int i = 0; i < dim; ++i) {
    const double least = kPlainShare / (1 + kPlainShare) * plain[i];
    deviations[i] = std::sqrt(std::max({deviations[i], least, 0.0}));
  }
  const double largest = *std::max_element(deviations.begin(), deviations.end());
  for (double& x : deviations) x = largest > 0 ? std::max(x, kLeast * largest) : 1;
  return ToFloats(deviations);
}

// The KL of an error of its own deviation in each mixed column. What errors cost has the matrix
// diag(s) before columns are mixed, and then the mean of a group of s in each.
std::vector<double> NoiseOf(const std::vector<float>& deviations, const std::vector<double>& s) {
  std::vector<double> noise;
  for (size_t i = 0; i < s.size(); ++i) {
    const auto group = s.begin() + static_cast<int64_t>(i / kBitGroup * kBitGroup);
    const double square = std::accumulate(group, group + kBitGroup, 0.0) / kBitGroup;
    noise.push_back(double{deviations[i]} * deviations[i] * square);
  }
  return noise;
}

// Rows [first, first + n_rows) of a square map.
std::vector<float> RowsOfMap(const std::vector<double>& map, int64_t dim, int64_t first,
                             int64_t n_rows) {
  return {map.begin() + first * dim, map.begin() + (first + n_rows) * dim};
}

// Does what AnalyseHead does, where keys and values have one map.
Status AnalyseJoinedHead(const BasisInputs& inputs, int64_t h, BasisAnalysis* analysis) {
  const CalibrationStatistics& s = *inputs.statistics;
  const int side = analysis->shape.head_dim, dim = 2 * side;
  KVL_ASSIGN_OR_RETURN(const RowStatistics rows, KeyValueRowsOf(s, h, side, inputs.options));
  KVL_RETURN_IF_ERROR(
      CheckFinite(analysis->shape, h, {WeightedSum(1, rows.gram, 1, rows.fisher), {}}));
  const OptimalPair pair = DecomposePair(rows.fisher, rows.gram, dim);
  HeadAnalysis& head = analysis->heads[h];
  head.query_basis = RowsOfMap(pair.left, dim, 0, side);
  head.key_basis = RowsOfMap(pair.right, dim, 0, side);
  head.value_basis = RowsOfMap(pair.right, dim, side, side);
  head.output_basis.resize(int64_t{dim} * side);
  for (int i = 0; i < side; ++i) {
    for (int j = 0; j < dim; ++j) {
      head.output_basis[j * side + i] = static_cast<float>(pair.left[int64_t{side + i} * dim + j]);
    }
  }
  head.key_deviations = head.value_deviations = DeviationsOf(rows, pair.right, dim);
  if (inputs.options.is_centred) {
    head.key_offset.assign(rows.offset.begin(), rows.offset.begin() + side);
    if (inputs.options.has_value_offsets) {
      head.value_offset.assign(rows.offset.begin() + side, rows.offset.end());
    }
  }
  if (inputs.options.turning_pairs > 0) {
    const int64_t first = h * side;  // heads lie side by side in layers, and these one by one
    head.turning_mean.assign(s.turning_mean.begin() + first, s.turning_mean.begin() + first + side);
  }
  analysis->noise[h].qk = NoiseOf(head.key_deviations, pair.singular_values);
  analysis->spectra[h].qk = pair.singular_values;
  return OkStatus();
}

// The part of head h of the cache, [n_layers * heads], in an analysis that has places for all.
Status AnalyseHead(const BasisInputs& inputs, int64_t h, BasisAnalysis* analysis) {
  const CalibrationStatistics& s = *inputs.statistics;
  const StatisticsShape& shape = analysis->shape;
  const int d = shape.head_dim;
  const JointChannels channels = {static_cast<int>(h / shape.n_kv_heads),
                                  static_cast<int>(h % shape.n_kv_heads) * d, d};
  const bool is_latent = inputs.options.keys_before_rope;
  const JointStatistics& joint = inputs.options.counts_all_queries ? s.through_all : s.joint;
  const auto rows_of = [&](const JointMoments& moments, bool may_lose) {
    return RowsOf(moments, s.shape, channels, inputs.options.is_centred && may_lose);
  };
  KVL_ASSIGN_OR_RETURN(RowStatistics keys, rows_of(joint.keys(KeyRowsOf(inputs.options)), true));
  KVL_ASSIGN_OR_RETURN(RowStatistics values, rows_of(joint.v, inputs.options.has_value_offsets));
  KVL_RETURN_IF_ERROR(CheckFinite(
      shape, h,
      {WeightedSum(1, keys.gram, 1, keys.fisher), WeightedSum(1, values.gram, 1, values.fisher)}));
  const OptimalPair k = DecomposePair(keys.fisher, keys.gram, d);
  const OptimalPair v = DecomposePair(values.gram, values.fisher, d);
  HeadAnalysis& head = analysis->heads[h];
  if (is_latent) {
    head.key_way_back = TransposedSquare(ToFloats(k.left), d);
  } else {
    head.query_basis = ToFloats(k.left);
  }
  head.key_basis = ToFloats(k.right);
  head.value_basis = ToFloats(v.left);
  head.output_basis = TransposedSquare(ToFloats(v.right), d);
  head.key_deviations = DeviationsOf(keys, k.right, d);
  head.value_deviations = DeviationsOf(values, v.left, d);
  head.key_offset = std::move(keys.offset);
  if (inputs.options.turning_pairs > 0) {
    const std::span<const float> mean = MeanOf(s.turning_mean, s.shape, channels);
    head.turning_mean.assign(mean.begin(), mean.end());
  }
  head.value_offset = std::move(values.offset);
  analysis->noise[h].qk = NoiseOf(head.key_deviations, k.singular_values);
  analysis->noise[h].v = NoiseOf(head.value_deviations, v.singular_values);
  analysis->spectra[h] = {k.singular_values, v.singular_values};
  return OkStatus();
}

}  // namespace

KeyRows KeyRowsOf(const BasisOptions& options) {
  if (options.keys_before_rope) return KeyRows::kBeforeRope;
  if (options.has_frames) return KeyRows::kBlock;
  return options.turning_pairs > 0 ? KeyRows::kCentred : KeyRows::kAfterRope;
}

int HeadsPerMap(const StatisticsShape& shape, int channels) {
  int n = JointHeads(shape);
  while (n > 1 && (JointHeads(shape) % n != 0 || n * shape.head_dim > channels)) --n;
  return n;
}

StatusOr<BasisAnalysis> AnalyseLathe(const BasisInputs& inputs) {
  const CalibrationStatistics& statistics = *inputs.statistics;
  if (statistics.joint.n_tokens == 0) {
    return Error(StatusCode::kFailedPrecondition,
                 "the calibration holds no gradients, by which lathe prices errors; calibrate with "
                 "them, on a longer text");
  }
  const KeyRows keys = KeyRowsOf(inputs.options);
  if (statistics.maps_of.value_or(keys) != keys) {
    return Error(StatusCode::kInvalidArgument,
                 "the file of maps is for lathe(keys={}), not for keys={}; take that, or "
                 "calibrate: kvlathe calibrate --text FILE",
                 NameOf(*statistics.maps_of), NameOf(keys));
  }
  if (inputs.options.joins_values && statistics.key_values.covariance.empty()) {
    return Error(StatusCode::kFailedPrecondition,
                 "the calibration holds no moments of keys with their values, which maps=joint "
                 "needs; write new statistics with kvlathe calibrate --key-values");
  }
  BasisAnalysis analysis;
  analysis.keeps_sink_values = true;
  const int n_joined = HeadsPerMap(statistics.shape, inputs.options.joint_channels);
  const BasisOptions& options = inputs.options;
  if (options.keys_before_rope) {
    analysis.keys = LatentKeys{.heads_per_map = n_joined};
  } else {
    analysis.keys =
        MappedKeys{n_joined, options.has_frames, options.turning_pairs, options.joins_values};
  }
  analysis.shape = statistics.shape;
  analysis.shape.n_kv_heads /= n_joined;
  analysis.shape.head_dim *= n_joined;
  const int64_t n_heads = int64_t{analysis.shape.n_layers} * analysis.shape.n_kv_heads;
  analysis.heads.resize(n_heads);
  analysis.spectra.resize(n_heads);
  analysis.noise.resize(n_heads);
  std::vector<Status> statuses(n_heads);
  const auto analyse = [&](Range heads) {
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      statuses[h] = options.joins_values ? AnalyseJoinedHead(inputs, h, &analysis)
                                         : AnalyseHead(inputs, h, &analysis);
    }
  };
  if (inputs.pool == nullptr) {
    analyse({0, n_heads});
  } else {
    inputs.pool->Run(
        [&](int worker_id) { analyse(ShareOf(n_heads, 1, worker_id, inputs.pool->n_workers())); });
  }
  for (const Status& status : statuses) KVL_RETURN_IF_ERROR(status);
  return analysis;
}

StatusOr<RankAllocation> AllocateLathe(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request, RankRule::kLeastError);
}

StatusOr<RankAllocation> AllocateLatheBits(const BasisAnalysis& analysis,
                                           const RankRequest& request) {
  const int n_channels = static_cast<int>(analysis.spectra.front().qk.size());
  return AllocateBits(analysis.spectra, analysis.noise, n_channels, request);
}

}  // namespace kvlathe
