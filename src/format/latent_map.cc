#include "format/latent_map.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {

LatentMap::LatentMap(std::span<const float> way_back, std::span<const float> offset, int head_dim,
                     int key_dim, DType row_type)
    : rank_(static_cast<int>(std::ssize(way_back) / head_dim)),
      head_dim_(head_dim),
      key_dim_(key_dim),
      columns_(way_back.size() * SizeOf(row_type)),
      offset_(head_dim, 0.0f) {
  KVL_CHECK_EQ(int64_t{rank_} * head_dim, std::ssize(way_back));
  KVL_CHECK(rank_ % 16 == 0 && key_dim % 16 == 0 && head_dim % key_dim == 0);
  std::vector<float> columns(way_back.size());
  for (int r = 0; r < rank_; ++r) {
    for (int i = 0; i < head_dim; ++i) columns[i * rank_ + r] = way_back[r * head_dim + i];
  }
  ConvertFromFloat(row_type, columns.data(), std::ssize(columns), columns_.data());
  if (row_type != DType::kF32) RoundColumns(columns);
  if (!offset.empty()) {
    KVL_CHECK_EQ(std::ssize(offset), head_dim);
    std::ranges::copy(offset, offset_.begin());
  }
}

void LatentMap::RoundColumns(const std::vector<float>& columns) {
  constexpr float kLargestSum = 2.145e9f;
  numbers_.resize(columns.size());
  units_.resize(head_dim_);
  for (int i = 0; i < head_dim_; ++i) {
    const std::span<const float> column = std::span(columns).subspan(int64_t{i} * rank_, rank_);
    float top = 0, sum = 0;
    for (const float x : column) {
      top = std::max(top, std::abs(x));
      sum += std::abs(x);
    }
    // NaN and infinity stay visible.
    const float unit = std::max(top / 32767, sum * (kLargestUnitNumber / kLargestSum)) + 0 * sum;
    units_[i] = unit * kUnitNumberStep;
    for (int r = 0; r < rank_; ++r) {
      const float number = unit > 0 ? column[r] / unit : 0;
      numbers_[int64_t{i} * rank_ + r] = static_cast<int16_t>(std::lrint(number));
    }
  }
}

}  // namespace kvlathe
