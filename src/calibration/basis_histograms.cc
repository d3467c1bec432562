#include "calibration/basis_histograms.h"

#include <algorithm>

#include "analysis/statistics/statistics.h"

namespace kvlathe {
namespace {

// (rows - offset) map of the rows of one head, [n_rows, rank].
std::vector<float> Mapped(std::span<const float> rows, std::span<const float> offset,
                          std::span<const float> map, int head_dim, int rank) {
  const int64_t n_rows = std::ssize(rows) / head_dim;
  std::vector<float> mapped(n_rows * rank);
  for (int64_t t = 0; t < n_rows; ++t) {
    float* const to = mapped.data() + t * rank;
    for (int i = 0; i < head_dim; ++i) {
      const float x = rows[t * head_dim + i] - (offset.empty() ? 0 : offset[i]);
      const float* const columns = map.data() + int64_t{i} * rank;
      for (int r = 0; r < rank; ++r) to[r] += x * columns[r];
    }
  }
  return mapped;
}

}  // namespace

BasisHistogramSums::BasisHistogramSums(const ModelBasis* basis, ThreadPool* pool)
    : basis_(basis), pool_(pool), rows_(pool->n_workers()) {
  const int64_t n_channels = std::ssize(basis->heads) * basis->head_dim;
  histograms_ = {ChannelHistograms(n_channels), ChannelHistograms(n_channels)};
}

void BasisHistogramSums::Observe(const QkvView& view) {
  pool_->Run([&](int worker_id) {
    for (int g = worker_id; g < basis_->n_kv_heads; g += pool_->n_workers()) {
      AddHead(view, g, &rows_[worker_id]);
    }
  });
}

void BasisHistogramSums::AddHead(const QkvView& view, int kv_head_idx, std::vector<float>* rows) {
  const int d = basis_->head_dim;
  const HeadBasis& head = basis_->head(view.layer_idx, kv_head_idx);
  const int64_t first_channel = (int64_t{view.layer_idx} * basis_->n_kv_heads + kv_head_idx) * d;
  const auto gather = [&](const float* from) {
    rows->clear();
    for (int t = 0; t < view.n_tokens; ++t) {
      if (view.positions[t] < kCalibrationSinks) continue;
      const float* const row = from + (int64_t{t} * basis_->n_kv_heads + kv_head_idx) * d;
      rows->insert(rows->end(), row, row + d);
    }
    return std::ssize(*rows) / d;
  };
  const bool is_latent = TurnWhenRead(basis_->keys);
  const int64_t n_rows = gather(is_latent ? view.k_pre : view.k_post);
  if (n_rows == 0) return;
  if (!is_latent && !shifts_.empty()) shifts_[view.layer_idx].Apply(n_rows, d, rows->data());
  const std::vector<float> keys = Mapped(*rows, head.key_offset, head.key_basis, d, head.rank_k);
  histograms_.k.Add(keys.data(), n_rows, first_channel, head.rank_k);
  gather(view.v);
  const std::vector<float> values =
      Mapped(*rows, head.value_offset, head.value_basis, d, head.rank_v);
  histograms_.v.Add(values.data(), n_rows, first_channel, head.rank_v);
}

}  // namespace kvlathe
