#include "calibration/attention_moments.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "kernels/cpu/block_layout.h"

namespace kvlathe {
namespace {

using RowMajorF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using StridedRows = Eigen::Map<const RowMajorF, 0, Eigen::OuterStride<>>;

constexpr int kQueryTile = 128;
// Keys drawn for each query to turn it back by: their positions are strata of its weights, so few
// are enough.
constexpr int kDrawnKeys = 4;

// `rows` [n, d] weighted by `weights` [n] into sum and Gram matrix.
void AddWeighted(const Eigen::Ref<const RowMajorF>& rows, const Eigen::VectorXf& weights,
                 std::vector<double>* sum, std::vector<double>* gram) {
  const Eigen::Index d = rows.cols();
  const RowMajorF weighted = weights.cwiseSqrt().asDiagonal() * rows;
  const RowMajorF product = weighted.transpose() * weighted;
  const Eigen::RowVectorXf row_sum = weights.transpose() * rows;
  for (Eigen::Index i = 0; i < d * d; ++i) (*gram)[i] += product.data()[i];
  for (Eigen::Index i = 0; i < d; ++i) (*sum)[i] += row_sum[i];
}

// The weights that queries from `first_position` on give to whole blocks before their own are added
// to those of the blocks.
void AddBlockWeights(const RowMajorF& weights, int first_position, std::vector<double>* of_blocks) {
  for (Eigen::Index t = 0; t < weights.rows(); ++t) {
    const Eigen::Index n = (first_position + t - kCalibrationSinks) / kBlockSize;
    for (Eigen::Index b = 0; b < n; ++b) {
      (*of_blocks)[b] +=
          weights.row(t).segment(kCalibrationSinks + b * kBlockSize, kBlockSize).sum();
    }
  }
}

// The mean Gram matrix of a block's rows less their mean, times the block's weight.
void AddInBlocks(const Eigen::Ref<const RowMajorF>& rows, const std::vector<double>& of_blocks,
                 std::vector<double>* gram) {
  const Eigen::Index d = rows.cols();
  for (size_t b = 0; b < of_blocks.size(); ++b) {
    if (of_blocks[b] == 0) continue;
    RowMajorF block = rows.middleRows(kCalibrationSinks + b * kBlockSize, kBlockSize);
    block.rowwise() -= block.colwise().mean().eval();
    const RowMajorF product = block.transpose() * block;
    const double scale = of_blocks[b] / kBlockSize;
    for (Eigen::Index i = 0; i < d * d; ++i) (*gram)[i] += scale * product.data()[i];
  }
}

// A query as a key of this position sees it before RoPE: R^T q, where the key turns by R.
void TurnBack(const float* query, const RopeTable& rope, int position, int dim, float* to) {
  const int half = rope.rope_dim() / 2;
  const float *cos = rope.cos(position), *sin = rope.sin(position);
  for (int i = 0; i < half; ++i) {
    const float a = query[i], b = query[i + half];
    to[i] = a * cos[i] + b * sin[i];
    to[i + half] = b * cos[i] - a * sin[i];
  }
  std::copy(query + 2 * half, query + dim, to + 2 * half);
}

struct WeightedRows {
  RowMajorF rows;
  Eigen::VectorXf weights;
};

// Each query turned back by kDrawnKeys positions in the place of all that it looks at, drawn from
// as many strata of its weights [n, positions]. `first_position` is that of the first query.
WeightedRows TurnQueriesBack(const Eigen::Ref<const RowMajorF>& queries, const RowMajorF& weights,
                             const RopeTable& rope, int first_position, uint64_t seed) {
  const auto dim = static_cast<int>(queries.cols());
  WeightedRows turned{RowMajorF(queries.rows() * kDrawnKeys, dim),
                      Eigen::VectorXf(queries.rows() * kDrawnKeys)};
  for (Eigen::Index t = 0; t < queries.rows(); ++t) {
    const RowMajorF query = queries.row(t);
    const float* weight = &weights(t, 0);
    double total = 0, before = 0;
    for (Eigen::Index j = 0; j < weights.cols(); ++j) total += weight[j];
    const double start = Random(seed, first_position + t).Uniform();
    Eigen::Index at = 0;
    for (int i = 0; i < kDrawnKeys; ++i) {
      const double target = (i + start) / kDrawnKeys * total;
      while (at + 1 < weights.cols() && before + weight[at] <= target) before += weight[at++];
      const Eigen::Index row = t * kDrawnKeys + i;
      TurnBack(query.data(), rope, static_cast<int>(at), dim, &turned.rows(row, 0));
      turned.weights[row] = static_cast<float>(total / kDrawnKeys);
    }
  }
  return turned;
}

// Scores of queries at `first_position` and after it become attention weights.
void SoftmaxRows(int first_position, int window, float scale, RowMajorF* scores) {
  for (Eigen::Index t = 0; t < scores->rows(); ++t) {
    const Eigen::Index end = first_position + t + 1;
    const Eigen::Index begin = window > 0 ? std::max<Eigen::Index>(0, end - window) : 0;
    auto row = scores->row(t);
    auto seen = row.segment(begin, end - begin);
    const float max = seen.maxCoeff();
    seen = ((seen.array() - max) * scale).exp().matrix();
    seen /= seen.sum();
    row.head(begin).setZero();
    row.tail(scores->cols() - end).setZero();
  }
}

}  // namespace

AttentionMoments::AttentionMoments(const StatisticsShape& shape, int window, RopeTable rope,
                                   ThreadPool* pool)
    : shape_(shape), window_(window), rope_(std::move(rope)), pool_(pool), rows_(shape.n_layers) {
  // Products run on our workers; threads of Eigen beside them would fight for the cores.
  Eigen::setNbThreads(1);

  const size_t d = shape.head_dim;
  HeadSums zero;
  for (auto* sum : {&zero.q_sum, &zero.k_sum, &zero.v_sum, &zero.q_pre_sum, &zero.k_pre_sum}) {
    sum->resize(d);
  }
  for (auto* gram : {&zero.q_gram, &zero.k_gram, &zero.v_gram, &zero.q_pre_gram, &zero.k_pre_gram,
                     &zero.k_in_blocks, &zero.k_pre_in_blocks}) {
    gram->resize(d * d);
  }
  sums_.assign(int64_t{shape.n_layers} * shape.n_kv_heads, zero);
}

void AttentionMoments::Observe(const QkvView& view) {
  LayerRows& rows = rows_[view.layer_idx];
  if (view.positions[0] == 0) rows = {};
  const int64_t n_values = int64_t{view.n_tokens} * shape_.n_kv_heads * shape_.head_dim;
  rows.k.insert(rows.k.end(), view.k_post, view.k_post + n_values);
  rows.k_pre.insert(rows.k_pre.end(), view.k_pre, view.k_pre + n_values);
  rows.v.insert(rows.v.end(), view.v, view.v + n_values);
  rope_.Extend(view.positions[view.n_tokens - 1] + 1);
  pool_->Run([&](int worker_id) {
    const Range heads = ShareOf(shape_.n_kv_heads, 1, worker_id, pool_->n_workers());
    for (int64_t g = heads.begin; g < heads.end; ++g) {
      AddHead(view, static_cast<int>(g), &sums_[int64_t{view.layer_idx} * shape_.n_kv_heads + g]);
    }
  });
  if (view.layer_idx != 0) return;
  for (int t = 0; t < view.n_tokens; ++t) n_queries_ += view.positions[t] >= kCalibrationSinks;
}

void AttentionMoments::AddHead(const QkvView& view, int kv_head_idx, HeadSums* sums) const {
  const int d = shape_.head_dim, group = shape_.gqa_group();
  const int n_keys = view.positions[view.n_tokens - 1] + 1;
  const Eigen::OuterStride<> kv_stride(int64_t{shape_.n_kv_heads} * d);
  const Eigen::OuterStride<> q_stride(int64_t{shape_.n_heads} * d);
  const LayerRows& rows = rows_[view.layer_idx];
  const StridedRows keys(rows.k.data() + kv_head_idx * d, n_keys, d, kv_stride);
  const StridedRows keys_pre(rows.k_pre.data() + kv_head_idx * d, n_keys, d, kv_stride);
  const StridedRows values(rows.v.data() + kv_head_idx * d, n_keys, d, kv_stride);
  const int first_query = std::clamp(kCalibrationSinks - view.positions[0], 0, view.n_tokens);
  const int n_sinks = std::min(kCalibrationSinks, n_keys);
  Eigen::VectorXf key_weights = Eigen::VectorXf::Zero(n_keys);
  std::vector<double> block_weights(std::max(0, n_keys - kCalibrationSinks) / kBlockSize);
  for (int h = kv_head_idx * group; h < (kv_head_idx + 1) * group; ++h) {
    for (int begin = first_query; begin < view.n_tokens; begin += kQueryTile) {
      const int n = std::min(kQueryTile, view.n_tokens - begin);
      const StridedRows queries(view.q_post + (int64_t{begin} * shape_.n_heads + h) * d, n, d,
                                q_stride);
      RowMajorF weights = queries * keys.transpose();
      SoftmaxRows(view.positions[begin], window_, 1 / std::sqrt(static_cast<float>(d)), &weights);
      const RowMajorF outputs = weights * values;
      AddWeighted(outputs, Eigen::VectorXf::Ones(n), &sums->v_sum, &sums->v_gram);
      weights.leftCols(n_sinks).setZero();
      AddWeighted(queries, weights.rowwise().sum(), &sums->q_sum, &sums->q_gram);
      const WeightedRows turned =
          TurnQueriesBack(queries, weights, rope_, view.positions[begin],
                          static_cast<uint64_t>(view.layer_idx) * shape_.n_heads + h);
      AddWeighted(turned.rows, turned.weights, &sums->q_pre_sum, &sums->q_pre_gram);
      key_weights += weights.colwise().sum().transpose();
      AddBlockWeights(weights, view.positions[begin], &block_weights);
    }
  }
  AddWeighted(keys, key_weights, &sums->k_sum, &sums->k_gram);
  AddWeighted(keys_pre, key_weights, &sums->k_pre_sum, &sums->k_pre_gram);
  sums->k_weight += key_weights.sum();
  AddInBlocks(keys, block_weights, &sums->k_in_blocks);
  AddInBlocks(keys_pre, block_weights, &sums->k_pre_in_blocks);
  sums->block_weight += std::accumulate(block_weights.begin(), block_weights.end(), 0.0);
}

void AttentionMoments::Finish(CalibrationStatistics* statistics) const {
  const int64_t d = shape_.head_dim;
  const auto put = [](const std::vector<double>& from, double total, int64_t first,
                      std::vector<float>* to) {
    const double scale = total > 0 ? 1 / total : 0;
    for (size_t i = 0; i < from.size(); ++i) (*to)[first + i] = static_cast<float>(from[i] * scale);
  };
  const auto n_queries = static_cast<double>(n_queries_);
  for (int64_t h = 0; h < std::ssize(sums_); ++h) {
    const HeadSums& sums = sums_[h];
    put(sums.q_sum, n_queries, h * d, &statistics->attended_q.mean);
    put(sums.q_gram, n_queries, h * d * d, &statistics->attended_q.gram);
    put(sums.k_sum, sums.k_weight, h * d, &statistics->attended_k.mean);
    put(sums.k_gram, sums.k_weight, h * d * d, &statistics->attended_k.gram);
    put(sums.q_pre_sum, n_queries, h * d, &statistics->attended_q_pre.mean);
    put(sums.q_pre_gram, n_queries, h * d * d, &statistics->attended_q_pre.gram);
    put(sums.k_pre_sum, sums.k_weight, h * d, &statistics->attended_k_pre.mean);
    put(sums.k_pre_gram, sums.k_weight, h * d * d, &statistics->attended_k_pre.gram);
    put(sums.k_in_blocks, sums.block_weight, h * d * d, &statistics->k_in_blocks);
    put(sums.k_pre_in_blocks, sums.block_weight, h * d * d, &statistics->k_pre_in_blocks);
    put(sums.v_sum, n_queries * shape_.gqa_group(), h * d, &statistics->attended_v.mean);
    put(sums.v_gram, n_queries * shape_.gqa_group(), h * d * d, &statistics->attended_v.gram);
  }
}

}  // namespace kvlathe
