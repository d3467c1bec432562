#include "format/open_entry.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

OpenEntry::OpenEntry(std::byte* object, const MergePlan& plan, int head_dim, int rank_v)
    : head_dim_(head_dim),
      rank_v_(rank_v),
      window_(plan.window),
      n_positions_(reinterpret_cast<int32_t*>(object)),
      sums_(reinterpret_cast<float*>(object + sizeof(int32_t))),
      ring_(sums_ + 1 + head_dim + rank_v) {}

int64_t OpenEntry::Bytes(const MergePlan& plan, int head_dim, int rank_v) {
  const int64_t n_rows = 1 + plan.window;
  return static_cast<int64_t>(sizeof(int32_t)) +
         n_rows * (1 + head_dim + rank_v) * static_cast<int64_t>(sizeof(float));
}

float* OpenEntry::RingRow(int position) const {
  return ring_ + int64_t{position % window_} * (1 + head_dim_ + rank_v_);
}

void OpenEntry::Add(float weight, const float* key, const float* value) {
  const int width = 1 + head_dim_ + rank_v_, position = (*n_positions_)++;
  const auto add = [&](float* to) {
    to[0] += weight;
    for (int i = 0; i < head_dim_; ++i) to[1 + i] += weight * key[i];
    for (int i = 0; i < rank_v_; ++i) to[1 + head_dim_ + i] += weight * value[i];
  };
  if (position == 0) std::fill_n(sums_, width, 0.0f);
  if (window_ > 0) {
    std::fill_n(RingRow(position), width, 0.0f);
    add(RingRow(position));
  }
  if (window_ == 0 || position < window_) {
    add(sums_);
    return;
  }
  std::copy_n(RingRow(position + 1), width, sums_);  // the oldest
  for (int p = position + 2; p <= position + window_; ++p) {
    const float* row = RingRow(p);
    for (int i = 0; i < width; ++i) sums_[i] += row[i];
  }
}

void OpenEntry::Mean(float* key, float* value) const {
  KVL_DCHECK(*n_positions_ > 0);
  const float scale = 1 / sums_[0];
  for (int i = 0; i < head_dim_; ++i) key[i] = scale * sums_[1 + i];
  for (int i = 0; i < rank_v_; ++i) value[i] = scale * sums_[1 + head_dim_ + i];
}

}  // namespace kvlathe
