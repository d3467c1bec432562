#include "format/latent_map.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {

LatentMap::LatentMap(std::span<const float> way_back, std::span<const float> offset, int head_dim,
                     int key_dim, DType row_type, std::span<const BitSplit> splits)
    : rank_(static_cast<int>(std::ssize(way_back) / head_dim)),
      head_dim_(head_dim),
      key_dim_(key_dim),
      row_type_(row_type),
      columns_(way_back.size() * SizeOf(row_type)),
      offset_(head_dim, 0.0f) {
  KVL_CHECK_EQ(int64_t{rank_} * head_dim, std::ssize(way_back));
  KVL_CHECK(rank_ % 16 == 0 && key_dim % 16 == 0 && head_dim % key_dim == 0);
  std::vector<float> columns(way_back.size());
  for (int r = 0; r < rank_; ++r) {
    for (int i = 0; i < head_dim; ++i) columns[i * rank_ + r] = way_back[r * head_dim + i];
  }
  ConvertFromFloat(row_type, columns.data(), std::ssize(columns), columns_.data());
  if (row_type != DType::kF32) {
    RoundColumns(columns);
    for (const BitSplit& split : splits) AddBytes(columns, split);
  }
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

void LatentMap::AddBytes(const std::vector<float>& columns, const BitSplit& split) {
  const int n_coded = split.n_channels();
  const auto has_split = [&](const LatentBytes& other) { return other.split == split; };
  if (n_coded == 0 || std::ranges::any_of(bytes_, has_split)) return;
  KVL_CHECK(n_coded <= rank_);
  LatentBytes bytes = {.split = split};
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    for (int step = ByteStepOf(kSplitBits[i]); step < kByteSteps; ++step) {
      bytes.ends[step] += split.channels[i];
    }
  }
  ByteColumns to = {std::vector<int8_t>(int64_t{head_dim_} * n_coded),
                    std::vector<float>(int64_t{kByteSteps} * head_dim_),
                    std::vector<int32_t>(int64_t{kByteSteps} * head_dim_)};
  for (int i = 0; i < head_dim_; ++i) {
    const float* const column = columns.data() + int64_t{i} * rank_;
    int8_t* const numbers = to.numbers.data() + int64_t{i} * n_coded;
    for (int step = 0, first = 0; step < kByteSteps; first = bytes.ends[step++]) {
      float top = 0, sum = 0;
      for (int r = first; r < bytes.ends[step]; ++r) {
        top = std::max(top, std::abs(column[r]));
        sum += column[r];
      }
      const float unit = top / 127 + 0 * sum;  // NaN and infinity stay visible
      int32_t total = 0;
      for (int r = first; r < bytes.ends[step]; ++r) {
        numbers[r] = static_cast<int8_t>(unit > 0 ? std::lrint(column[r] / unit) : 0);
        total += numbers[r];
      }
      to.units[step * head_dim_ + i] = unit;
      to.starts[step * head_dim_ + i] = -128 * total;
    }
  }
  bytes.numbers = to.numbers.data();
  bytes.units = to.units.data();
  bytes.starts = to.starts.data();
  byte_columns_.push_back(std::move(to));
  bytes_.push_back(bytes);
}

int64_t LatentMap::n_bytes() const {
  const auto bytes_of = [](const auto& v) {
    return static_cast<int64_t>(sizeof(v[0])) * std::ssize(v);
  };
  int64_t n_bytes = bytes_of(columns_) + bytes_of(numbers_) + bytes_of(offset_) + bytes_of(units_);
  for (const ByteColumns& c : byte_columns_) {
    n_bytes += bytes_of(c.numbers) + bytes_of(c.units) + bytes_of(c.starts);
  }
  return n_bytes;
}

}  // namespace kvlathe
